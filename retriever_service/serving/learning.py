"""Which collection learns where: a store of answers for each, which follows the builds that are served.

Answers whose keys another reducer made mean nothing to a build, so each reducer has a folder of its own; a build whose
reducer was served before finds there what was learned then. Knows stores and builds; no calls.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from retriever_service.datastore import Datastore
from retriever_service.learning import LearnedStore
from retriever_service.serving.learning_config import LearningConfig
from retriever_service.serving.writer_rates import WriterRates

logger = logging.getLogger(__name__)

_NAME_LENGTH = 16
"""Of a reducer's folder: the beginning of its sha256."""


class Learning:
    """The stores of one server.

    Args:
        config: where and how much.

    Attributes:
        rates: what each writer may still send.
    """

    def __init__(self, config: LearningConfig) -> None:
        self.rates = WriterRates(config.max_rate)
        self._config = config
        self._lock = threading.Lock()
        self._stores: dict[str, LearnedStore] = {}

    @property
    def stores(self) -> dict[str, LearnedStore]:
        """By collection, once its first build is loaded."""
        return dict(self._stores)

    def opener(self, open_datastore: Callable[[Path], Datastore]) -> Callable[[Path], Datastore]:
        """Opens builds that can be learned for; raises what `open_datastore` does."""

        def opened(folder: Path) -> Datastore:
            datastore = open_datastore(folder)
            datastore.accept_any_token()
            return datastore

        return opened

    def follow(self, collection: str, datastore: Datastore) -> None:
        """From now on learns for this build, which may have been served before; what was learned for its reducer is
        searched with it. It takes a while, in a thread of the caller's.

        Raises:
            LearningError: what was learned cannot be read; the build before is still learned for.
        """
        with self._lock:
            self._learn_for(collection, datastore)

    def close(self) -> None:
        """Returns when everything accepted is on the disk."""
        with self._lock:
            for store in self._stores.values():
                store.close()

    def _learn_for(self, collection: str, datastore: Datastore) -> None:
        reducer = datastore.manifest.key_recipe.reducer_hash
        before = self._stores.get(collection)
        if before is not None and before.base is datastore:
            return
        if before is not None and before.base.manifest.key_recipe.reducer_hash == reducer:
            before.rebase(datastore)
            return
        store = LearnedStore(self._config.folder / collection / reducer[:_NAME_LENGTH], datastore, self._config.limits)
        self._stores[collection] = store
        if before is not None:
            before.close()
        found = store.recovered
        fields = {"collection": collection, "answers": found.answers, "entries": found.entries}
        logger.info("learning", extra={"fields": fields})
        if found.torn or found.damaged:
            logger.warning(
                "of what was learned %d bytes were torn by a crash and are cut, and %d are damaged and left out",
                found.torn,
                found.damaged,
                extra={"fields": fields},
            )
