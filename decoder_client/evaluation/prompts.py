"""Reads the prompts of a benchmark into token ids.

Knows file formats and the target's way of encoding a prompt; nothing of drafters or measures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from decoder_client.errors import DecoderError
from decoder_client.target_model import TargetModel, TargetModelError


class PromptFileError(DecoderError):
    """A prompt file cannot be used: one sentence and a hint."""


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt.

    Attributes:
        name: for tables: the record's "name" or "family" with its line number.
        tokens: ids, as the target reads them; fewer than its window.
        where: file and line, for messages.
    """

    name: str
    tokens: tuple[int, ...]
    where: str = ""


def read_prompts(path: Path, target: TargetModel, *, chat: bool, limit: int | None = None) -> list[BenchPrompt]:
    """Reads a .jsonl file of {"prompt": text}, {"messages": [turns]} or {"prompt_ids": [token ids]} records.

    Args:
        path: the file.
        target: encodes texts.
        chat: put texts into the model's chat template.
        limit: stop after this many prompts.

    Raises:
        PromptFileError: unreadable, malformed, empty, or a prompt that the target cannot take (names the line).
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
        tokens = _encode(record, target, where, chat=chat)
        if not tokens:
            raise PromptFileError(f"{where}: the prompt has no tokens. Write at least one word.")
        if len(tokens) >= target.max_length:
            raise PromptFileError(
                f"{where}: the prompt has {len(tokens)} tokens, but the model's window is {target.max_length}. "
                "Shorten it or leave it out."
            )
        prompts.append(BenchPrompt(f"{name}:{number}", tokens, where))
    if not prompts:
        raise PromptFileError(f'No prompts in {str(path)!r}. Write one {{"prompt": "..."}} a line.')
    return prompts


def _encode(record: Mapping[str, object], target: TargetModel, where: str, *, chat: bool) -> tuple[int, ...]:
    ids, messages, text = record.get("prompt_ids"), record.get("messages"), record.get("prompt")
    if isinstance(ids, list) and ids:
        if not all(type(token) is int and 0 <= token < target.vocab_size for token in ids):
            raise PromptFileError(f"{where}: prompt_ids must be token ids from 0 to {target.vocab_size - 1}.")
        return tuple(ids)
    try:
        if isinstance(messages, list) and messages:
            return tuple(target.encode_prompt(_question(messages, where), chat=True))
        if isinstance(text, str) and text:
            return tuple(target.encode_prompt(text, chat=chat))
    except TargetModelError as error:
        raise PromptFileError(f"{where}: {error}") from error
    raise PromptFileError(f"{where} holds none of prompt (text), messages (turns) and prompt_ids (token ids).")


def _question(messages: list[object], where: str) -> list[dict[str, str]]:
    """The turns up to the last one that waits for an answer."""
    turns = []
    for turn in messages:
        if not (isinstance(turn, Mapping) and {"role", "content"} <= turn.keys()):
            raise PromptFileError(f"{where}: each of messages must hold role and content.")
        if not (isinstance(turn["role"], str) and isinstance(turn["content"], str)):
            raise PromptFileError(f"{where}: role and content of messages must be texts.")
        turns.append({"role": turn["role"], "content": turn["content"]})
    while turns and turns[-1]["role"] == "assistant":
        turns.pop()
    if not turns:
        raise PromptFileError(f"{where}: messages holds answers only. Write a user's turn before them.")
    return turns
