"""What one or many answers cost and gained; the measures have the same names everywhere.

Knows numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class GenerationStats:
    """Counts and seconds over all steps of an answer; `a + b` gives those of both.

    Attributes:
        tokens: tokens of the answer.
        forwards: forward passes, the prompt's included, so plain decoding has 1 token per forward.
        steps: forward passes after the prompt's.
        steps_with_draft: those that verified at least one draft node.
        drafted: draft nodes verified.
        accepted: draft nodes accepted.
        retrievals: calls to the retriever.
        retrievals_answered: those that gave a draft in time.
        retrieval_s: waiting for the retriever; part of draft_s.
        draft_s: making drafts.
        forward_s: in the model, until its choices are known (on a GPU the passes end there).
        verify_s: accepting drafts and cleaning the cache.
        total_s: all of it.
    """

    tokens: int = 0
    forwards: int = 0
    steps: int = 0
    steps_with_draft: int = 0
    drafted: int = 0
    accepted: int = 0
    retrievals: int = 0
    retrievals_answered: int = 0
    retrieval_s: float = 0.0
    draft_s: float = 0.0
    forward_s: float = 0.0
    verify_s: float = 0.0
    total_s: float = 0.0

    def __add__(self, other: GenerationStats) -> GenerationStats:
        return GenerationStats(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def add_seconds(self, forward_s: float, verify_s: float, draft_s: float) -> None:
        """Adds those of a step, which are all it took."""
        self.forward_s += forward_s
        self.verify_s += verify_s
        self.draft_s += draft_s
        self.total_s += forward_s + verify_s + draft_s

    @property
    def tokens_per_forward(self) -> float:
        """Over all passes; 1.0 for plain decoding."""
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted of the drafted nodes."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_accepted(self) -> float:
        """Accepted nodes a step, steps without a draft included."""
        return self.accepted / self.steps if self.steps else 0.0

    @property
    def coverage(self) -> float:
        """Steps with a draft of all steps."""
        return self.steps_with_draft / self.steps if self.steps else 0.0

    @property
    def retrieval_ms(self) -> float:
        """Mean wait for the retriever, in milliseconds a call."""
        return 1000.0 * self.retrieval_s / self.retrievals if self.retrievals else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Wall clock, the prompt's pass included."""
        return self.tokens / self.total_s if self.total_s else 0.0

    def to_dict(self) -> dict[str, float]:
        """Counts, seconds and measures by name, for JSON."""
        measures = (
            "tokens_per_forward",
            "acceptance_rate",
            "mean_accepted",
            "coverage",
            "retrieval_ms",
            "tokens_per_second",
        )
        names = [f.name for f in fields(self)] + list(measures)
        return {name: getattr(self, name) for name in names}
