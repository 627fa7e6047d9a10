"""The handshake: what a retriever serves, and whether this decoder may use it.

Knows the contract and how a key is reduced; keeps no connection and retries nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TypeVar

import grpc

from decoder_client.reducer import KeyReducer, ReducerError
from decoder_client.retriever_errors import RetrieverMismatchError, RetrieverUnavailableError
from decoder_client.wire import Limits, identity_of, key_recipe_of
from dresd.identity import KeyRecipe, ModelIdentity, differences
from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc

Request = TypeVar("Request")
Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class Handshake:
    """What a retriever said about itself, checked.

    Attributes:
        service_version: of the server.
        build_id: of the datastore; another build may hold other entries and another reducer.
        model: the datastore was built with.
        key_recipe: how its keys were made.
        continuation_length: deepest draft.
        num_entries: entries in the partitions it serves.
        limits: what one request may ask for.
        reducer: makes keys of hidden states.
    """

    service_version: str
    build_id: str
    model: ModelIdentity
    key_recipe: KeyRecipe
    continuation_length: int
    num_entries: int
    limits: Limits
    reducer: KeyReducer


def shake_hands(
    stub: pb_grpc.RetrieverStub,
    address: str,
    identity: ModelIdentity,
    *,
    timeout_s: float,
    require_same_weights: bool,
    known: Handshake | None = None,
) -> Handshake:
    """Asks a retriever what it serves and checks that `identity`'s decoder can use it.

    Args:
        stub: calls it.
        address: for messages.
        identity: the decoder's target model.
        timeout_s: for each of the two calls.
        require_same_weights: refuse other weights even if tokenizer and sizes agree.
        known: an earlier handshake, whose reducer is kept if the hash is the same.

    Raises:
        RetrieverUnavailableError: no answer, or not now.
        RetrieverMismatchError: another model, another recipe, or a reducer that is not what was announced.
    """
    info: pb.GetInfoResponse = _call(stub.GetInfo, pb.GetInfoRequest(), address, timeout_s)
    model, recipe = identity_of(info.model), key_recipe_of(info.key_recipe)
    ours = identity if require_same_weights else replace(identity, weights_fingerprint=model.weights_fingerprint)
    differ = differences(ours, model)
    if differ:
        raise RetrieverMismatchError(
            f"the retriever at {address} serves a datastore of another model ({model.name}; this decoder runs "
            f"{identity.name}); decoder against datastore: {'; '.join(differ)}. Build a datastore with this model, "
            "or run the model it was built with"
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
        content = _call(stub.GetReducer, pb.GetReducerRequest(), address, timeout_s).safetensors
        reducer = _reducer_of(content, recipe, model, address)
    return Handshake(
        service_version=info.service_version,
        build_id=info.build_id,
        model=model,
        key_recipe=recipe,
        continuation_length=info.continuation_length,
        num_entries=info.num_entries,
        limits=limits,
        reducer=reducer,
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


def _call(
    method: grpc.UnaryUnaryMultiCallable[Request, Response], request: Request, address: str, timeout_s: float
) -> Response:
    try:
        return method(request, timeout=timeout_s)
    except grpc.RpcError as error:
        raise RetrieverUnavailableError(
            f"no retriever answers at {address} ({reason_of(error)}); "
            "is `dresd-retriever serve` running there, and is the address right?"
        ) from error
    except ValueError as error:  # grpc's way to say that the channel was closed meanwhile
        raise RetrieverUnavailableError(f"the connection to {address} was closed") from error


def reason_of(error: grpc.RpcError) -> str:
    """The status and message of a failed call, for people."""
    return f"{error.code().name}: {error.details()}"
