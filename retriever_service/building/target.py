"""What a build needs to know of the target model, found out by one task that loads it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from dresd.identity import ModelIdentity


@dataclass(frozen=True, slots=True)
class Target:
    """The target without its weights.

    Attributes:
        identity: as the manifest records it.
        max_length: tokens it reads at most.
    """

    identity: ModelIdentity
    max_length: int


def examine(model: str) -> Target:
    """Loads the model once; raises TargetModelError if it cannot be a target."""
    from retriever_service.building.models import load_for_reading

    target = load_for_reading(model)
    identity = target.identity()
    if Path(model).is_dir():  # where a builder keeps the model is nobody's business
        identity = replace(identity, name=Path(model).absolute().name)
    return Target(identity, target.max_length)
