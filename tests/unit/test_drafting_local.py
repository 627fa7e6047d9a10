"""Earlier places of a text, found by index, against a search through all of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoder_client.drafting.local import MAX_MATCH, LocalIndex
from dresd.draft_tree import PAD

DIMS = 3
texts = st.lists(st.integers(0, 2), min_size=1, max_size=60)


def match_of(text: list[int], place: int) -> int:
    """How many tokens before a place equal those before the newest token."""
    length = 0
    while length < min(MAX_MATCH, place) and text[place - 1 - length] == text[-2 - length]:
        length += 1
    return length


def continuation(text: list[int], place: int, depth: int) -> list[int]:
    """What follows a place, the text going on from there as if it repeated itself."""
    growing = list(text)
    for _ in range(depth):
        growing.append(growing[len(growing) - (len(text) - 1 - place)])
    return growing[len(text) :]


def indexed(text: list[int], cuts: list[int], keys: np.ndarray | None = None) -> LocalIndex:
    """An index that took the text in several pieces, with the keys of all positions but the last."""
    index = LocalIndex()
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        if begin < end:
            index.extend(text[begin:end], None if keys is None else keys[max(0, begin - 1) : end - 1])
    return index


def some_keys(count: int, seed: int = 0) -> np.ndarray:
    keys = np.random.default_rng(seed).normal(size=(count, DIMS)).astype(np.float32)
    return keys / np.linalg.norm(keys, axis=1, keepdims=True)


cuts_of = st.sets(st.integers(1, 59), max_size=5).map(sorted)


@settings(max_examples=300)
@given(texts, cuts_of, st.integers(1, 6), st.integers(1, 20), st.booleans())
def test_places_are_those_of_a_search(
    text: list[int], cuts: list[int], max_places: int, depth: int, with_keys: bool
) -> None:
    keys = some_keys(len(text)) if with_keys else None
    index = indexed(text, [cut for cut in cuts if cut < len(text)], keys)
    newest = len(text) - 1
    everywhere = [place for place in range(newest) if text[place] == text[newest]]
    found = index.places(max_places=max_places, depth=depth)
    if found is None:
        assert everywhere == []
        return
    positions = [newest - age for age in found.ages.tolist()]
    assert set(positions) <= set(everywhere)
    assert len(set(positions)) == len(positions) == min(max_places, len(everywhere))
    assert found.matches.tolist() == [match_of(text, place) for place in positions]
    assert found.paths.tolist() == [continuation(text, place, depth) for place in positions]
    # The index knows runs of 1, 2, 4 and 8 tokens, the place's own included.
    classes = {place: sum(match_of(text, place) + 1 >= run for run in (2, 4, 8)) for place in everywhere}
    best = sorted(everywhere, key=lambda place: (-classes[place], -place))
    assert positions == best[:max_places]
    if keys is None or newest == 0:
        assert found.similarities is None
    else:
        wanted = [0.0 if place == 0 else float(keys[place - 1] @ keys[newest - 1]) for place in positions]
        assert found.similarities is not None
        np.testing.assert_allclose(found.similarities, wanted, atol=1e-6)


@given(texts, st.integers(0, 30))
def test_the_left_context_is_what_stands_before_the_newest_token(text: list[int], width: int) -> None:
    before = text[-2::-1] if len(text) > 1 else []
    expected = (before + [PAD] * width)[:width]
    context = indexed(text, []).left_context(width)
    assert context.dtype == np.int32
    assert context.tolist() == expected


@given(texts)
def test_the_last_two_tokens_are_told(text: list[int]) -> None:
    assert indexed(text, []).last_two == (text[-2] if len(text) > 1 else -1, text[-1])


@given(texts, cuts_of)
def test_the_newest_key_predicted_the_newest_token(text: list[int], cuts: list[int]) -> None:
    keys = some_keys(len(text))
    index = indexed(text, [cut for cut in cuts if cut < len(text)], keys)
    assert index.length == len(text)
    if len(text) == 1:
        assert index.key is None
    else:
        assert index.key is not None
        assert index.key.tolist() == keys[len(text) - 2].tolist()


def test_long_texts_keep_their_keys_and_places() -> None:
    """Across every growth of the buffers."""
    random = np.random.default_rng(3)
    text, keys = random.integers(40, size=5000).tolist(), some_keys(5000)
    index = indexed(text, sorted(set(random.integers(1, 4999, size=700).tolist())), keys)
    found = index.places(max_places=50, depth=9)
    assert found is not None
    positions = [4999 - age for age in found.ages.tolist()]
    assert positions == sorted(positions, key=lambda place: (-(match_of(text, place) > 0), -place))
    assert found.paths.tolist() == [continuation(text, place, 9) for place in positions]
    assert found.similarities is not None
    np.testing.assert_allclose(found.similarities, [keys[p - 1] @ keys[4998] for p in positions], atol=1e-6)


@dataclass
class Growth:
    """A text that grows, with keys that may be unknown, or of another kind from some place on."""

    index: LocalIndex
    text: list[int]

    def add(self, tokens: list[int], keys: np.ndarray | None) -> None:
        self.index.extend(tokens, keys)
        self.text += tokens


@pytest.mark.parametrize("dims", [DIMS, DIMS + 4])
def test_keys_of_another_kind_do_not_meet_those_before(dims: int) -> None:
    growth = Growth(LocalIndex(), [])
    growth.add([1, 2, 1, 2, 1], some_keys(4))
    growth.index.forget_keys()
    assert growth.index.key is None
    unknown = growth.index.places(max_places=9, depth=2)
    assert unknown is not None
    assert unknown.similarities is None
    new = np.eye(dims, dtype=np.float32)[[0, 0]]
    growth.add([2, 1], new)
    found = growth.index.places(max_places=9, depth=2)
    assert found is not None
    assert found.similarities is not None
    # Of the earlier places of 1, at 4, 2 and 0, none has a key of the new kind: that of 3 predicted 4.
    assert dict(zip((6 - found.ages).tolist(), found.similarities.tolist(), strict=True)) == {4: 0.0, 2: 0.0, 0: 0.0}
    growth.add([2, 1], new)
    later = growth.index.places(max_places=9, depth=2)
    assert later is not None
    assert later.similarities is not None
    found_at = dict(zip((8 - later.ages).tolist(), later.similarities.tolist(), strict=True))
    assert found_at == {6: 1.0, 4: 0.0, 2: 0.0, 0: 0.0}


def test_a_text_of_one_token_has_no_earlier_place() -> None:
    assert indexed([7], []).places(max_places=4, depth=4) is None
    assert LocalIndex().places(max_places=4, depth=4) is None
