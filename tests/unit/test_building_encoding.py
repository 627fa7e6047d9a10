"""Records as the target's tokens: the same tokens that a decoder meets, with the end of an answer."""

from __future__ import annotations

import pytest

from decoder_client.target_model import TargetModel
from retriever_service.building.corpus import ChatRecord, PromptRecord, TextRecord, TokenRecord
from retriever_service.building.document import Document
from retriever_service.building.encoding import DocumentEncoder
from retriever_service.building.errors import BuildError
from tests.support.models import tiny_model, tiny_tokenizer


def target(*, chat: bool = True, template: str | None = None, tokenizer: bool = True) -> TargetModel:
    made = tiny_tokenizer(chat=chat)
    if template is not None:
        made.chat_template = template
    model = tiny_model("gpt2", vocab_size=len(made) + 5, eos_token_id=made.eos_token_id)
    return TargetModel(model, made if tokenizer else None, name="tiny")


def parts(target_model: TargetModel, document: Document) -> tuple[str, str]:
    """What is context and what is stored, as text with its special tokens."""
    assert target_model.tokenizer is not None
    decode = target_model.tokenizer.decode
    return decode(document.tokens[~document.stored]), decode(document.tokens[document.stored])


def test_an_answer_begins_at_the_generation_prompt_and_ends_with_the_end_of_turn() -> None:
    model = target()
    (document,) = DocumentEncoder(model).documents(PromptRecord("here", "hi?", "yo"))
    assert parts(model, document) == ("<|im_start|>user\nhi?<|im_end|>\n<|im_start|>assistant\n", "yo<|im_end|>")
    prompt = model.encode_prompt("hi?", chat=True)
    assert document.tokens[: len(prompt)].tolist() == prompt


def test_prompt_keys_store_the_prompt_too() -> None:
    (document,) = DocumentEncoder(target(), prompt_keys=True).documents(PromptRecord("here", "hi?", "yo"))
    assert document.stored.tolist() == [False] + [True] * (len(document.tokens) - 1)


def test_without_a_template_the_tokenizers_own_end_of_text_ends_an_answer() -> None:
    model = target(chat=False)
    (document,) = DocumentEncoder(model).documents(PromptRecord("here", "hi?", "yo"))
    assert parts(model, document) == ("hi?", "yo<|endoftext|>")


def test_every_turn_of_the_assistant_is_an_answer() -> None:
    model = target()
    turns = (("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e"))
    (document,) = DocumentEncoder(model).documents(ChatRecord("here", turns))
    assert parts(model, document)[1] == "b<|im_end|>d<|im_end|>"


def test_a_template_that_rewrites_earlier_answers_gives_one_document_an_answer() -> None:
    # Answers but the last lose their first letter, as reasoning is dropped by some published templates.
    template = (
        "{% for m in messages %}[{{ m['content'] if loop.last or m['role'] == 'user' else m['content'][1:] }}"
        "<|im_end|>{% endfor %}{% if add_generation_prompt %}[{% endif %}"
    )
    model = target(template=template)
    turns = (("user", "a"), ("assistant", "xyz"), ("user", "c"), ("assistant", "def"))
    found = [parts(model, document) for document in DocumentEncoder(model).documents(ChatRecord("here", turns))]
    assert found == [("[a<|im_end|>[", "xyz<|im_end|>"), ("[a<|im_end|>[yz<|im_end|>[c<|im_end|>[", "def<|im_end|>")]


def test_a_template_that_writes_no_prompt_before_an_answer_still_stores_it() -> None:
    # The whole conversation does not begin with the prompt of its answer.
    template = "{% if add_generation_prompt %}>{% endif %}{% for m in messages %}{{ m['content'] }};{% endfor %}"
    model = target(template=template)
    (document,) = DocumentEncoder(model).documents(PromptRecord("here", "hi", "yo"))
    assert parts(model, document) == (">hi;", "yo<|im_end|>")


def test_a_text_is_stored_whole_but_for_its_first_token() -> None:
    model = target()
    (document,) = DocumentEncoder(model).documents(TextRecord("here", "once"))
    assert parts(model, document) == ("o", "nce")


def test_token_ids_are_taken_as_they_are() -> None:
    (document,) = DocumentEncoder(target(tokenizer=False)).documents(TokenRecord("here", (9, 8), (7,)))
    assert document.tokens.tolist() == [9, 8, 7]
    assert document.stored.tolist() == [False, False, True]


@pytest.mark.parametrize(
    "record",
    [
        PromptRecord("line 7", "hi?", None),
        TokenRecord("line 7", (1,), None),
        ChatRecord("line 7", (("user", "a"),)),
    ],
)
def test_a_prompt_without_an_answer_is_named_and_can_be_answered(record: PromptRecord | ChatRecord) -> None:
    encoder = DocumentEncoder(target())
    with pytest.raises(BuildError, match=r"line 7: .*no answer.*--respond"):
        encoder.documents(record)
    assert encoder.prompt(record)


def test_the_prompt_of_a_conversation_is_all_before_its_last_answer() -> None:
    model = target()
    encoder = DocumentEncoder(model)
    before = (("user", "a"), ("assistant", "b"), ("user", "c"))
    assert encoder.prompt(ChatRecord("", (*before, ("assistant", "d")))) == encoder.prompt(ChatRecord("", before))
    assert encoder.prompt(PromptRecord("", "a", "unused")) == model.encode_prompt("a", chat=True)


def test_what_the_model_cannot_encode_is_named() -> None:
    with pytest.raises(BuildError, match="line 7: token id 264 is beyond"):
        DocumentEncoder(target()).documents(TokenRecord("line 7", (1,), (264,)))
    with pytest.raises(BuildError, match="line 7: the model has no chat template"):
        DocumentEncoder(target(chat=False)).documents(ChatRecord("line 7", (("user", "a"), ("assistant", "b"))))
    with pytest.raises(BuildError, match="line 7: a text is no prompt"):
        DocumentEncoder(target()).prompt(TextRecord("line 7", "a"))
    with pytest.raises(BuildError, match="line 7: the conversation has no turn"):
        DocumentEncoder(target()).prompt(ChatRecord("line 7", (("assistant", "a"),)))
    with pytest.raises(BuildError, match="line 7: the model has no tokenizer"):
        DocumentEncoder(target(tokenizer=False)).documents(PromptRecord("line 7", "a", "b"))


def test_a_conversation_that_the_template_refuses_is_named() -> None:
    model = target(template="{{ raise_exception('roles must alternate') }}")
    for record in (PromptRecord("line 7", "a", "b"), ChatRecord("line 7", (("user", "a"), ("assistant", "b")))):
        with pytest.raises(BuildError, match=r"line 7: .*template.*roles must alternate"):
            DocumentEncoder(model).documents(record)
        with pytest.raises(BuildError, match=r"line 7: .*template.*roles must alternate"):
            DocumentEncoder(model).prompt(record)
