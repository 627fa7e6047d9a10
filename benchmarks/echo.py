"""An empty gRPC server for comparison: bytes in, the same answer out, over the library and event loop of the service.

`python -m benchmarks.echo HEX` prints its port and serves until it is told to stop.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

UNARY = "/benchmark.Echo/Unary"
STREAM = "/benchmark.Echo/Stream"


async def serve(answer: bytes) -> None:
    """Serves until SIGTERM."""

    # Any: raw bytes have no message types.
    async def unary(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:  # noqa: ARG001
        return answer

    async def stream(
        requests: AsyncIterator[bytes],
        context: grpc.aio.ServicerContext[Any, Any],  # noqa: ARG001
    ) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield answer

    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("benchmark.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"echo ready on 127.0.0.1:{port}", flush=True)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(serve(bytes.fromhex(sys.argv[1])))
