"""From corpus files to a spool of documents, or of prompts to answer, with a count of everything that was done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from decoder_client.target_model import TargetModel
from retriever_service.building.config import BuildConfig
from retriever_service.building.corpus import PromptRecord, Record, read_corpus_file
from retriever_service.building.document import Document
from retriever_service.building.encoding import DocumentEncoder
from retriever_service.building.errors import BuildError
from retriever_service.building.spool import DocumentWriter
from retriever_service.datastore import CorpusFile, CorpusProvenance, FileRecord
from retriever_service.echo import printable


@dataclass(slots=True)
class Reading:
    """What was read, and what became of it.

    Attributes:
        files: one record a corpus file.
        documents: read from them.
        tokens: of the documents kept.
        skipped: documents that give no entries (too short), or prompts as long as the model's window.
        split: documents longer than the model's window, cut into pieces.
    """

    files: list[CorpusFile] = field(default_factory=list)
    documents: int = 0
    tokens: int = 0
    skipped: int = 0
    split: int = 0

    def provenance(self) -> CorpusProvenance:
        """For the manifest."""
        return CorpusProvenance(
            files=self.files, documents=self.documents, tokens=self.tokens, skipped=self.skipped, split=self.split
        )


def read_documents(config: BuildConfig, target: TargetModel, spool: Path) -> Reading:
    """Writes every document of the corpus to a new spool.

    Raises:
        BuildError: the corpus cannot be read, or is not what was asked for.
    """
    encoder = DocumentEncoder(target, prompt_keys=config.prompt_keys)
    reading = Reading()
    with DocumentWriter(spool) as writer:
        for record in _records(config.corpus, reading):
            for document in encoder.documents(record):
                add_document(document, target.max_length, writer, reading)
    return reading


def read_prompts(config: BuildConfig, target: TargetModel, spool: Path, texts: Path) -> Reading:
    """Writes every prompt of the corpus to a new spool, and as text to a file of one JSON string a line.

    Raises:
        BuildError: the corpus cannot be read, or is not what was asked for, or no prompt leaves room for an answer.
    """
    encoder = DocumentEncoder(target)
    reading = Reading()
    with DocumentWriter(spool) as writer, texts.open("w", encoding="utf-8") as lines:
        for record in _records(config.corpus, reading):
            prompt = encoder.prompt(record)
            if not prompt:
                raise BuildError(f"{record.where}: the prompt is empty.")
            if len(prompt) >= target.max_length:
                reading.skipped += 1
            else:
                writer.add(Document.of(prompt, []))
                text = record.prompt if isinstance(record, PromptRecord) else target.decode(prompt)
                lines.write(json.dumps(text) + "\n")
    if reading.skipped == reading.documents:
        raise BuildError(f"Every prompt fills the model's window of {target.max_length} tokens. Give shorter prompts.")
    return reading


def add_document(document: Document, max_length: int, writer: DocumentWriter, reading: Reading) -> None:
    """Writes one document, in pieces if it is longer than the model's window, and counts it."""
    if not document.stored.any():
        reading.skipped += 1
        return
    if len(document.tokens) > max_length:
        reading.split += 1
    for window in document.windows(max_length):
        if window.stored.any():
            writer.add(window)
            reading.tokens += len(window.tokens)


def _records(corpus: tuple[Path, ...], reading: Reading) -> Iterator[Record]:
    for path in corpus:
        before = reading.documents
        for record in read_corpus_file(path):
            reading.documents += 1
            yield record
        measured = FileRecord.of(path)
        reading.files.append(
            CorpusFile(
                name=printable(path.name),
                size=measured.size,
                sha256=measured.sha256,
                documents=reading.documents - before,
            )
        )
