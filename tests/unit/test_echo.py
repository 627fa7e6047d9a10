from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever_service.echo import echoed, printable, quoted

anything = st.text(st.characters(exclude_categories=[]))


@given(anything)
def test_whatever_was_sent_can_be_shown_in_one_line(text: str):
    for shown in (printable(text), echoed(text), quoted(text)):
        shown.encode()
        assert shown.isprintable()


@pytest.mark.parametrize("character", ["x", "é", "\udcff", "\0", "😀"])
def test_what_is_echoed_is_short_and_says_so(character: str):
    shown = echoed(character * 100_000)
    assert len(shown) < 2_500
    assert shown.endswith("... (100,000 characters)")


def test_plain_text_is_shown_as_it_is():
    assert (printable("Ünïted 世界"), echoed("build-1"), quoted("build-1")) == ("Ünïted 世界", "build-1", "'build-1'")
