"""Sampling with drafts is exact: the distribution of sequences is the target's own.

The published multi-draft rule (every draft is verified in a row of its own with samples of its own, the row that
accepts most wins) fails the same test, so the test can fail.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from scipy.stats import chisquare

from decoder_client.sampling import SamplingConfig
from decoder_client.verification import accept
from dresd.draft_tree import ROOT, DraftTree
from tests.support.drafts import tree_of

VOCAB, LENGTH, SAMPLES = 5, 3, 20_000
TEMPERATURE = 0.8
# Hostile drafts: they favour some tokens and miss others, at every depth.
DRAFTS = [[0, 0, 0], [0, 1, 2], [1, 0, 0], [3, 3, 3]]

# The target: any logits after any text of up to two tokens.
_LOGITS = np.random.default_rng(5).normal(scale=1.5, size=(VOCAB + 1, VOCAB + 1, VOCAB)).astype(np.float32)


def logits_after(text: tuple[int, ...]) -> np.ndarray:
    first, second = (*(token + 1 for token in text[-2:]), 0, 0)[:2]
    return _LOGITS[first, second]


def probabilities_after(text: tuple[int, ...]) -> np.ndarray:
    weights = np.exp(logits_after(text).astype(np.float64) / TEMPERATURE)
    return weights / weights.sum()


def p_value(sequences: Counter[tuple[int, ...]]) -> float:
    every = list(itertools.product(range(VOCAB), repeat=LENGTH))
    expected = [np.prod([probabilities_after(s[:i])[s[i]] for i in range(LENGTH)]) for s in every]
    observed = np.array([sequences[s] for s in every], np.float64)
    expected = np.array(expected) / np.sum(expected) * observed.sum()
    # The test's approximation wants five expected in every cell: the rare sequences share one.
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    return float(chisquare(observed, expected).pvalue)


def sequences_of(step: Callable[[tuple[int, ...]], list[int]]) -> Counter[tuple[int, ...]]:
    """Counts the sequences that a step function (text -> next tokens) generates."""
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(SAMPLES):
        text: tuple[int, ...] = ()
        while len(text) < LENGTH:
            text += tuple(step(text))
        counts[text[:LENGTH]] += 1
    return counts


def tree_logits(text: tuple[int, ...], tree: DraftTree) -> torch.Tensor:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
    return torch.from_numpy(np.stack([logits_after(text + path) for path in [(), *paths]]))


def test_sequences_sampled_with_hostile_drafts_have_the_targets_distribution() -> None:
    tree = tree_of(DRAFTS)
    chooser = SamplingConfig(temperature=TEMPERATURE, seed=1).chooser(torch.device("cpu"))
    logits = {
        text: tree_logits(text, tree) for n in range(LENGTH) for text in itertools.product(range(VOCAB), repeat=n)
    }

    def step(text: tuple[int, ...]) -> list[int]:
        chooser.begin(text, 2 * LENGTH, torch.device("cpu"))
        return accept(tree, chooser.choices(logits[text], text)).tokens

    assert p_value(sequences_of(step)) > 0.001


def test_the_published_multi_draft_rule_fails_the_same_test() -> None:
    random = np.random.default_rng(1)
    cumulative = {
        text: probabilities_after(text).cumsum()
        for n in range(2 * LENGTH)
        for text in itertools.product(range(VOCAB), repeat=n)
    }

    def verify(text: tuple[int, ...], draft: list[int]) -> list[int]:
        tokens: list[int] = []
        for drafted in [*draft, None]:
            tokens.append(int(np.searchsorted(cumulative[(*text, *tokens)], random.random() * (1 - 1e-12))))
            if tokens[-1] != drafted:
                break
        return tokens

    def step(text: tuple[int, ...]) -> list[int]:
        return max((verify(text, draft) for draft in DRAFTS), key=len)

    assert p_value(sequences_of(step)) < 1e-6
