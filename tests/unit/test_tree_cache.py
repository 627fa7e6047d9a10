"""The cache keeps each sequence's text and accepted path, whatever passes over drafts left in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st

from decoder_client.cache import TreeCache

LAYERS, HEADS = 3, 2
WIDTHS = 3, 3, 5  # layers of a shape lie together, others do not


def rows_of(marks: Sequence[Sequence[int]], layer: int) -> torch.Tensor:
    """[B, HEADS, T, width]: rows that tell their mark, layer, head and column."""
    base = torch.tensor(marks, dtype=torch.float32)[:, None, :, None] * 100 + layer * 10
    return base + torch.arange(HEADS)[None, :, None, None] + torch.arange(WIDTHS[layer])[None, None, None, :] / 10


def append(cache: TreeCache, marks: Sequence[Sequence[int]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [cache.update(rows_of(marks, layer), -rows_of(marks, layer), layer) for layer in range(LAYERS)]


def holds(seen: list[tuple[torch.Tensor, torch.Tensor]], sequence: int, begin: int, marks: Sequence[int]) -> bool:
    """Whether these marks stand at `begin` of a sequence, in every layer."""
    part = slice(begin, begin + len(marks))
    return all(
        torch.equal(keys[sequence, :, part], rows_of([marks], layer)[0])
        and torch.equal(values[sequence, :, part], -rows_of([marks], layer)[0])
        for layer, (keys, values) in enumerate(seen)
    )


class Marks:
    """Gives every row another mark."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, count: int) -> list[int]:
        self._next += count
        return list(range(self._next - count, self._next))


def filled(marks: Marks, length: int) -> tuple[TreeCache, list[int]]:
    cache, text = TreeCache(), marks(length)
    append(cache, [text])
    cache.fill(length)
    return cache, text


@dataclass(frozen=True)
class Pass:
    """One pass over B sequences.

    Attributes:
        drafted: nodes of the largest draft.
        accepted: of each sequence, ascending as on a path; None for a pass that is dropped altogether.
        stay: the sequences that go on.
    """

    drafted: int
    accepted: list[list[int]] | None
    stay: list[int]


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[int], list[Pass]]:
    """Lengths of some prompts, and passes over them."""
    prompts = draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    alive, passes = len(prompts), []
    for _ in range(draw(st.integers(0, 10))):
        drafted = draw(st.integers(0, 40))
        path = st.sets(st.integers(0, max(drafted - 1, 0)), max_size=drafted).map(sorted)
        accepted = draw(st.none() | st.lists(path, min_size=alive, max_size=alive))
        stay = draw(st.sets(st.integers(0, alive - 1), min_size=1).map(sorted) | st.just(list(range(alive))))
        passes.append(Pass(drafted, accepted, stay))
        alive = len(stay)
    return prompts, passes


@given(runs())
def test_the_cache_holds_the_texts(run: tuple[list[int], list[Pass]]) -> None:
    prompts, passes = run
    marks = Marks()
    caches, texts = map(list, zip(*(filled(marks, length) for length in prompts), strict=True))
    cache = TreeCache.join(caches)
    for one in passes:
        begin = max(map(len, texts))
        new = [marks(1 + one.drafted) for _ in texts]
        seen = append(cache, new)
        for sequence, (text, rows) in enumerate(zip(texts, new, strict=True)):
            assert holds(seen, sequence, 0, text)
            assert holds(seen, sequence, begin, rows)
        if one.accepted is None:
            cache.forget_pass()
        else:
            cache.keep(one.accepted)
            for text, rows, path in zip(texts, new, one.accepted, strict=True):
                text += [rows[0], *(rows[1 + node] for node in path)]
        cache.select(one.stay)
        texts = [texts[sequence] for sequence in one.stay]
        assert cache.lengths == list(map(len, texts))
        assert cache.get_seq_length() == max(cache.lengths)
    seen = append(cache, [marks(1) for _ in texts])
    assert all(holds(seen, sequence, 0, text) for sequence, text in enumerate(texts))


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.data())
def test_sequences_may_be_selected_in_any_order(lengths: list[int], data: st.DataObject) -> None:
    marks = Marks()
    caches, texts = map(list, zip(*(filled(marks, length) for length in lengths), strict=True))
    cache = TreeCache.join(caches)
    order = data.draw(st.permutations(range(len(lengths))))
    cache.select(order)
    seen = append(cache, [marks(1) for _ in order])
    assert all(holds(seen, place, 0, texts[sequence]) for place, sequence in enumerate(order))


@given(st.lists(st.integers(1, 300), min_size=2, max_size=4))
def test_rows_that_are_nobodys_hold_numbers(lengths: list[int]) -> None:
    """A mask gives them no weight, but no weight times NaN is NaN."""
    marks = Marks()
    cache = TreeCache.join([filled(marks, length)[0] for length in lengths])
    for keys, values in append(cache, [[0]] * len(lengths)):
        assert keys.isfinite().all()
        assert values.isfinite().all()


def test_caches_that_are_joined_are_left_alone() -> None:
    marks = Marks()
    (first, text), (second, _) = filled(marks, 3), filled(marks, 5)
    joint = TreeCache.join([first, second])
    append(joint, [marks(4)] * 2)
    joint.keep([[0, 2], [1]])
    assert (joint.lengths, first.lengths) == ([6, 7], [3])
    assert holds(append(first, [marks(1)]), 0, 0, text)


def test_an_empty_cache_forgets_a_pass_that_never_came() -> None:
    cache = TreeCache()
    cache.forget_pass()
    assert (cache.lengths, cache.get_seq_length()) == ([0], 0)
