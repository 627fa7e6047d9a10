"""The store as methods without keys see it: the very answers that the datastore was built from, token by token.

Answers come from files of token ids; that they are the datastore's is checked against its manifest and its entries.
Knows those files and the datastore; not what is drafted from the answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decoder_client.evaluation.token_records import TokenFileError, read_token_records
from retriever_service.datastore import Datastore


@dataclass(frozen=True, slots=True)
class StoreAnswers:
    """Token ids of all answers, and a sentence for each doubt that they are the datastore's."""

    answers: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]


def read_store_answers(files: Sequence[Path], datastore: Datastore) -> StoreAnswers:
    """Reads the answers of all files; of the datastore's own corpus files if none are named.

    A file that the manifest does not list by its sha256 is doubted, unless all answers together have exactly the next
    tokens that the datastore has (those that a build let the model write have).

    Raises:
        TokenFileError: a file is missing, malformed, or holds texts instead of token ids.
    """
    corpus, vocab_size = datastore.manifest.corpus.files, datastore.manifest.model.vocab_size
    known = {file.sha256 for file in corpus}
    answers: list[tuple[int, ...]] = []
    doubted: list[Path] = []
    for path in files or [Path(file.name) for file in corpus]:
        answers += [record.answer for record in read_token_records(path, vocab_size=vocab_size)]
        if _sha256(path) not in known:
            doubted.append(path)
    if doubted and _are_the_entries(answers, datastore):
        doubted = []
    return StoreAnswers(
        tuple(answers),
        tuple(
            f"{path.name} is not among the files that the datastore was built from, and its answers are not the "
            "datastore's entries: methods that index it draft from another store than those with keys."
            for path in doubted
        ),
    )


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise TokenFileError(
            f"Cannot read the answers in {str(path)!r}: {error}. "
            "Name the file that holds the datastore's answers: --corpus FILE."
        ) from error


def _are_the_entries(answers: Sequence[Sequence[int]], datastore: Datastore) -> bool:
    """Whether every token follows as often in the answers as in the entries."""
    vocab_size = datastore.manifest.model.vocab_size
    stored = np.zeros(vocab_size, np.int64)
    for partition in datastore.served_partitions:
        for opened in datastore.segments[partition]:
            stored[opened.segment.tokens] += np.diff(opened.segment.entry_offsets)
    return np.array_equal(stored, np.bincount(np.concatenate(answers), minlength=vocab_size))
