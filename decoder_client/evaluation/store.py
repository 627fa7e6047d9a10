"""The store as methods without keys see it: the very answers that the datastore was built from, token by token.

Answers come from files of token ids; that they are the datastore's is checked by the checksums in its manifest. Knows
those files and the manifest; not what is drafted from the answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from decoder_client.evaluation.token_records import TokenFileError, read_token_records
from retriever_service.datastore import Manifest


@dataclass(frozen=True, slots=True)
class StoreAnswers:
    """Token ids of all answers, and a sentence on each file that is not known to be the datastore's."""

    answers: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]


def read_store_answers(files: Sequence[Path], manifest: Manifest) -> StoreAnswers:
    """Reads the answers of all files; of the manifest's own corpus files if none are named.

    Raises:
        TokenFileError: a file is missing, malformed, or holds texts instead of token ids.
    """
    known = {file.sha256 for file in manifest.corpus.files}
    chosen = list(files) or [Path(file.name) for file in manifest.corpus.files]
    answers: list[tuple[int, ...]] = []
    notes: list[str] = []
    for path in chosen:
        answers += [record.answer for record in read_token_records(path, vocab_size=manifest.model.vocab_size)]
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise TokenFileError(f"Cannot read the answers in {str(path)!r}: {error}.") from error
        if digest not in known:
            notes.append(
                f"{path.name} is not among the files that the datastore was built from (by sha256), so methods that "
                "index it may draft from other answers than those with keys."
            )
    return StoreAnswers(tuple(answers), tuple(notes))
