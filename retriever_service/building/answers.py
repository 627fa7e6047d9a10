"""The model's answers in one file for people and programs; `corpus` reads it again, as token ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path


def write_answers(
    path: Path, answered: Iterable[tuple[str, Sequence[int], Sequence[int]]], decode: Callable[[Sequence[int]], str]
) -> None:
    """Writes a line of JSON for each (prompt, prompt ids, answer ids), beside `path`, then renames."""
    beside = path.with_name(f".{path.name}.partial")
    try:
        with beside.open("w", encoding="utf-8") as lines:
            for prompt, prompt_ids, response_ids in answered:
                fields = {
                    "prompt": prompt,
                    "response": decode(response_ids),
                    "prompt_ids": list(prompt_ids),
                    "response_ids": list(response_ids),
                }
                lines.write(json.dumps(fields, ensure_ascii=False) + "\n")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
