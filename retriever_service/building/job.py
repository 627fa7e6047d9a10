"""The build: corpus, answers, documents, keys, partitions, manifest, and only then the datastore's own folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from decoder_client.reducer import KeyReducer
from dresd.identity import KeyRecipe, ModelIdentity
from retriever_service.building.answers import AnswersFile, reserved
from retriever_service.building.config import BuildConfig
from retriever_service.building.document import Document
from retriever_service.building.embed import EmbedWorker
from retriever_service.building.entries import LEFT_CONTEXT_LENGTH
from retriever_service.building.errors import BuildError
from retriever_service.building.index import Indexer, fit_reducer
from retriever_service.building.models import load_for_reading
from retriever_service.building.plan import Plan, make_plan, prompt_blocks
from retriever_service.building.progress import NoProgress, Progress, sum_of_counters
from retriever_service.building.ray_connection import connect
from retriever_service.building.ray_jobs import RayJobs, attempt, unwrap
from retriever_service.building.reading import Reading, add_document, read_documents, read_prompts
from retriever_service.building.respond import RespondWorker, read_answers
from retriever_service.building.spool import DocumentSpool, DocumentWriter
from retriever_service.building.workspace import Workspace, open_workspace
from retriever_service.datastore import (
    REDUCER_FILE,
    ROUTING_FILE,
    TOKEN_TABLE_FILE,
    FileRecord,
    Manifest,
    PartitionRecord,
    SegmentRecord,
    assign_tokens,
    save_routing,
    token_dtype,
    tune_built,
    write_manifest,
)
from retriever_service.echo import printable
from retriever_service.versions import installed_versions


@dataclass(frozen=True, slots=True)
class _Target:
    """What is still needed of the target model once its weights are dropped."""

    identity: ModelIdentity
    tokenizer: PreTrainedTokenizerBase | None
    max_length: int

    def decode(self, tokens: Sequence[int]) -> str:
        return "" if self.tokenizer is None else str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


def build(config: BuildConfig, progress: Progress | None = None) -> Manifest:
    """Builds a datastore at `config.out`, which appears there whole or not at all.

    Raises:
        BuildError: with one sentence for anything a user can act on.
    """
    return unwrap(attempt(lambda: _build(config, progress or NoProgress())))


def _build(config: BuildConfig, progress: Progress) -> Manifest:
    with open_workspace(config.out) as workspace, _answers_file(config) as answers:
        progress.say(f"Reading {', '.join(str(path) for path in config.corpus)} for {config.model}")
        target, reading = _read(config, workspace)
        _report_skipped(reading, target, progress, respond=config.respond)
        with connect(config.ray_address, config.workers) as jobs:
            stages = _Stages(config, workspace, target, jobs, progress)
            if config.respond:
                stages.respond(reading, answers)
            if reading.split:
                progress.say(
                    f"{_count(reading.split, 'document')} longer than the model's window of {target.max_length} "
                    "tokens: cut into overlapping pieces"
                )
            manifest = stages.manifest(reading, *stages.embed_and_index())
        write_manifest(workspace.datastore, manifest)
        manifest = tune_built(workspace.datastore)
        workspace.publish()
    return manifest


def _answers_file(config: BuildConfig) -> AbstractContextManager[AnswersFile | None]:
    if config.answers_out is None:
        return nullcontext()
    return reserved(config.answers_out, corpus=config.corpus, datastore=config.out)


def _read(config: BuildConfig, workspace: Workspace) -> tuple[_Target, Reading]:
    """Reads the corpus with the target's tokenizer; the model itself is dropped when this returns."""
    target = load_for_reading(config.model)
    if config.dims > target.hidden_size:  # here rather than after hours of work
        raise BuildError(
            f"--dims is {config.dims}, but the model's hidden states have {target.hidden_size} dimensions. "
            "Give that many at most."
        )
    if config.respond:
        reading = read_prompts(config, target, workspace.scratch / "prompts", workspace.scratch / "prompts.jsonl")
        _check_prompts(config, DocumentSpool(workspace.scratch / "prompts"))
    else:
        reading = read_documents(config, target, workspace.scratch / "documents")
        _check_entries(config, DocumentSpool(workspace.scratch / "documents"))
    identity = target.identity()
    if Path(config.model).is_dir():  # where a builder keeps the model is nobody's business
        identity = replace(identity, name=Path(config.model).absolute().name)
    return _Target(identity, target.tokenizer, target.max_length), reading


def _check_prompts(config: BuildConfig, prompts: DocumentSpool) -> None:
    """Refuses, before anything is answered, what cannot give enough entries."""
    most = len(prompts) * config.max_new_tokens + (int(prompts.lengths.sum()) if config.prompt_keys else 0)
    if most <= config.dims:
        raise BuildError(
            f"{_count(len(prompts), 'prompt')} with answers of at most {config.max_new_tokens} tokens give "
            f"{most} hidden states at most, but keys of {config.dims} dimensions are fitted on at least "
            f"{config.dims + 1}. Give more prompts, a greater --max-new-tokens, or smaller --dims."
        )


def _check_entries(config: BuildConfig, documents: DocumentSpool) -> None:
    entries = int(documents.entries.sum())
    if entries == 0:
        raise BuildError("The corpus gives no entries: every document is empty or a single token. Give longer texts.")
    if entries <= config.dims:
        raise BuildError(
            f"The corpus gives {entries} hidden states, but keys of {config.dims} dimensions are fitted on at least "
            f"{config.dims + 1}. Give more text, or smaller --dims."
        )


class _Stages:
    """The stages that run on Ray, over files in the workspace."""

    def __init__(
        self, config: BuildConfig, workspace: Workspace, target: _Target, jobs: RayJobs, progress: Progress
    ) -> None:
        self._config = config
        self._target = target
        self._jobs = jobs
        self._progress = progress
        self._datastore = workspace.datastore
        # Workers have other working directories.
        self._scratch = workspace.scratch.resolve()
        self._model = str(Path(config.model).resolve()) if Path(config.model).is_dir() else config.model

    def _folder(self, name: str) -> Path:
        folder = self._scratch / name
        folder.mkdir()
        return folder

    def respond(self, reading: Reading, file: AnswersFile | None) -> None:
        """Lets the target answer the prompts; the answers become the documents, and a file of their own."""
        config = self._config
        prompts = DocumentSpool(self._scratch / "prompts")
        blocks = prompt_blocks(prompts.lengths)
        answers_folder, counters = self._folder("answers"), self._folder("respond-counters")
        arguments = {
            "model": self._model,
            "spool": self._scratch / "prompts",
            "out": answers_folder,
            "counters": counters,
            "max_new_tokens": config.max_new_tokens,
            "temperature": config.temperature,
            "seed": config.seed,
        }
        total = len(prompts) * config.max_new_tokens
        with self._progress.stage("Answering", total, "tokens", lambda: sum_of_counters(counters, "*")):
            self._jobs.run_blocks(RespondWorker, arguments, blocks)
        answers: list[list[int]] = [[] for _ in range(len(prompts))]
        for block in blocks:
            for number, answer in zip(block.documents, read_answers(answers_folder, block), strict=True):
                answers[number] = answer
        with DocumentWriter(self._scratch / "documents") as writer:
            for number, answer in enumerate(answers):
                document = Document.of(prompts[number].tokens.tolist(), answer, prompt_keys=config.prompt_keys)
                add_document(document, self._target.max_length, writer, reading)
        if file is not None:
            file.write(self._answered(prompts, answers), self._target.decode)
        _check_entries(config, DocumentSpool(self._scratch / "documents"))

    def _answered(
        self, prompts: DocumentSpool, answers: list[list[int]]
    ) -> Iterator[tuple[str, Sequence[int], Sequence[int]]]:
        with (self._scratch / "prompts.jsonl").open(encoding="utf-8") as texts:
            for number, text in enumerate(texts):
                yield json.loads(text), prompts[number].tokens.tolist(), answers[number]

    def embed_and_index(self) -> tuple[KeyReducer, list[SegmentRecord]]:
        """Runs the target over all documents and writes every file of the datastore but the manifest."""
        config, identity = self._config, self._target.identity
        documents = DocumentSpool(self._scratch / "documents")
        plan = make_plan(documents.lengths, documents.entries, fit_tokens=config.fit_tokens, seed=config.seed)
        embedded = self._folder("embedded")
        reducer = self._embed(plan, embedded, int(documents.lengths.sum()))
        datastore = self._datastore.resolve()
        (datastore / REDUCER_FILE).write_bytes(reducer.to_bytes())

        routing = assign_tokens(documents.token_counts(identity.vocab_size), config.partitions)
        save_routing(routing, datastore / ROUTING_FILE)
        entries = int(documents.entries.sum())
        indexer = Indexer(self._scratch / "documents", embedded, plan.blocks, entries, config.continuation_length)
        write = partial(
            indexer.write_partition,
            datastore,
            routing,
            codec=config.codec,
            vocab_size=identity.vocab_size,
            seed=config.seed,
        )
        tasks: list[Callable[[], SegmentRecord | None]] = [partial(write, part) for part in range(config.partitions)]
        tasks.append(partial(indexer.write_token_table, datastore / TOKEN_TABLE_FILE))
        results: dict[int, SegmentRecord | None] = {}
        with self._progress.stage("Indexing", len(tasks), "parts", lambda: len(results)):
            results.update(self._jobs.run_tasks(tasks))
        segments = [segment for _, segment in sorted(results.items()) if segment is not None]
        return reducer, segments

    def _embed(self, plan: Plan, embedded: Path, total: int) -> KeyReducer:
        """Embeds the sample, fits the reducer on it, then embeds the rest with the reducer."""
        counters = self._folder("embed-counters")
        arguments = {
            "model": self._model,
            "spool": self._scratch / "documents",
            "out": embedded,
            "counters": counters,
            "reducer": None,
        }
        with self._progress.stage("Embedding", total, "tokens", lambda: sum_of_counters(counters, "*")):
            self._jobs.run_blocks(EmbedWorker, arguments, plan.sample)
            hidden_size = self._target.identity.hidden_size
            reducer = fit_reducer(embedded, plan.sample, hidden_size=hidden_size, dims=self._config.dims)
            self._jobs.run_blocks(EmbedWorker, {**arguments, "reducer": reducer.to_bytes()}, plan.rest)
        return reducer

    def manifest(self, reading: Reading, reducer: KeyReducer, segments: list[SegmentRecord]) -> Manifest:
        """The datastore's description; equal content gives an equal build id."""
        config, identity = self._config, self._target.identity
        recipe = KeyRecipe(layer="last", norm="l2", dims=config.dims, reducer_hash=reducer.sha256)
        names = (REDUCER_FILE, ROUTING_FILE, TOKEN_TABLE_FILE)
        files = {name: FileRecord.of(self._datastore / name) for name in names}
        entries = sum(segment.num_entries for segment in segments)
        content = [
            asdict(recipe),
            identity.weights_fingerprint,
            {name: record.sha256 for name, record in files.items()},
            [segment.model_dump() for segment in segments],
        ]
        return Manifest(
            build_id=hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32],
            model=replace(identity, name=printable(identity.name), revision=printable(identity.revision)),
            key_recipe=recipe,
            corpus=reading.provenance(),
            continuation_length=config.continuation_length,
            left_context_length=LEFT_CONTEXT_LENGTH,
            token_dtype=token_dtype(identity.vocab_size),
            codec=config.codec,
            nprobe=0,
            num_entries=entries,
            files=files,
            partitions=[
                PartitionRecord(index=number, segments=[segment] if segment.num_entries else [])
                for number, segment in enumerate(segments)
            ],
            versions=installed_versions(),
            command=printable(config.command),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )


def _report_skipped(reading: Reading, target: _Target, progress: Progress, *, respond: bool) -> None:
    if reading.skipped and respond:
        progress.say(
            f"{_count(reading.skipped, 'prompt')} skipped: as long as the model's window of {target.max_length} tokens"
        )
    elif reading.skipped:
        progress.say(f"{_count(reading.skipped, 'document')} skipped: too short to give an entry")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
