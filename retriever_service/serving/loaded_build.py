"""One build of a collection while it can answer: the open datastore, and what the wire says of it, made once.

Knows a datastore and messages; not which build is current, nor who asks.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from retriever_service.datastore import Datastore
from retriever_service.serving.config import Limits
from retriever_service.serving.messages import compile_messages, info_message, reducer_message
from retriever_service.serving.validation import Served, compile_checks


class LoadedBuild:
    """A datastore that answers. Whoever holds one keeps its files mapped.

    Attributes:
        datastore: open.
        build_id: its name on the wire.
        served: what requests are checked against.
        info: the handshake's answer.
        reducer: the reducer's file.
        token_table: the token table's file.
        token_table_sha256: of it, hex.
        loaded_at_us: microseconds since 1970.
        in_flight: requests that it is answering; counted by the event loop's thread.
    """

    def __init__(self, datastore: Datastore, limits: Limits) -> None:
        compile_checks()
        compile_messages()
        manifest = datastore.manifest
        self.datastore = datastore
        self.build_id = manifest.build_id
        self.served = Served(
            manifest.key_recipe.dims, manifest.continuation_length, manifest.left_context_length, limits
        )
        self.info = info_message(datastore, limits)
        self.reducer = reducer_message(datastore)
        self.token_table = datastore.token_table_bytes
        self.token_table_sha256 = hashlib.sha256(self.token_table).hexdigest()
        self.loaded_at_us = time.time_ns() // 1000
        self.in_flight = 0

    @property
    def folder(self) -> Path:
        """Where it was opened."""
        return self.datastore.path
