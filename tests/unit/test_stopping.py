"""Stop strings end an answer at the token that completes them, however tokens cut the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoder_client.stopping import StopStrings

alphabet = "abé"


@given(
    st.lists(st.text(alphabet, max_size=3), max_size=30),
    st.lists(st.text(alphabet, min_size=1, max_size=4), max_size=3),
)
def test_the_first_token_that_completes_a_stop_string_ends_the_answer(pieces: list[str], stops: list[str]) -> None:
    # A tokenizer whose empty tokens are few in a row, as special tokens are.
    pieces = [piece for piece in pieces if piece]
    watch = StopStrings(stops, lambda tokens: "".join(pieces[token] for token in tokens))
    ended = next((i for i in range(len(pieces)) if watch.add(i)), None)
    texts = ["".join(pieces[: i + 1]) for i in range(len(pieces))]
    assert ended == next((i for i, text in enumerate(texts) if any(stop in text for stop in stops)), None)
    assert watch.stopped == (ended is not None)
    if ended is not None:
        text = texts[ended]
        assert watch.cut(text) == text[: min(text.index(stop) for stop in stops if stop in text)]


def test_without_stop_strings_nothing_is_decoded() -> None:
    def decode(_tokens: object) -> str:
        raise AssertionError

    watch = StopStrings([], decode)
    assert not watch.add(1)
    assert watch.cut("all of it") == "all of it"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""], str)
