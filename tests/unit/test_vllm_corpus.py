"""Prompts for vLLM to answer, and the corpus that a datastore is built of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from decoder_client.engines.vllm.answer import CorpusError, read_prompts, write_corpus
from decoder_client.target_model import load_target_model
from tests.support.models import save_tiny_model, tiny_tokenizer


def test_prompts_are_encoded_as_every_decoder_encodes_them(tmp_path: Path) -> None:
    target = load_target_model(save_tiny_model("llama", tmp_path / "model"))
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Hello there"}\n\n{"prompt_ids": [5, 6]}\n')
    assert read_prompts(file, target.tokenizer) == [target.encode_prompt("Hello there", chat=True), [5, 6]]


def test_a_model_without_a_chat_template_gets_the_text_as_it_is(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(chat=False)
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Hello there"}\n')
    assert read_prompts(file, tokenizer) == [tokenizer.encode("Hello there")]


@pytest.mark.parametrize(
    "line", ["no JSON", "[]", "{}", '{"prompt": ""}', '{"prompt": 5}', '{"prompt_ids": ["a"]}', '{"prompt_ids": []}']
)
def test_a_line_that_holds_no_prompt_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'{{"prompt": "good"}}\n{line}\n')
    with pytest.raises(CorpusError, match=r"prompts\.jsonl:2"):
        read_prompts(file, tiny_tokenizer())


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"none\.jsonl"):
        read_prompts(tmp_path / "none.jsonl", tiny_tokenizer())


def test_the_corpus_is_one_that_a_build_reads(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    write_corpus(file, [[1, 2], [3]], [[4, 5], [6]])
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"prompt_ids": [1, 2], "response_ids": [4, 5]},
        {"prompt_ids": [3], "response_ids": [6]},
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["answers.jsonl"]
