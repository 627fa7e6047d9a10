"""Between a handler and its caller: a request that is no message, and a refusal that becomes a status.

Knows gRPC's contexts; not what is refused, or why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio

from retriever_service.serving.validation import RefusedError

if TYPE_CHECKING:
    # Any: one alias for the contexts of all handlers, whose messages the generated base classes already type.
    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

M = TypeVar("M")


def message_of(request: M | None) -> M:
    """The request; None is what `registration` makes of bytes that are no message.

    Raises:
        RefusedError: INVALID_ARGUMENT for None.
    """
    if request is None:
        raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, "the request is not a message of this call's type")
    return request


async def abort(context: Context, refused: RefusedError) -> NoReturn:
    """Ends the call with the refusal's status."""
    await context.abort(refused.code, refused.message)
