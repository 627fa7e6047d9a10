"""SuffixDecoding around its native trees: which trees hold what, which draft wins, how deep it may be."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from decoder_client.cache_folder import cache_folder
from decoder_client.drafting.drafter import Outcome
from decoder_client.evaluation.baselines.suffix_decoding import (
    BEST,
    MAX_TREE_DEPTH,
    SuffixDecoding,
    SuffixSettings,
)
from decoder_client.evaluation.baselines.suffix_extension import extension_folder, load_extension
from dresd.draft_tree import DraftTree
from tests.support.evaluation import paths_in, request_of


@dataclass
class FakeDraft:
    token_ids: list[int]
    parents: list[int]
    probs: list[float]
    score: float


@dataclass
class FakeTree:
    """Drafts what the test put into it."""

    depth: int
    sequences: dict[int, list[int]] = field(default_factory=dict)
    asked: list[tuple[object, ...]] = field(default_factory=list)
    draft: FakeDraft = field(default_factory=lambda: FakeDraft([], [], [], 0.0))

    def extend(self, sequence: int, tokens: list[int], /) -> None:
        self.sequences.setdefault(sequence, []).extend(tokens)

    def speculate(self, *arguments: object) -> FakeDraft:
        self.asked.append(arguments)
        return self.draft


def made(answers: list[list[int]], settings: SuffixSettings = BEST) -> tuple[SuffixDecoding, list[FakeTree]]:
    """A drafter and its trees: the store's first, then one a text."""
    grown: list[FakeTree] = []

    def new_tree(depth: int, /) -> FakeTree:
        grown.append(FakeTree(depth))
        return grown[-1]

    return SuffixDecoding(new_tree, answers, settings), grown


def told(text: list[int], count: int) -> Outcome:
    return Outcome(text, count, DraftTree.empty(), [], request_of([1]).state[None], lambda **_: None)


def test_answers_go_into_both_trees_and_prompts_into_the_local_one() -> None:
    drafter, grown = made([[1, 2], [3]])
    first, second = drafter.start([7, 8]), drafter.start([9])
    drafter.observe(first, told([7, 8, 4], 1))
    drafter.observe(second, told([9, 5], 1))
    drafter.observe(first, told([7, 8, 4, 5, 6], 2))
    store, one, other = grown
    assert list(store.sequences.values())[:2] == [[1, 2], [3]]
    assert sorted(list(store.sequences.values())[2:]) == [[4, 5, 6], [5]]
    assert (one.sequences, other.sequences) == ({0: [7, 8, 4, 5, 6]}, {0: [9, 5]})
    assert {tree.depth for tree in grown} == {MAX_TREE_DEPTH}


@pytest.mark.parametrize(("local", "stored", "winner"), [(1.0, 0.5, 1), (0.5, 1.0, 2), (0.7, 0.7, 1)])
def test_the_draft_of_the_higher_score_wins_the_local_one_if_equal(local: float, stored: float, winner: int) -> None:
    drafter, grown = made([])
    session = drafter.start([1])
    grown[0].draft = FakeDraft([2], [-1], [0.5], stored)
    grown[1].draft = FakeDraft([1], [-1], [0.5], local)
    assert drafter.propose([request_of([1], session)])[0].tokens.tolist() == [winner]


def test_settings_and_limits_reach_the_trees_and_deep_nodes_are_cut() -> None:
    drafter, grown = made([], SuffixSettings(2.0, 0.25, as_tree=True))
    session = drafter.start([1])
    grown[0].draft = FakeDraft([4, 5, 6, 7], [-1, 0, 0, 1], [0.9, 0.5, 0.4, 0.3], 2.1)
    text = list(range(100))
    (tree,) = drafter.propose([request_of(text, session, nodes=9, depth=2)])
    assert paths_in(tree) == {(4,), (4, 5), (4, 6)}
    assert tree.masses[:, 0].tolist() == [0.9, 0.5, 0.4]
    assert grown[0].asked == grown[1].asked == [(text[-64:], 9, 2.0, 0.0, 0.25, True)]


def test_without_the_extension_one_sentence_says_what_to_run(tmp_path: Path) -> None:
    # In a process of its own: an extension once loaded stays.
    program = "import sys, pathlib; from decoder_client.evaluation.baselines.suffix_extension import load_extension; "
    program += "load_extension(pathlib.Path(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "MissingPackageError: Method suffix-decoding needs" in done.stderr
    assert done.stderr.strip().endswith("Run: python scripts/build_suffix_decoding.py")


@pytest.mark.skipif(
    not extension_folder(cache_folder()).exists(), reason="run scripts/build_suffix_decoding.py for this one"
)
def test_the_native_trees_draft_what_followed() -> None:
    new_tree = load_extension(cache_folder())
    answers = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 4]]
    tree_drafter, path_drafter = (SuffixDecoding(new_tree, answers, one) for one in (BEST, SuffixSettings()))
    session = tree_drafter.start([9, 1, 2])
    (tree,) = tree_drafter.propose([request_of([9, 1, 2], session)])
    assert paths_in(tree) == {(3,), (3, 4), (3, 5)}
    (tree,) = path_drafter.propose([request_of([9, 1, 2], path_drafter.start([9, 1, 2]))])
    assert paths_in(tree) == {(3,), (3, 4)}
    # An answer decoded once is drafted the next time.
    tree_drafter.observe(session, told([9, 1, 2, 7, 8, 6], 3))
    (tree,) = tree_drafter.propose([request_of([7, 8], tree_drafter.start([7, 8]))])
    assert paths_in(tree) == {(6,)}
