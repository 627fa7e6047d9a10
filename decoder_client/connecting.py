"""Gets a retriever client ready for a target model.

A service that is down costs speed, not answers: it is warned about, and used as soon as it is up. A service with
another model's datastore is an error, because it would waste every draft.
"""

from __future__ import annotations

from decoder_client.retriever import RetrieverClient, RetrieverConfig
from decoder_client.target_model import TargetModel


def connect(retriever: str | RetrieverClient, target: TargetModel) -> RetrieverClient:
    """A client for `retriever`: a new one for "HOST:PORT", or the one given, connected if it is not yet.

    Raises:
        RetrieverMismatchError: it serves another model's datastore, or the client is connected for another model.
        RetrieverError: the address is malformed, or the client was closed.
    """
    if isinstance(retriever, RetrieverClient):
        if retriever.is_started:
            retriever.check_identity(target.identity())
        else:
            retriever.connect_when_up(target.identity())
        return retriever
    client = RetrieverClient(RetrieverConfig(address=retriever))
    try:
        client.connect_when_up(target.identity())
    except BaseException:
        client.close()
        raise
    return client
