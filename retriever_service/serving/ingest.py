"""The Ingest service: answers that decoders send, checked and kept.

Knows its contract; nothing of files or searches.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from typing import TYPE_CHECKING

import grpc
import numpy as np

from dresd.v1 import ingest_pb2 as pb
from dresd.v1 import ingest_pb2_grpc as pb_grpc
from dresd.v1 import retriever_pb2
from retriever_service.echo import echoed, quoted
from retriever_service.learning import Answer, FullError, LearnedStore
from retriever_service.serving.call_log import RefusalLog, enter
from retriever_service.serving.collection import Collections
from retriever_service.serving.learning import Learning
from retriever_service.serving.refusals import abort, message_of
from retriever_service.serving.validation import RefusedError

if TYPE_CHECKING:
    from retriever_service.serving.refusals import Context

logger = logging.getLogger(__name__)

_MAX_ANSWERS = 256
"""Of one request; its bytes are limited, too."""


class IngestService(pb_grpc.IngestServicer):
    """Keeps what it is sent.

    Args:
        collections: all that are served.
        learning: their stores.
    """

    def __init__(self, collections: Collections, learning: Learning) -> None:
        self._collections = collections
        self._learning = learning
        self._refusals = RefusalLog(logger)

    async def Append(self, request: pb.AppendRequest | None, context: Context) -> pb.AppendResponse:  # noqa: N802
        """Answers once everything is on the disk."""
        enter(context)
        try:
            return await self._append(message_of(request), _writer(context))
        except RefusedError as refused:
            self._refusals.refused(refused.code, refused.message)
            await abort(context, refused)

    async def _append(self, request: pb.AppendRequest, writer: str) -> pb.AppendResponse:
        collection = self._collections.find(request.collection)
        collection.build("")  # nothing is learned before it is served
        store = self._learning.stores[collection.name]
        recipe = store.base.manifest.key_recipe
        if request.reducer_hash != recipe.reducer_hash:
            raise RefusedError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"reducer_hash: the keys are by {quoted(request.reducer_hash)} and this server's by "
                f"{quoted(recipe.reducer_hash)}; shake hands again",
            )
        answers = _answers(request)
        if not self._learning.rates.takes(writer, sum(len(answer.positions) for answer in answers)):
            raise RefusedError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "this writer sends more entries a second than one may"
            )
        return pb.AppendResponse(entries_added=await _kept(store, answers))


async def _kept(store: LearnedStore, answers: list[Answer]) -> int:
    try:
        # Whoever leaves does not take back what was accepted.
        return await asyncio.shield(asyncio.wrap_future(store.append(answers)))
    except ValueError as error:
        raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
    except FullError:
        raise RefusedError(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "too much waits to be written; send it again later, or drop it"
        ) from None
    except OSError as error:
        raise RefusedError(
            grpc.StatusCode.UNAVAILABLE, f"nothing can be written now: {echoed(error.strerror)}"
        ) from error


def _answers(request: pb.AppendRequest) -> list[Answer]:
    """Those of a request, their shapes checked.

    Raises:
        RefusedError: INVALID_ARGUMENT; the message names the field.
    """
    if request.key_type != retriever_pb2.KEY_TYPE_FLOAT16:
        raise _invalid("key_type: only KEY_TYPE_FLOAT16 is learned")
    if not 1 <= len(request.answers) <= _MAX_ANSWERS:
        raise _invalid(f"answers: there are {len(request.answers)}; 1 to {_MAX_ANSWERS} are allowed")
    now_us = time.time_ns() // 1000
    answers = []
    for number, sent in enumerate(request.answers):
        if len(sent.keys) != 2 * request.dims * len(sent.positions):
            raise _invalid(f"answers[{number}].keys: {len(sent.keys)} bytes are not {len(sent.positions)} keys")
        tokens, positions = np.array(sent.tokens, np.int64), np.array(sent.positions, np.int64)
        if (tokens >= 2**31).any():
            raise _invalid(f"answers[{number}].tokens: one is beyond any vocabulary")
        keys = np.frombuffer(sent.keys, "<f2").astype(np.float16).reshape(len(positions), request.dims)
        try:
            answers.append(Answer(sent.id, now_us, tokens.astype(np.int32), positions, keys))
        except ValueError as error:
            raise _invalid(f"answers[{number}].{error}") from error
    return answers


def _invalid(message: str) -> RefusedError:
    return RefusedError(grpc.StatusCode.INVALID_ARGUMENT, message)


def _writer(context: Context) -> str:
    """What is limited together: a token's bearers, or a machine."""
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            return hashlib.sha256(value if isinstance(value, bytes) else value.encode()).hexdigest()
    return context.peer().rsplit(":", 1)[0]
