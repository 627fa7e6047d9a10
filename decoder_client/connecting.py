"""Gets a retriever ready for a target model, or lets decoding go on without one.

A service that is down costs speed, not answers: it is warned about. A service with another model's datastore is an
error, because it would waste every draft.
"""

from __future__ import annotations

import logging

from decoder_client.retriever import RetrieverClient, RetrieverConfig, RetrieverError, RetrieverUnavailableError
from decoder_client.target_model import TargetModel

logger = logging.getLogger(__name__)


def connect(retriever: str | RetrieverClient, target: TargetModel) -> RetrieverClient | None:
    """A client for `retriever` ("HOST:PORT", or a client), shaken hands with; None, with a warning, if nobody answers.

    Raises:
        RetrieverMismatchError: it serves another model's datastore.
        RetrieverError: the address is malformed, or the client was closed.
    """
    client = RetrieverClient(RetrieverConfig(address=retriever)) if isinstance(retriever, str) else retriever
    if is_connected(client):
        return client
    try:
        client.connect(target.identity())
    except RetrieverUnavailableError as error:
        logger.warning("Decoding without retrieved drafts: %s", error)
        if isinstance(retriever, str):
            client.close()
        return None
    return client


def is_connected(client: RetrieverClient) -> bool:
    """Whether there was a handshake; the service may be down at the moment all the same."""
    try:
        return client.handshake is not None
    except RetrieverError:
        return False
