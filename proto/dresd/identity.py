"""Who computed a key, and how: what a datastore records and a decoder compares before it trusts a draft.

A wrong pairing never changes the output (verification guards that), it only wastes the drafts; so both sides
state these values and a client refuses to use a datastore that states others.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The target model a datastore was built with.

    Attributes:
        name: as given to `--model`; for people, never compared.
        revision: of the model's repository, "" if unknown; for people, never compared.
        weights_fingerprint: sha256, hex, over a sample of every parameter.
        tokenizer_hash: sha256, hex, over the vocabulary; "" for a model without a tokenizer.
        hidden_size: width of the hidden state the language model head reads.
        vocab_size: rows of the language model head.
    """

    name: str
    revision: str
    weights_fingerprint: str
    tokenizer_hash: str
    hidden_size: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class KeyRecipe:
    """How a hidden state becomes a key.

    Attributes:
        layer: "last" is the state the language model head reads (after the final norm).
        norm: normalisation of the reduced state, "l2".
        dims: numbers in a key.
        reducer_hash: sha256, hex, of the reducer's safetensors file.
    """

    layer: str
    norm: str
    dims: int
    reducer_hash: str


_FOR_PEOPLE = {"name", "revision"}


def differences(expected: ModelIdentity, actual: ModelIdentity) -> list[str]:
    """One line for each compared field whose values differ, both values side by side; empty when they agree."""
    return [
        f"{field.name}: {getattr(expected, field.name)!r} against {getattr(actual, field.name)!r}"
        for field in fields(ModelIdentity)
        if field.name not in _FOR_PEOPLE and getattr(expected, field.name) != getattr(actual, field.name)
    ]
