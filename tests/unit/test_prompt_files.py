"""A prompt file is read line by line, and what cannot be a prompt is refused by its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from decoder_client.evaluation.prompts import PromptFileError, read_prompts
from decoder_client.target_model import TargetModel
from tests.support.models import tiny_model, tiny_tokenizer

WINDOW = 64
USER, ASSISTANT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}


@pytest.fixture(scope="module")
def target() -> TargetModel:
    tokenizer = tiny_tokenizer()
    return TargetModel(tiny_model("llama", vocab_size=len(tokenizer), max_length=WINDOW), tokenizer, name="tiny")


def written(folder: Path, *records: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


def test_a_prompt_knows_its_line(target: TargetModel, tmp_path: Path) -> None:
    path = written(tmp_path, {"prompt": "ab", "name": "first"}, {"prompt_ids": [3, 4]}, {"messages": [USER, ASSISTANT]})
    first, second, third = read_prompts(path, target, chat=False)
    assert [prompt.name for prompt in (first, second, third)] == ["first:1", "prompt:2", "prompt:3"]
    assert second.where == f"Line 2 of {str(path)!r}"
    assert (list(first.tokens), second.tokens) == (target.encode_text("ab"), (3, 4))
    assert list(third.tokens) == target.encode_prompt([USER])


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": [ASSISTANT]}, "answers only"),
        ({"messages": [ASSISTANT, ASSISTANT]}, "answers only"),
        ({"messages": [{"role": "user"}]}, "role and content"),
        ({"messages": ["hi"]}, "role and content"),
        ({"messages": [{"role": "user", "content": None}]}, "must be texts"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "must be texts"),
        ({"messages": [{"role": 1, "content": "hi"}]}, "must be texts"),
        ({"prompt_ids": [True]}, "token ids"),
        ({"prompt_ids": [1, False]}, "token ids"),
        ({"prompt_ids": [-1]}, "token ids"),
        ({"prompt_ids": [10**9]}, "token ids"),
        ({"prompt_ids": [10**30]}, "token ids"),
        ({"prompt_ids": [1.5]}, "token ids"),
        ({"prompt_ids": ["1"]}, "token ids"),
        ({"prompt_ids": [None]}, "token ids"),
        ({"prompt_ids": []}, "none of"),
        ({"prompt": ""}, "none of"),
        ({"prompt": 3}, "none of"),
        ({}, "none of"),
        ([1], "not a record"),
        ({"prompt": "caf\udce9"}, "not valid Unicode"),
        ({"prompt": "x" * WINDOW}, f"{WINDOW} tokens, but the model's window is {WINDOW}"),
        ({"prompt_ids": [1] * 1000}, "1000 tokens"),
        ({"messages": [{"role": "user", "content": "x" * WINDOW}]}, "window"),
    ],
)
@pytest.mark.parametrize("chat", [False, True])
def test_what_cannot_be_a_prompt_is_refused_by_its_line(
    target: TargetModel, tmp_path: Path, record: object, reason: str, chat: bool
) -> None:
    path = written(tmp_path, {"prompt": "ab"}, record)
    with pytest.raises(PromptFileError, match=r"^Line 2 of '.*prompts\.jsonl'.*") as refused:
        read_prompts(path, target, chat=chat)
    assert reason.split(",")[0].removeprefix(f"{WINDOW} ") in str(refused.value)


def test_a_template_that_fails_is_refused_by_its_line(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% if messages[0]['content'] == 'no' %}{{ raise_exception('never') }}{% endif %}ok"
    target = TargetModel(tiny_model("llama", vocab_size=len(tokenizer)), tokenizer)
    path = written(tmp_path, {"prompt": "yes"}, {"prompt": "no"})
    with pytest.raises(PromptFileError, match=r"^Line 2 of .*never"):
        read_prompts(path, target, chat=True)


def test_lines_beyond_the_limit_are_not_looked_at(target: TargetModel, tmp_path: Path) -> None:
    path = written(tmp_path, {"prompt": "ab"}, {"prompt_ids": [True]})
    assert len(read_prompts(path, target, chat=False, limit=1)) == 1
