"""Retriever clients that wait as long as a busy machine needs."""

from __future__ import annotations

from decoder_client.retriever import RetrieverClient, RetrieverConfig
from tests.support.serving import PATIENCE_S

PATIENT = {"deadline_ms": PATIENCE_S * 1e3, "connect_timeout_s": PATIENCE_S, "retry_base_s": 0.01, "retry_max_s": 0.05}


def client_of(address: str, **changes: object) -> RetrieverClient:
    return RetrieverClient(RetrieverConfig(address, **{**PATIENT, **changes}))
