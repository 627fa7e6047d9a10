"""The handshake: what a retriever serves, and whether this decoder may use it.

Knows the contract and how a key is reduced; keeps no connection and retries nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import grpc
import numpy as np

from decoder_client.reducer import KeyReducer, ReducerError
from decoder_client.retriever_errors import RetrieverMismatchError, RetrieverUnavailableError
from decoder_client.wire import Limits, identity_of, key_recipe_of
from dresd.identity import KeyRecipe, ModelIdentity, differences
from dresd.routing import RoutingTable
from dresd.token_table import TokenTable, TokenTableError
from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc

# The service's own words beside UNAVAILABLE, which alone could as well be an address where nobody listens.
_LOADING = "still being loaded"
# What gRPC says where certificates do not fit, and where a server with a certificate hangs up.
_TLS_TROUBLE = ("Tls handshake failed", "Hostname Verification Check failed", "Socket closed")
_MAX_TABLE_BYTES = 1 << 28
"""Ten times what a build with the largest vocabularies writes."""

Request = TypeVar("Request")
Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class Handshake:
    """What a retriever said about itself, checked.

    Attributes:
        service_version: of the server.
        collection: that was asked for; "" is the server's default one.
        build_id: of the datastore; another build may hold other entries and another reducer.
        model: the datastore was built with.
        key_recipe: how its keys were made.
        continuation_length: deepest draft.
        left_context_length: tokens of left context that its sparse lookups can match.
        num_entries: entries in the partitions it serves.
        routing: which partitions hold a token.
        served_partitions: those that it serves itself.
        limits: what one request may ask for.
        reducer: makes keys of hidden states.
        token_table: likely next tokens; empty where the server has none to give.
    """

    service_version: str
    collection: str
    build_id: str
    model: ModelIdentity
    key_recipe: KeyRecipe
    continuation_length: int
    left_context_length: int
    num_entries: int
    routing: RoutingTable
    served_partitions: frozenset[int]
    limits: Limits
    reducer: KeyReducer
    token_table: TokenTable


def shake_hands(
    stub: pb_grpc.RetrieverStub,
    address: str,
    identity: ModelIdentity,
    *,
    collection: str,
    timeout_s: float,
    require_same_weights: bool,
    known: Handshake | None = None,
) -> Handshake:
    """Asks a retriever what it serves and checks that `identity`'s decoder can use it.

    Args:
        stub: calls it.
        address: for messages.
        identity: the decoder's target model.
        collection: asked for; "" is the retriever's default one.
        timeout_s: for each of the three calls.
        require_same_weights: refuse other weights even if tokenizer and sizes agree.
        known: an earlier handshake, whose reducer is kept if the hash is the same, and its tables if the build is.

    Raises:
        RetrieverUnavailableError: no answer, or not now.
        RetrieverMismatchError: no such collection, another model, another recipe, or a reducer or table that is not
            what was announced.
    """
    info: pb.GetInfoResponse = _call(stub.GetInfo, pb.GetInfoRequest(collection=collection), address, timeout_s)
    model, recipe = identity_of(info.model), key_recipe_of(info.key_recipe)
    ours = identity if require_same_weights else replace(identity, weights_fingerprint=model.weights_fingerprint)
    differ = differences(ours, model)
    if differ:
        raise RetrieverMismatchError(
            f"the retriever at {address} serves a datastore of another model ({model.name}; this decoder runs "
            f"{identity.name}); decoder against datastore: {'; '.join(differ)}. {_way_out(identity, model)}"
        )
    if (recipe.layer, recipe.norm) != ("last", "l2"):
        raise RetrieverMismatchError(
            f"the retriever at {address} uses keys this decoder cannot make; decoder against datastore: "
            f"layer: 'last' against {recipe.layer!r}; norm: 'l2' against {recipe.norm!r}. Upgrade the decoder"
        )
    limits = Limits(info.limits.max_queries, info.limits.max_neighbors, info.limits.max_nodes)
    if min(limits.max_queries, limits.max_neighbors, limits.max_nodes, info.continuation_length) < 1:
        raise RetrieverMismatchError(
            f"the retriever at {address} allows nothing: {limits}, drafts of {info.continuation_length} tokens at most"
        )
    if known is not None and known.key_recipe == recipe:
        reducer = known.reducer
    else:
        of_build = pb.GetReducerRequest(collection=collection, build_id=info.build_id)
        content = _call(stub.GetReducer, of_build, address, timeout_s).safetensors
        reducer = _reducer_of(content, recipe, model, address)
    if known is not None and known.build_id == info.build_id:
        token_table, routing = known.token_table, known.routing
    else:
        routing = _routing_of(info.routing, address)
        table_of = pb.GetTokenTableRequest(collection=collection, build_id=info.build_id)
        token_table = _token_table(stub, table_of, address, timeout_s, model.vocab_size)
    return Handshake(
        service_version=info.service_version,
        collection=collection,
        build_id=info.build_id,
        model=model,
        key_recipe=recipe,
        continuation_length=info.continuation_length,
        left_context_length=info.left_context_length,
        num_entries=info.num_entries,
        routing=routing,
        served_partitions=frozenset(info.served_partitions),
        limits=limits,
        reducer=reducer,
        token_table=token_table,
    )


def _way_out(identity: ModelIdentity, model: ModelIdentity) -> str:
    way_out = "Build a datastore with this model, or run the model it was built with"
    if differences(replace(identity, weights_fingerprint=model.weights_fingerprint), model):
        return way_out
    return (
        f"{way_out}. (Only the weights differ. Those of a float16 copy do, because float16 rounds otherwise: load it "
        "in float32 or bfloat16, or accept other weights: --allow-other-weights, in Python "
        "RetrieverConfig(require_same_weights=False).)"
    )


def _reducer_of(content: bytes, recipe: KeyRecipe, model: ModelIdentity, address: str) -> KeyReducer:
    actual = hashlib.sha256(content).hexdigest()
    if actual != recipe.reducer_hash:
        raise RetrieverMismatchError(
            f"the retriever at {address} sent a reducer with sha256 {actual} and announced {recipe.reducer_hash}; "
            "run `dresd-retriever verify` on its datastore"
        )
    try:
        reducer = KeyReducer.from_bytes(content)
    except ReducerError as error:
        raise RetrieverMismatchError(f"the reducer of the retriever at {address} cannot be read: {error}") from error
    if (reducer.dims, reducer.hidden_size) != (recipe.dims, model.hidden_size):
        raise RetrieverMismatchError(
            f"the reducer of the retriever at {address} maps {reducer.hidden_size} to {reducer.dims} numbers and "
            f"{model.hidden_size} to {recipe.dims} were announced; run `dresd-retriever verify` on its datastore"
        )
    return reducer


def _routing_of(message: pb.RoutingTable, address: str) -> RoutingTable:
    arrays = (np.array(field, np.int64) for field in (message.tokens, message.offsets, message.partitions))
    table = RoutingTable(message.num_partitions, *arrays)
    if not table.is_consistent():
        raise RetrieverMismatchError(
            f"the retriever at {address} sent a routing table that contradicts itself; "
            "run `dresd-retriever verify` on its datastore"
        )
    return table


def _token_table(
    stub: pb_grpc.RetrieverStub, request: pb.GetTokenTableRequest, address: str, timeout_s: float, vocab_size: int
) -> TokenTable:
    content = bytearray()
    announced, sha256 = 0, hashlib.sha256(content).hexdigest()
    with _explained(address):
        parts = stub.GetTokenTable(request, timeout=timeout_s)
        try:
            for part in parts:
                announced, sha256 = part.total_size, part.sha256
                content += part.chunk
                if len(content) > min(announced, _MAX_TABLE_BYTES):
                    break
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return TokenTable.empty()  # an older server
            raise
        finally:
            parts.cancel()
    if (len(content), hashlib.sha256(content).hexdigest()) != (announced, sha256):
        raise RetrieverMismatchError(
            f"the retriever at {address} sent {len(content)} bytes of a token table that are not the {announced} it "
            "announced; run `dresd-retriever verify` on its datastore"
        )
    try:
        return TokenTable.from_bytes(bytes(content), vocab_size)
    except TokenTableError as error:
        raise RetrieverMismatchError(f"what the retriever at {address} sent as its token table {error}") from error


def _call(
    method: grpc.UnaryUnaryMultiCallable[Request, Response], request: Request, address: str, timeout_s: float
) -> Response:
    with _explained(address):
        return method(request, timeout=timeout_s)


@contextmanager
def _explained(address: str) -> Iterator[None]:
    """Turns what grpc raises for a call into what is wrong with the retriever."""
    try:
        yield
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            raise RetrieverMismatchError(f"the retriever at {address} has no such {error.details()}") from error
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            raise RetrieverUnavailableError(
                f"the retriever at {address} took up another build during the handshake; connect again"
            ) from error
        if _LOADING in (error.details() or ""):
            raise RetrieverUnavailableError(
                f"the retriever at {address} is running but still loading its datastore; wait until it is ready"
            ) from error
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            raise RetrieverUnavailableError(
                f"the retriever at {address} turns this decoder away ({error.details()}); "
                "is DRESD_RETRIEVER_TOKEN_FILE set, and is the token in that file still accepted?"
            ) from error
        if any(sign in (error.details() or "") for sign in _TLS_TROUBLE):
            raise RetrieverUnavailableError(
                f"no connection with the retriever at {address} ({reason_of(error)}); do both sides speak TLS, or "
                "neither? Has no certificate expired, is the server's of an authority in DRESD_RETRIEVER_CA_FILE, and "
                "this decoder's in DRESD_RETRIEVER_CERT_FILE if the server wants one?"
            ) from error
        raise RetrieverUnavailableError(
            f"no retriever answers at {address} ({reason_of(error)}); "
            "is `dresd-retriever serve` running there, and is the address right?"
        ) from error
    except ValueError as error:  # grpc's way to say that the channel was closed meanwhile
        raise RetrieverUnavailableError(f"the connection to {address} was closed") from error


def reason_of(error: grpc.RpcError) -> str:
    """The status and message of a failed call, for people."""
    return f"{error.code().name}: {error.details()}"
