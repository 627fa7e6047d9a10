"""What an evaluation found: the one record that `bench --json` and `replay --json` write and the reports read.

A record is versioned and complete: measures with their intervals, the counts of every answer they come from, and what
they were measured on and with. Knows how a record looks on disk; not how anything in it is measured or shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TypeAlias

from decoder_client.errors import DecoderError
from decoder_client.evaluation.records import RecordError, from_json, to_json
from decoder_client.stats import GenerationStats

VERSION = 1

BENCH = "bench"
"""`Results.kind` of real decoding: seconds are wall clock."""

REPLAY = "replay"
"""`Results.kind` of known answers walked through drafters: draft seconds are wall clock, forward seconds come from a
cost curve (zero without one), and so does every speed-up."""

PLAIN = "plain"
"""The method that drafts nothing; speed-ups compare with it."""

MODEL = "model"
"""`SampleToken.origin` of a token that no draft held: the target's own."""

NEAR_TIE = 1e-4
"""Two logits this close may change places between passes of different shapes, by float32 rounding alone."""

Setting: TypeAlias = bool | int | float | str | tuple[str, ...] | tuple[int, ...] | None
"""The value of a command's option, as parsed."""


class ResultsError(DecoderError):
    """A file does not hold results that this version reads."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio of sums over all prompts, and its 95% interval by bootstrap over prompts (low = high for one prompt)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Quartiles:
    """Of single answers: first quartile, median, third quartile."""

    first: float
    median: float
    third: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an output leaves plain decoding's.

    Attributes:
        position: in the answer.
        gap: between the target's two best logits there; at most `NEAR_TIE` for a mere rounding difference.
    """

    position: int
    gap: float

    @property
    def is_near_tie(self) -> bool:
        """Whether float32 rounding explains it."""
        return self.gap <= NEAR_TIE


@dataclass(frozen=True, slots=True)
class Promises:
    """Draft nodes of about the same promised probability of acceptance.

    Attributes:
        nodes: how many.
        promised: the sum of their probabilities.
        accepted: how many of them were.
    """

    nodes: int
    promised: float
    accepted: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer by one method.

    Attributes:
        prompt: name.
        repeat: from 0.
        stats: what it cost. In a replay with a cost curve `forward_s` is the curve's and `total_s` = forward_s +
            draft_s; without one both are 0.
        offered_by_depth: element d - 1: steps whose draft was at least d deep.
        accepted_by_depth: element d - 1: steps in which at least d nodes were accepted; as long as the former.
        tokens: of the answer; None in a replay, where they are known beforehand.
        difference: from plain decoding; None if identical, or if there is nothing to compare with.
        promises: draft nodes by tenths of the probability that the method gave them; empty if it gives none.
    """

    prompt: str
    repeat: int
    stats: GenerationStats
    offered_by_depth: tuple[int, ...]
    accepted_by_depth: tuple[int, ...]
    tokens: tuple[int, ...] | None = None
    difference: Difference | None = None
    promises: tuple[Promises, ...] = ()


@dataclass(frozen=True, slots=True)
class MethodResult:
    """One method at one node budget, over all answers.

    Attributes:
        label: unique, for tables: the method's name, with `@nodes` where the budget is not its own.
        method: name.
        nodes: draft nodes allowed a step; 0 where the method has a budget of its own, or drafts nothing.
        tokens_per_forward: over all passes, the prompt's included; 1 for plain decoding.
        acceptance_rate: accepted / drafted nodes.
        mean_accepted: accepted nodes a step, all steps.
        mean_drafted: drafted nodes a step, all steps.
        coverage: steps with a draft / steps.
        speedup: seconds of plain decoding / of this method, over all answers; None if unknown.
        speedups: of single answers; None if unknown.
        compared: answers compared with plain decoding's.
        identical: answers equal to plain decoding's.
        answers: all of them, prompts in order, repeats after each other.
    """

    label: str
    method: str
    nodes: int
    tokens_per_forward: Interval
    acceptance_rate: Interval
    mean_accepted: Interval
    mean_drafted: Interval
    coverage: Interval
    speedup: Interval | None
    speedups: Quartiles | None
    compared: int
    identical: int
    answers: tuple[Answer, ...]

    @property
    def total(self) -> GenerationStats:
        """The sum over all answers; `forward_s`, `retrieval_s` (part of `draft_s`), `draft_s` and `verify_s` break
        its `total_s` down."""
        return reduce(GenerationStats.__add__, (answer.stats for answer in self.answers), GenerationStats())

    @property
    def near_ties(self) -> int:
        """Answers whose difference from plain decoding float32 rounding explains."""
        return sum(answer.difference is not None and answer.difference.is_near_tie for answer in self.answers)

    @property
    def promises(self) -> tuple[Promises, ...]:
        """Over all answers, see `Answer`."""
        rows = [answer.promises for answer in self.answers if answer.promises]
        return tuple(
            Promises(
                sum(one.nodes for one in tenth), sum(one.promised for one in tenth), sum(one.accepted for one in tenth)
            )
            for tenth in zip(*rows, strict=True)
        )

    @property
    def offered_by_depth(self) -> tuple[int, ...]:
        """Over all answers, see `Answer`."""
        return _summed([answer.offered_by_depth for answer in self.answers])

    @property
    def accepted_by_depth(self) -> tuple[int, ...]:
        """Over all answers, see `Answer`."""
        return _summed([answer.accepted_by_depth for answer in self.answers])


def _summed(rows: list[tuple[int, ...]]) -> tuple[int, ...]:
    width = max(map(len, rows), default=0)
    return tuple(sum(row[at] for row in rows if at < len(row)) for at in range(width))


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many times better one method is than another on the same prompts (paired bootstrap over prompts).

    Attributes:
        label: the better one, it is hoped.
        other: label of the method it is compared with.
        tokens_per_forward: label's / other's.
        speed: other's seconds / label's; None if seconds are unknown.
    """

    label: str
    other: str
    tokens_per_forward: Interval
    speed: Interval | None


@dataclass(frozen=True, slots=True)
class SampleToken:
    """One token of a sample answer.

    Attributes:
        text: as it adds to the answer's text; may be empty or hold line breaks.
        origin: the source of the draft node that was accepted (as "dense" or "context"), or `MODEL`.
        step: number of the forward pass that confirmed it; 0 is the prompt's.
    """

    text: str
    origin: str
    step: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer by one method, token by token."""

    prompt: str
    label: str
    tokens: tuple[SampleToken, ...]


@dataclass(frozen=True, slots=True)
class CostPoint:
    """A forward pass of this many tokens takes this long."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """The datastore behind the methods that use one."""

    build_id: str
    entries: int


@dataclass(frozen=True, slots=True)
class Environment:
    """What the measurements were made on and with.

    Attributes:
        argv: the command line as typed, the program without its folder.
        created: ISO time, UTC.
        python: version.
        platform: operating system.
        processor: name.
        accelerator: name of the GPU; "" without one.
        cpu_count: cores this process may use.
        torch_threads: of the model.
        variables: those of the environment that matter to times.
        versions: of installed packages.
    """

    argv: tuple[str, ...]
    created: str
    python: str
    platform: str
    processor: str
    accelerator: str
    cpu_count: int
    torch_threads: int
    variables: Mapping[str, str]
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Results:
    """Everything an evaluation found.

    Attributes:
        kind: `BENCH` or `REPLAY`.
        model: the target's name.
        weights_fingerprint: of the target.
        prompts: names, in order.
        store: None if no method uses one.
        settings: the command's options.
        environment: see there.
        methods: in the order asked for.
        comparisons: of ours (or the last method, without ours) at each budget with every method of others.
        ablations: of the same with every other variant of ours, as without one of its sources.
        samples: for a picture; may be empty.
        cost_curve: rising numbers of tokens; empty if none was given or measured.
        notes: sentences a reader must know, as of baselines that deviate from their publication.
        version: of this record.
    """

    kind: str
    model: str
    weights_fingerprint: str
    prompts: tuple[str, ...]
    store: StoreInfo | None
    settings: Mapping[str, Setting]
    environment: Environment
    methods: tuple[MethodResult, ...]
    comparisons: tuple[Comparison, ...] = ()
    ablations: tuple[Comparison, ...] = ()
    samples: tuple[Sample, ...] = ()
    cost_curve: tuple[CostPoint, ...] = ()
    notes: tuple[str, ...] = ()
    version: int = VERSION

    def to_json(self) -> str:
        """One JSON object; ValueError if a number is not finite."""
        return json.dumps(to_json(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Results:
        """Reads what `to_json` wrote.

        Raises:
            ResultsError: not such a record, or of another version.
        """
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ResultsError(f"These are no results: not JSON ({error}). Name a file written with --json.") from error
        version = content.get("version") if isinstance(content, dict) else None
        if version != VERSION:
            raise ResultsError(
                f"These results have version {version!r}; this program reads version {VERSION}. Measure again with it."
            )
        try:
            return from_json(cls, content)
        except RecordError as error:
            raise ResultsError(f"These are no results: {error}. Name a file written with --json.") from error

    @classmethod
    def load(cls, path: Path) -> Results:
        """Reads a file; raises ResultsError that names it."""
        try:
            return cls.from_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ResultsError(f"Cannot read the results in {str(path)!r}: {error}.") from error
        except ResultsError as error:
            raise ResultsError(f"{str(path)!r}: {error}") from error
