"""What stands at a server's port: its credentials, and the interceptors that every call passes.

The same for the port that answers decoders and for any other. Knows access rules, no calls.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import grpc
import grpc.aio

from retriever_service.serving.access import Access
from retriever_service.serving.authentication import HEALTH, INGEST, Authentication
from retriever_service.serving.bearer_tokens import BearerTokens
from retriever_service.serving.meters import RequestMeter
from retriever_service.serving.tls import server_credentials

logger = logging.getLogger(__name__)


def door(
    access: Access, listen: str, meter: RequestMeter | None = None
) -> tuple[Sequence[grpc.aio.ServerInterceptor], grpc.ServerCredentials | None]:
    """Interceptors and credentials for a server that listens on `listen`; None is plain text.

    Args:
        access: who may call.
        listen: for a warning.
        meter: counts those turned away.

    Raises:
        ServeError: a file cannot be read or used.
    """
    credentials = None if access.tls is None else server_credentials(access.tls)
    if access.token_file is None and access.learn_token_file is None:
        return (), credentials
    if credentials is None and not listen.startswith(("127.", "localhost:", "[::1]:")):
        logger.warning("bearer tokens cross the network to %s in plain text; give the server a certificate", listen)
    open_to_all = (HEALTH,) if access.open_health else ()
    interceptors = []
    if access.learn_token_file is not None:
        interceptors.append(Authentication(BearerTokens(access.learn_token_file), (), meter, only=INGEST))
        open_to_all = (*open_to_all, INGEST)
    if access.token_file is not None:
        interceptors.append(Authentication(BearerTokens(access.token_file), open_to_all, meter))
    return interceptors, credentials
