"""The prompts of a benchmark, as token ids."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import AutoTokenizer


def read_prompts(file: Path, model: Path, count: int) -> list[list[int]]:
    """`count` prompts of a file of JSON lines with "prompt_ids", or with "prompt", to which the model's chat template
    is applied; from the beginning again where there are fewer. Of lines with a "split", those of "test".
    """
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    records = [record for record in records if record.get("split", "test") == "test"]
    if not records:
        raise SystemExit(f"{file} holds no prompts")
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = []
    for place in range(count):
        record = records[place % len(records)]
        if "prompt_ids" in record:
            prompts.append(list(record["prompt_ids"]))
        else:
            chat = [{"role": "user", "content": record["prompt"]}]
            text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
            prompts.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    return prompts
