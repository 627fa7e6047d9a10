"""A sample answer token by token: texts that add up to the answer's, origins and steps beside them."""

from __future__ import annotations

import pytest

from decoder_client.evaluation.recording import Recording
from decoder_client.evaluation.sample import sample_of
from decoder_client.target_model import TargetModel, load_target_model
from tests.support.models import save_tiny_model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetModel:
    return load_target_model(save_tiny_model("llama", tmp_path_factory.mktemp("sample") / "model"))


def recording(count: int) -> Recording:
    return Recording((), (), tuple("model" if n % 2 else "dense" for n in range(count)), tuple(range(count)))


@pytest.mark.parametrize("text", ["plain", "caf\u00e9 \u2713 \U0001f600!\n  two", " leading and trailing "])
def test_texts_add_up_and_characters_stay_whole(target: TargetModel, text: str) -> None:
    tokens = target.encode_text(text)
    sample = sample_of("p", "l", tokens, recording(len(tokens)), target)
    pieces = [token.text for token in sample.tokens]
    assert "".join(pieces) == target.decode(tokens)
    assert len(pieces) == len(tokens)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
    assert [token.origin for token in sample.tokens][:2] == ["dense", "model"]
    assert [token.step for token in sample.tokens] == list(range(len(tokens)))


def test_without_a_tokenizer_the_ids_are_shown(target: TargetModel) -> None:
    bare = TargetModel(target.model)
    sample = sample_of("p", "l", [3, 40], recording(2), bare)
    assert [token.text for token in sample.tokens] == ["3 ", "40 "]
