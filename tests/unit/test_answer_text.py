"""Stop strings end an answer at the token that completes them, and what is shown of it is never taken back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE, WordLevel
from transformers import PreTrainedTokenizerFast

from decoder_client.answer_text import AnswerText
from decoder_client.errors import SettingError
from tests.support.models import tiny_tokenizer

alphabet = "abé"


def _byte_fallback() -> PreTrainedTokenizerFast:
    """As in Llama 2: a few words, a space in front of them, and a token for each byte of everything else."""
    words = ["<unk>", "▁a", "b", "é", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(BPE(vocab={word: i for i, word in enumerate(words)}, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def _cleaning() -> PreTrainedTokenizerFast:
    """One whose text loses the spaces before punctuation, so that a token shortens the text before it."""
    words = ["<unk>", "do", " ", " n", "'t", "'", " '", " .", ".", "s", " ?"]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=True)


TOKENIZERS = {"byte level": tiny_tokenizer(), "byte fallback": _byte_fallback(), "cleaning": _cleaning()}
TEXTS = ["a\n😀", "中文", "aé", "a", "\n\n", "b", "do n't", " '"]


def _tokens(tokenizer: PreTrainedTokenizerFast) -> st.SearchStrategy[list[int]]:
    """Mostly what the tokenizer makes of texts, so that characters are whole, and parts of it."""
    whole = [ids for text in TEXTS if (ids := tokenizer.encode(text, add_special_tokens=False))]
    parts = st.one_of(st.sampled_from(whole), st.integers(0, len(tokenizer) - 1).map(lambda token: [token]))
    return st.builds(
        lambda pieces, cut: [token for piece in pieces for token in piece][: -cut or None],
        st.lists(parts, max_size=8),
        st.integers(0, 3),
    )


def _answer(
    tokenizer: PreTrainedTokenizerFast, tokens: Sequence[int], stops: Sequence[str]
) -> tuple[str, list[str], int]:
    """The final text, the pieces shown, and how many tokens were taken."""

    def decode(some: Sequence[int]) -> str:
        return str(tokenizer.decode(list(some), skip_special_tokens=True))

    pieces: list[str] = []
    answer = AnswerText(decode, stops, pieces.append, tokenizer=tokenizer)
    taken = next((i for i, token in enumerate(tokens, start=1) if answer.add(token)), len(tokens))
    text = answer.finish()
    whole = decode(tokens[:taken])
    assert text == min((whole[: whole.index(stop)] for stop in stops if stop in whole), key=len, default=whole)
    assert answer.stopped == any(stop in whole for stop in stops)
    return text, pieces, taken


@pytest.mark.parametrize("name", TOKENIZERS)
@given(st.data())
def test_what_is_shown_is_the_text(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = data.draw(_tokens(tokenizer))
    whole = str(tokenizer.decode(tokens, skip_special_tokens=True))
    somewhere = st.integers(0, max(0, len(whole) - 1))
    # Of the text itself, so that they are found, and of its letters in another order, so that they nearly are.
    stop = st.one_of(
        st.builds(lambda at, length: whole[at : at + length], somewhere, st.integers(1, 4)),
        st.text(whole or "a", max_size=4),
    )
    stops = [one for one in data.draw(st.lists(stop, max_size=3)) if one]
    text, pieces, _ = _answer(tokenizer, tokens, stops)
    assert "".join(pieces) == text
    assert all(pieces)


def test_text_is_shown_as_soon_as_it_is_certain() -> None:
    tokenizer = tiny_tokenizer()
    tokens = tokenizer.encode("né=a=b", add_special_tokens=False)
    assert _answer(tokenizer, tokens, ["=b"])[1] == ["n", "é", "=a"]
    assert _answer(tokenizer, tokens, [])[1] == ["n", "é", "=", "a", "=", "b"]


@given(
    st.lists(st.text(alphabet, min_size=1, max_size=3), max_size=30),
    st.lists(st.text(alphabet, min_size=1, max_size=4), max_size=3),
)
def test_the_first_token_that_completes_a_stop_string_ends_the_answer(pieces: list[str], stops: list[str]) -> None:
    watch = AnswerText(lambda tokens: "".join(pieces[token] for token in tokens), stops)
    ended = next((i for i in range(len(pieces)) if watch.add(i)), None)
    texts = ["".join(pieces[: i + 1]) for i in range(len(pieces))]
    assert ended == next((i for i, text in enumerate(texts) if any(stop in text for stop in stops)), None)
    assert watch.stopped == (ended is not None)
    if ended is not None:
        text = texts[ended]
        assert watch.finish() == text[: min(text.index(stop) for stop in stops if stop in text)]


def test_while_nobody_watches_nothing_is_decoded() -> None:
    def decode(_tokens: object) -> str:
        raise AssertionError

    watch = AnswerText(decode)
    assert not watch.add(1)


@pytest.mark.parametrize("stops", [[""], ["a", ""], [None], [3]])
def test_a_stop_string_that_cannot_be_is_refused(stops: list[str]) -> None:
    with pytest.raises(SettingError, match="stop string"):
        AnswerText(str, stops)
