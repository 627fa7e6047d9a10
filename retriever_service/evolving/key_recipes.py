"""Which datastores may be joined: those whose entries mean the same. Knows manifests only."""

from __future__ import annotations

from collections.abc import Sequence

from retriever_service.datastore import Datastore, DatastoreError, Manifest, other_keys


def check_joinable(sources: Sequence[Datastore]) -> None:
    """Raises DatastoreError where two of them have other keys or other tokens beside them, with both values."""
    first = sources[0]
    for other in sources[1:]:
        if differ := _differences(first.manifest, other.manifest):
            raise DatastoreError(
                f"{first.path} and {other.path} cannot be joined: {'; '.join(differ)}.",
                "Keys of one reducer are needed; let `dresd-retriever add` embed new documents with that of a build.",
            )


def _differences(one: Manifest, other: Manifest) -> list[str]:
    differ = other_keys(one, other)
    pairs = (
        ("reducer_hash", one.key_recipe.reducer_hash, other.key_recipe.reducer_hash),
        ("continuation_length", one.continuation_length, other.continuation_length),
        ("left_context_length", one.left_context_length, other.left_context_length),
    )
    return [*differ, *(f"{name}: {ours!r} against {theirs!r}" for name, ours, theirs in pairs if ours != theirs)]
