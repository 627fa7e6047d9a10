"""The methods an evaluation can compare: names for drafters that share one decode loop, or one replay.

Knows which drafter a name stands for and what it needs; not how it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from decoder_client.drafting import (
    CostBudget,
    Drafter,
    FixedBudget,
    MixtureConfig,
    MixtureDrafter,
    NodeBudget,
    NoDrafter,
    RetrievalConfig,
    any_drafter,
)
from decoder_client.drafting.growth import ORIGINS
from decoder_client.evaluation.baselines.dresd_paper import DRAFT_TOKENS as PAPER_TOKENS
from decoder_client.evaluation.baselines.dresd_paper import NUM_DRAFTS, DresdPaper
from decoder_client.evaluation.baselines.one_kind import NEIGHBORS, OneKind
from decoder_client.evaluation.baselines.prompt_lookup import DRAFT_TOKENS, PromptLookup
from decoder_client.evaluation.baselines.rest import MAX_NODES, Rest
from decoder_client.evaluation.baselines.suffix_decoding import BEST, WIDE, SuffixDecoding, SuffixSettings
from decoder_client.evaluation.baselines.token_recycling import TEMPLATE_NODES, TokenRecycling
from decoder_client.evaluation.recording import RecordingDrafter
from decoder_client.evaluation.replay import VerifiesMore
from decoder_client.evaluation.resources import MethodError, Resources
from decoder_client.evaluation.results import PLAIN
from decoder_client.loop import DraftLimits

OWN_BUDGET = 0
"""Budget of a method that heeds none."""

Session = TypeVar("Session")


@dataclass(frozen=True, slots=True)
class Method:
    """A method by name and its node budget, `OWN_BUDGET` for none."""

    name: str
    nodes: int

    @property
    def label(self) -> str:
        """For tables."""
        return self.name if self.nodes == OWN_BUDGET else f"{self.name}@{self.nodes}"


@dataclass(frozen=True, slots=True)
class Watched:
    """A drafter of its own for one run, what it remembers of earlier answers included.

    Attributes:
        drafter: it, watched.
        counts: how many tokens its published method verifies; None if that is the draft's nodes.
    """

    drafter: RecordingDrafter
    counts: VerifiesMore[object] | None


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a name stands for.

    Attributes:
        help: what it drafts from.
        make: a fresh drafter.
        most_nodes: it never drafts more, whatever the budget; None for as many as the budget allows.
        heeds_budget: whether the budget changes anything.
        needs_retriever: it asks a service where one is named.
        needs_store: it reads the datastore, or the answers in it.
        is_ours: it is this project's drafter, whole or in part.
    """

    help: str
    make: Callable[[Resources], Watched]
    most_nodes: int | None = None
    heeds_budget: bool = True
    needs_retriever: bool = False
    needs_store: bool = False
    is_ours: bool = False


def _watched(drafter: Drafter[Session], *sources: str, promises: bool = False) -> Watched:
    counts = drafter if isinstance(drafter, VerifiesMore) else None
    # As with `any_drafter`: sessions go back only to the drafter that made them.
    watched = RecordingDrafter(any_drafter(drafter), sources, promises=promises)
    return Watched(watched, cast("VerifiesMore[object] | None", counts))


def _suffix_decoding(settings: SuffixSettings) -> Callable[[Resources], Watched]:
    def make(resources: Resources) -> Watched:
        return _watched(SuffixDecoding(resources.new_suffix_tree, resources.answers, settings), "suffix trees")

    return make


def _mixture(resources: Resources, config: MixtureConfig, budget: NodeBudget) -> Watched:
    vocab_size = resources.identity.vocab_size
    drafter = MixtureDrafter(resources.retriever, vocab_size=vocab_size, config=config, budget=budget)
    return _watched(drafter, *ORIGINS, promises=True)


def _dresd(config: MixtureConfig) -> Callable[[Resources], Watched]:
    """Ours with as many nodes as the budget allows."""
    return lambda resources: _mixture(resources, config, FixedBudget())


_KINDS: dict[str, _Kind] = {
    PLAIN: _Kind("nothing", lambda _resources: _watched(NoDrafter(), PLAIN), most_nodes=0, heeds_budget=False),
    "prompt-lookup": _Kind(
        "earlier matches in prompt and answer",
        lambda _resources: _watched(PromptLookup(), "context"),
        most_nodes=DRAFT_TOKENS,
    ),
    "rest": _Kind(
        "the longest suffix found in the store's answers (REST)",
        lambda resources: _watched(Rest(resources.suffix_array), "store"),
        most_nodes=MAX_NODES,
        needs_store=True,
    ),
    "dresd-paper": _Kind(
        "the nearest entries of all, filtered afterwards (DReSD as published)",
        lambda resources: _watched(DresdPaper(resources.paper_lookup), "dense"),
        most_nodes=NUM_DRAFTS * PAPER_TOKENS,
        heeds_budget=False,
        needs_store=True,
    ),
    "suffix-decoding": _Kind(
        "suffix trees of answers and text (SuffixDecoding at its best setting for few nodes)",
        _suffix_decoding(BEST),
        needs_store=True,
    ),
    "suffix-decoding-wide": _Kind(
        "the same at its best setting for many nodes", _suffix_decoding(WIDE), needs_store=True
    ),
    "suffix-decoding-default": _Kind(
        "the same as published by default: one path", _suffix_decoding(SuffixSettings()), needs_store=True
    ),
    "token-recycling": _Kind(
        "the target's own likely next tokens as last seen (Token Recycling)",
        lambda resources: _watched(TokenRecycling(resources.identity.vocab_size), "logits"),
        most_nodes=TEMPLATE_NODES,
    ),
    "dense": _Kind(
        "the datastore's nearest entries of the same next token alone",
        lambda resources: _watched(OneKind(resources.retriever, neighbors=NEIGHBORS), "dense"),
        needs_retriever=True,
    ),
    "sparse": _Kind(
        "the datastore's longest matches of the tokens before the same next token alone",
        lambda resources: _watched(OneKind(resources.retriever, sparse_neighbors=NEIGHBORS), "sparse"),
        needs_retriever=True,
    ),
    "dresd": _Kind("everything this project drafts from", _dresd(MixtureConfig()), needs_retriever=True, is_ours=True),
    "dresd-auto": _Kind(
        "the same with as many nodes as pay for themselves on this device: what the decoder does by default",
        lambda resources: _mixture(resources, MixtureConfig(), CostBudget(resources.cost_curve)),
        most_nodes=DraftLimits().nodes,
        heeds_budget=False,
        needs_retriever=True,
        is_ours=True,
    ),
    "dresd-path": _Kind(
        "the same, one path only", _dresd(MixtureConfig(path=True)), needs_retriever=True, is_ours=True
    ),
    "dresd-no-dense": _Kind(
        "the same without the nearest keys",
        _dresd(MixtureConfig(retrieval=RetrievalConfig(neighbors=0))),
        needs_retriever=True,
        is_ours=True,
    ),
    "dresd-no-sparse": _Kind(
        "the same without matching contexts",
        _dresd(MixtureConfig(retrieval=RetrievalConfig(sparse_neighbors=0))),
        needs_retriever=True,
        is_ours=True,
    ),
    "dresd-no-context": _Kind(
        "the same without the text so far", _dresd(MixtureConfig(places=0)), needs_retriever=True, is_ours=True
    ),
    "dresd-no-table": _Kind(
        "the same without likely next tokens", _dresd(MixtureConfig(tables=False)), needs_retriever=True, is_ours=True
    ),
}

METHODS: dict[str, str] = {name: kind.help for name, kind in _KINDS.items()}
"""Name -> what it drafts from."""


def needs_retriever(name: str) -> bool:
    """Whether the method asks a service where one is named."""
    return _KINDS[name].needs_retriever


def needs_store(name: str) -> bool:
    """Whether the method reads the datastore itself, or the answers in it."""
    return _KINDS[name].needs_store


def is_ours(name: str) -> bool:
    """Whether the method is this project's drafter, whole or in part."""
    return _KINDS[name].is_ours


def max_nodes(method: Method) -> int:
    """What a decode loop must allow the method a step; 0 for plain decoding."""
    return method.nodes if method.nodes != OWN_BUDGET else _KINDS[method.name].most_nodes or 0


def methods(names: Sequence[str], budgets: Sequence[int]) -> list[Method]:
    """Every name with every budget that makes a difference to it, in order.

    Raises:
        MethodError: an unknown name.
    """
    chosen = []
    for name in names:
        if name not in _KINDS:
            raise MethodError(f"Unknown method {name!r}. Choose among {', '.join(METHODS)}.")
        kind = _KINDS[name]
        if not kind.heeds_budget:
            chosen.append(Method(name, OWN_BUDGET))
            continue
        chosen += [Method(name, min(budget, kind.most_nodes or budget)) for budget in sorted(budgets)]
    return list(dict.fromkeys(chosen))


def new_drafter(method: Method, resources: Resources) -> Watched:
    """A fresh drafter.

    Raises:
        MethodError: what the method needs is not named or cannot be used.
        MissingPackageError: what it needs is not installed.
    """
    return _KINDS[method.name].make(resources)
