"""Reads the prompts of a benchmark into token ids.

Knows file formats and the target's way of encoding a prompt; nothing of drafters or measures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from decoder_client.errors import DecoderError
from decoder_client.target_model import TargetModel


class PromptFileError(DecoderError):
    """A prompt file cannot be used: one sentence and a hint."""


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt.

    Attributes:
        name: for tables: the record's "name" or "family" with its line number.
        tokens: ids, as the target reads them.
    """

    name: str
    tokens: tuple[int, ...]


def read_prompts(path: Path, target: TargetModel, *, chat: bool, limit: int | None = None) -> list[BenchPrompt]:
    """Reads a .jsonl file of {"prompt": text}, {"messages": [turns]} or {"prompt_ids": [token ids]} records.

    Args:
        path: the file.
        target: encodes texts.
        chat: put texts into the model's chat template.
        limit: stop after this many prompts.

    Raises:
        PromptFileError: unreadable, malformed (names the line) or empty.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptFileError(f"Cannot read the prompts in {str(path)!r}: {error}.") from error
    prompts: list[BenchPrompt] = []
    for number, line in enumerate(lines, start=1):
        if limit is not None and len(prompts) == limit:
            break
        if not line.strip():
            continue
        where = f"Line {number} of {str(path)!r}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PromptFileError(f"{where} is not JSON ({error}). Write one record a line.") from error
        if not isinstance(record, Mapping):
            raise PromptFileError(f'{where} is not a record. Write {{"prompt": "..."}}.')
        name = str(record.get("name") or record.get("family") or "prompt")
        prompts.append(BenchPrompt(f"{name}:{number}", _encode(record, target, where, chat=chat)))
    if not prompts:
        raise PromptFileError(f'No prompts in {str(path)!r}. Write one {{"prompt": "..."}} a line.')
    return prompts


def _encode(record: Mapping[str, object], target: TargetModel, where: str, *, chat: bool) -> tuple[int, ...]:
    ids, messages, text = record.get("prompt_ids"), record.get("messages"), record.get("prompt")
    if isinstance(ids, list) and ids:
        if not all(isinstance(token, int) and 0 <= token < target.vocab_size for token in ids):
            raise PromptFileError(f"{where}: prompt_ids must be token ids from 0 to {target.vocab_size - 1}.")
        return tuple(ids)
    if isinstance(messages, list) and messages:
        turns = []
        for turn in messages:
            if not (isinstance(turn, Mapping) and {"role", "content"} <= turn.keys()):
                raise PromptFileError(f"{where}: each of messages must hold role and content.")
            turns.append({"role": str(turn["role"]), "content": str(turn["content"])})
        while turns and turns[-1]["role"] == "assistant":
            turns.pop()
        return tuple(target.encode_prompt(turns, chat=True))
    if isinstance(text, str) and text:
        return tuple(target.encode_prompt(text, chat=chat))
    raise PromptFileError(f"{where} holds none of prompt (text), messages (turns) and prompt_ids (token ids).")
