"""The cache keeps the text and the accepted path, whatever passes over drafts left in it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from decoder_client.cache import TreeCache

LAYERS, HEADS, WIDTH = 2, 2, 3


def rows_of(marks: list[int], layer: int) -> torch.Tensor:
    """[1, HEADS, T, WIDTH]: rows that tell their mark, layer, head and column."""
    base = torch.tensor(marks, dtype=torch.float32)[None, None, :, None] * 100 + layer * 10
    return base + torch.arange(HEADS)[None, :, None, None] + torch.arange(WIDTH)[None, None, None, :] / 10


def append(cache: TreeCache, marks: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [cache.update(rows_of(marks, layer), -rows_of(marks, layer), layer) for layer in range(LAYERS)]


def holds(seen: list[tuple[torch.Tensor, torch.Tensor]], marks: list[int]) -> bool:
    return all(
        torch.equal(keys, rows_of(marks, layer)) and torch.equal(values, -rows_of(marks, layer))
        for layer, (keys, values) in enumerate(seen)
    )


# One pass: draft nodes, and which of them (ascending, as on a path) are accepted.
passes = st.integers(0, 40).flatmap(
    lambda drafted: st.tuples(
        st.just(drafted), st.sets(st.integers(0, max(drafted - 1, 0)), max_size=drafted).map(sorted)
    )
)


@given(st.integers(1, 400), st.lists(passes, max_size=12))
def test_the_cache_holds_the_text(prompt: int, steps: list[tuple[int, list[int]]]) -> None:
    cache = TreeCache()
    text = list(range(prompt))
    append(cache, text)
    mark = prompt
    for drafted, nodes in steps:
        new = list(range(mark, mark + 1 + drafted))
        mark += len(new)
        assert holds(append(cache, new), text + new)
        cache.keep(len(text), nodes)
        text += [new[0], *(new[1 + node] for node in nodes)]
        assert cache.get_seq_length() == len(text)
    assert holds(append(cache, [mark]), [*text, mark])
