"""Encodes records as documents, with the target's own tokenizer.

Text reaches the tokenizer exactly as a decoder sends it (chat template, generation prompt, end of turn), because an
entry helps only where the decoder meets the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from transformers import PreTrainedTokenizerBase

from decoder_client.target_model import TargetModel, TargetModelError
from retriever_service.building.corpus import ChatRecord, PromptRecord, Record, TextRecord, TokenRecord
from retriever_service.building.document import Document
from retriever_service.building.errors import BuildError, first_line


class DocumentEncoder:
    """Encodes records with the target's own tokenizer and chat template."""

    def __init__(self, target: TargetModel, *, prompt_keys: bool = False) -> None:
        self._target = target
        self._prompt_keys = prompt_keys
        self._eos = frozenset(target.eos_token_ids)
        self._tokenizer = target.tokenizer
        self._has_template = bool(target.tokenizer is not None and target.tokenizer.chat_template)

    @property
    def max_length(self) -> int:
        """Tokens the model reads at most."""
        return self._target.max_length

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; empty without a tokenizer."""
        return "" if self._tokenizer is None else self._target.decode(tokens)

    def documents(self, record: Record) -> list[Document]:
        """One document; several for a conversation whose template rewrites earlier turns.

        Raises:
            BuildError: the record has no answer, or the model cannot encode it.
        """
        if isinstance(record, TokenRecord):
            if record.response is None:
                raise _no_answer(record)
            prompt, response = self._checked(record.prompt, record), self._checked(record.response, record)
            return [self._document(prompt, response)]
        tokenizer = self._tokenizer_for(record)
        if isinstance(record, TextRecord):
            return [self._document([], self._target.encode_text(record.text))]
        if isinstance(record, PromptRecord):
            if record.response is None:
                raise _no_answer(record)
            if not self._has_template:
                answer = self._plain_answer(tokenizer, record.response)
                return [self._document(self._target.encode_text(record.prompt), answer)]
            return self._conversation(tokenizer, record, [("user", record.prompt), ("assistant", record.response)])
        self._require_template(record)
        if all(role != "assistant" for role, _ in record.turns):
            raise _no_answer(record)
        return self._conversation(tokenizer, record, record.turns)

    def prompt(self, record: Record) -> list[int]:
        """What the target is to answer: the record without the answer the corpus may have.

        Raises:
            BuildError: the record has no prompt or an empty one, or the model cannot encode it.
        """
        prompt = self._prompt(record)
        if not prompt:
            raise BuildError(f"{record.where}: the prompt is empty. Give one that asks something.")
        return prompt

    def _prompt(self, record: Record) -> list[int]:
        if isinstance(record, TokenRecord):
            return list(self._checked(record.prompt, record))
        self._tokenizer_for(record)
        if isinstance(record, PromptRecord):
            return (
                self._prompt_of([("user", record.prompt)], record)
                if self._has_template
                else self._target.encode_text(record.prompt)
            )
        if isinstance(record, TextRecord):
            raise BuildError(f"{record.where}: a text is no prompt to answer. Leave --respond out, or give prompts.")
        self._require_template(record)
        turns = list(record.turns)
        while turns and turns[-1][0] == "assistant":
            turns.pop()
        if not turns:
            raise BuildError(f"{record.where}: the conversation has no turn to answer. Give one of the user.")
        return self._prompt_of(turns, record)

    def _prompt_of(self, turns: Sequence[tuple[str, str]], record: Record) -> list[int]:
        with _refusals_named(record):
            return self._target.encode_prompt(_messages(turns), chat=True)

    def _document(self, prompt: Sequence[int], answer: Sequence[int]) -> Document:
        return Document.of(prompt, answer, prompt_keys=self._prompt_keys)

    def _conversation(
        self, tokenizer: PreTrainedTokenizerBase, record: Record, turns: Sequence[tuple[str, str]]
    ) -> list[Document]:
        answers = []
        for at, (role, content) in enumerate(turns):
            if role == "assistant":
                prompt = self._prompt_of(turns[:at], record)
                with _refusals_named(record):
                    encoded = tokenizer.apply_chat_template(_messages(turns[: at + 1]), tokenize=True, return_dict=True)
                upto = [int(token) for token in encoded["input_ids"]]
                begins = upto[: len(prompt)] == prompt
                answers.append(
                    (prompt, self._turn(upto[len(prompt) :]) if begins else self._plain_answer(tokenizer, content))
                )
        last_prompt, last_answer = answers[-1]
        whole = last_prompt + last_answer
        document = self._document(last_prompt, last_answer)
        for prompt, answer in answers[:-1]:
            # Some templates drop parts of earlier answers; then each answer is read as it was when it was given.
            if whole[: len(prompt) + len(answer)] != prompt + answer:
                return [self._document(prompt, answer) for prompt, answer in answers]
            document.stored[max(len(prompt), 1) : len(prompt) + len(answer)] = True
        return [document]

    def _turn(self, answer: list[int]) -> list[int]:
        """An answer as the template writes it, up to its end: what comes after that is never generated."""
        ends = [at for at, token in enumerate(answer) if token in self._eos]
        return answer[: ends[-1] + 1] if ends else answer

    def _plain_answer(self, tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
        answer = [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
        end = tokenizer.eos_token_id
        return answer if end is None else [*answer, int(end)]

    def _checked(self, tokens: Sequence[int], record: TokenRecord) -> Sequence[int]:
        if max(tokens, default=0) >= self._target.vocab_size:
            raise BuildError(
                f"{record.where}: token id {max(tokens)} is beyond the model's vocabulary of "
                f"{self._target.vocab_size}. Were the ids made with another tokenizer?"
            )
        return tokens

    def _tokenizer_for(self, record: Record) -> PreTrainedTokenizerBase:
        if self._tokenizer is None:
            raise BuildError(
                f"{record.where}: the model has no tokenizer to read text with. Give prompt_ids and response_ids."
            )
        return self._tokenizer

    def _require_template(self, record: ChatRecord) -> None:
        if not self._has_template:
            raise BuildError(
                f"{record.where}: the model has no chat template for 'messages'. Give prompt and response instead."
            )


def _messages(turns: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


@contextmanager
def _refusals_named(record: Record) -> Iterator[None]:
    try:
        yield
    except TargetModelError as error:
        raise BuildError(f"{record.where}: {error}") from error
    except Exception as error:  # a template is a program, and fails in any way a program can
        raise BuildError(
            f"{record.where}: the model's chat template refuses the conversation ({first_line(error)}). Leave it out, "
            "or give its turns as the model expects them."
        ) from error


def _no_answer(record: Record) -> BuildError:
    return BuildError(f"{record.where}: the prompt has no answer. Add one, or let the model answer with --respond.")
