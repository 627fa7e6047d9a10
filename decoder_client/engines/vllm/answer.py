"""A corpus for a datastore at vLLM's speed: `python -m decoder_client.engines.vllm.answer`.

vLLM answers prompts as the target will, and prompts and answers are written as token ids, in the form that
`dresd-retriever build --corpus` reads. Building needs a transformers of its own, so the two meet in a file. Knows
vLLM's surface and files.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from decoder_client.errors import DecoderError
from dresd.output_file import write_output


class CorpusError(DecoderError):
    """A file of prompts cannot be used."""


class ChatTokenizer(Protocol):
    """What a prompt is encoded with."""

    chat_template: str | None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, str]], *, add_generation_prompt: bool, tokenize: bool
    ) -> str:
        """The text of a chat."""


def read_prompts(file: Path, tokenizer: ChatTokenizer) -> list[list[int]]:
    """Token ids of each prompt in a file of JSON lines: "prompt_ids", or "prompt" in the model's chat template, if any.

    Raises:
        CorpusError: the file cannot be read, or a line holds neither; names it.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"Cannot read the prompts in {file}: {error}. Give a file of JSON lines.") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            prompts.append(_prompt(line, f"{file}:{number}", tokenizer))
    return prompts


def _prompt(line: str, place: str, tokenizer: ChatTokenizer) -> list[int]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise CorpusError(f"{place} is not JSON: {error}.") from error
    ids, text = (record.get("prompt_ids"), record.get("prompt")) if isinstance(record, dict) else (None, None)
    if isinstance(ids, list) and ids and all(isinstance(token, int) for token in ids):
        return ids
    if not isinstance(text, str) or not text:
        raise CorpusError(f'{place} holds no prompt. Write {{"prompt": "..."}} or {{"prompt_ids": [...]}}.')
    if not tokenizer.chat_template:
        return tokenizer.encode(text)
    chat = [{"role": "user", "content": text}]
    shown = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    return tokenizer.encode(shown, add_special_tokens=False)


def write_corpus(file: Path, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> None:
    """Writes beside the file and renames, so that there is all of it or none."""
    records = zip(prompts, answers, strict=True)
    lines = (json.dumps({"prompt_ids": list(prompt), "response_ids": list(answer)}) for prompt, answer in records)
    write_output(file, "".join(f"{line}\n" for line in lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    options = _parser().parse_args(arguments)
    from vllm import LLM, SamplingParams

    llm = LLM(str(options.model), dtype=options.dtype, max_model_len=options.max_model_len, seed=options.seed)
    try:
        prompts = read_prompts(options.prompts, llm.get_tokenizer())
    except CorpusError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    sampling = SamplingParams(temperature=options.temperature, max_tokens=options.max_new_tokens)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling)
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    write_corpus(options.out, prompts, answers)
    print(f"{len(answers)} answers, {sum(map(len, answers))} tokens: {options.out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m decoder_client.engines.vllm.answer", description="Answers prompts with vLLM, for a datastore."
    )
    parser.add_argument("--model", required=True, help="folder or hub name")
    parser.add_argument("--prompts", type=Path, required=True, help='JSON lines with "prompt" or "prompt_ids"')
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl file for dresd-retriever build --corpus")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="of an answer, at most; default: 128")
    parser.add_argument("--temperature", type=float, default=0.0, help="0, the default, decodes greedily")
    parser.add_argument("--seed", type=int, default=0, help="of sampled answers; default: 0")
    parser.add_argument("--dtype", default="auto", help="of the weights; default: the checkpoint's")
    parser.add_argument("--max-model-len", type=int, help="of prompt and answer; default: the model's")
    return parser


if __name__ == "__main__":
    sys.exit(main())
