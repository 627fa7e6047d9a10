"""The build: corpus, answers, documents, keys, partitions, manifest, and only then the datastore's own folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from retriever_service.building import blocks
from retriever_service.building.answers import AnswersFile, reserved
from retriever_service.building.config import BuildConfig
from retriever_service.building.errors import BuildError
from retriever_service.building.given_reducer import reducer_of
from retriever_service.building.ingest import Reading
from retriever_service.building.jobs import Connect, Jobs, attempt, unwrap
from retriever_service.building.planning import Totals
from retriever_service.building.progress import NoProgress, Progress
from retriever_service.building.publishing import Finisher
from retriever_service.building.ray_connection import connect
from retriever_service.building.sources import Source, find_sources
from retriever_service.building.stages import Stages
from retriever_service.building.target import Target, examine
from retriever_service.building.workspace import CORPUS, Job, Workspace, open_workspace
from retriever_service.datastore import CorpusFile, CorpusProvenance, Manifest, assign_tokens
from retriever_service.echo import printable
from retriever_service.versions import installed_versions

_BAD_SHOWN = 20


def build(config: BuildConfig, progress: Progress | None = None, connect: Connect = connect) -> Manifest:
    """Builds a datastore at `config.out`, which appears there whole or not at all.

    A build that is interrupted leaves its work beside `config.out`, and the same build goes on with it.

    Args:
        config: what is asked for.
        progress: told how far it is; None for nobody.
        connect: opens the place where the work is done.

    Raises:
        BuildError: with one sentence for anything a user can act on.
    """
    return unwrap(attempt(lambda: _build(config, progress or NoProgress(), connect)))


def _build(config: BuildConfig, progress: Progress, connect: Connect) -> Manifest:
    with open_workspace(config.out) as workspace, _answers_file(config) as answers:
        sources = find_sources(config.corpus_names)
        progress.say(f"Reading {_named(config.corpus_names)} for {config.model}")
        job: _Started | None = None
        try:
            with connect(config.ray_address, config.workers, config.threads) as jobs:
                job = _start(config, workspace, sources, jobs, progress)
                manifest = _Build(config, workspace, jobs, progress, job).run(answers)
        except BaseException:
            if job is not None and workspace.holds_work:  # else it is another build's work
                progress.say(f"What was done is kept in '{workspace.root}': the same command goes on with it.")
            raise
    return manifest


def _answers_file(config: BuildConfig) -> AbstractContextManager[AnswersFile | None]:
    if config.answers_out is None:
        return nullcontext()
    return reserved(config.answers_out, corpus=config.corpus_names, datastore=config.out)


def _named(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 10 else f"{', '.join(names[:10])} and {len(names) - 10} more"


@dataclass(frozen=True, slots=True)
class _Started:
    """A job whose model and corpus are known.

    Attributes:
        stages: of its folder.
        target: the model.
        sources: the corpus.
        hashes: sha256 of each source.
    """

    stages: Stages
    target: Target
    sources: tuple[Source, ...]
    hashes: tuple[str, ...]


def _start(
    config: BuildConfig, workspace: Workspace, sources: tuple[Source, ...], jobs: Jobs, progress: Progress
) -> _Started:
    """Looks at the model and the corpus, and opens the folder of the job they make."""
    # Workers have other working directories.
    model = str(Path(config.model).resolve()) if Path(config.model).is_dir() else config.model
    sources = tuple(source.absolute() for source in sources)
    target = jobs.run(partial(examine, model))
    if config.dims > target.identity.hidden_size:  # here rather than after hours of work
        raise BuildError(
            f"--dims is {config.dims}, but the model's hidden states have {target.identity.hidden_size} dimensions. "
            "Give that many at most."
        )
    reducer = None if config.reducer_of is None else reducer_of(config.reducer_of, target.identity, config.dims)
    found = dict(jobs.run_tasks(source.sha256 for source in sources))
    hashes = tuple(found[number] for number in range(len(sources)))
    job = _job(config, target, sources, hashes, reducer, on_gpu=jobs.pool.gpus > 0)
    folder, goes_on = workspace.open_job(job, restart=config.restart, is_costly=_is_costly)
    if goes_on:
        progress.say("Going on with the work of an interrupted build")
    stages = Stages(folder, config, model, target, jobs, progress, goes_on=goes_on)
    if reducer is not None and not stages.reducer.exists():
        blocks.commit(stages.reducer, reducer)
    return _Started(stages, target, sources, hashes)


def _job(
    config: BuildConfig,
    target: Target,
    sources: Sequence[Source],
    hashes: Sequence[str],
    reducer: bytes | None,
    *,
    on_gpu: bool,
) -> Job:
    """All that decides what a build computes."""
    answers = {
        "--answers-per-prompt": config.answers_per_prompt,
        "--max-new-tokens": config.max_new_tokens,
        "--temperature": config.temperature,
    }
    identity = target.identity
    return {
        "model": [identity.name, identity.weights_fingerprint, identity.tokenizer_hash],
        CORPUS: [[source.base_name, source.size, digest] for source, digest in zip(sources, hashes, strict=True)],
        "--engine": config.engine,
        "--dims": config.dims,
        "--codec": config.codec,
        "--partitions": config.partitions,
        "--continuation": config.continuation_length,
        "--prompt-keys": config.prompt_keys,
        "--skip-bad": config.skip_bad,
        "--respond": config.respond,
        **(answers if config.respond else {}),
        "--seed": config.seed,
        "--fit-tokens": config.fit_tokens,
        **({} if reducer is None else {"reducer": hashlib.sha256(reducer).hexdigest()}),
        "--table-tokens": config.table_tokens,
        "processor": "GPU" if on_gpu else "CPU",
        **{f"version of {package}": number for package, number in installed_versions().items()},
    }


def _is_costly(folder: Path) -> bool:
    return any(any(folder.glob(f"{stage}/*.block")) for stage in ("answers", "embedded"))


class _Build:
    """The stages in their order, with what is checked and told between them."""

    def __init__(
        self, config: BuildConfig, workspace: Workspace, jobs: Jobs, progress: Progress, started: _Started
    ) -> None:
        self._config = config
        self._workspace = workspace
        self._jobs = jobs
        self._progress = progress
        self._started = started
        self._stages = started.stages

    def run(self, answers: AnswersFile | None) -> Manifest:
        """Runs what is left to do, and publishes."""
        config, stages = self._config, self._stages
        shards, told = stages.ingest(self._started.sources)
        duplicates = 0
        if config.respond:
            prompts = stages.plan_prompts(shards)
            duplicates = prompts.totals().duplicates
            self._report(told, duplicates)
            self._check_prompts(told, prompts.totals())
            shards, lines = stages.respond(prompts)
            if answers is not None:
                answers.write(lines)
        planned = stages.plan_documents(shards)
        totals = planned.totals()
        if config.respond and totals.duplicates:
            self._progress.say(f"{_count(totals.duplicates, 'answer')} left out: equal to one before")
        if not config.respond:
            duplicates = totals.duplicates
            self._report(told, duplicates)
        self._check_entries(totals)
        embedded = stages.embed(planned)
        routing = assign_tokens(planned.token_counts(), config.partitions)
        shuffled = stages.shuffle(planned, embedded, routing)
        segments = stages.index(totals, embedded, shuffled, partitions=config.partitions)
        finisher = Finisher(
            stages.datastore,
            stages.reducer,
            routing,
            self._started.target.identity,
            self._provenance(told, totals, duplicates),
            config.continuation_length,
            config.codec,
            config.command,
        )
        manifest = self._jobs.run(partial(finisher.finish, segments), cpus=self._jobs.pool.cpus)
        self._workspace.publish(stages.datastore)
        return manifest

    def _provenance(self, told: Reading, totals: Totals, duplicates: int) -> CorpusProvenance:
        files = [
            CorpusFile(
                name=printable(source.base_name), size=source.size, sha256=digest, documents=told.documents.get(at, 0)
            )
            for at, (source, digest) in enumerate(zip(self._started.sources, self._started.hashes, strict=True))
        ]
        return CorpusProvenance(
            files=files,
            documents=sum(told.documents.values()),
            tokens=totals.tokens,
            skipped=told.skipped,
            split=told.split,
            duplicates=duplicates,
            bad=told.bad,
        )

    def _report(self, told: Reading, duplicates: int) -> None:
        say, window = self._progress.say, self._started.target.max_length
        noun = "prompt" if self._config.respond else "document"
        for sentence in told.bad_told[:_BAD_SHOWN]:
            say(f"Left out: {sentence}")
        if told.bad > min(len(told.bad_told), _BAD_SHOWN):
            say(f"Left out in all: {_count(told.bad, 'record')}")
        if duplicates:
            say(f"{_count(duplicates, noun)} left out: equal to one before")
        if told.skipped:
            why = (
                f"as long as the model's window of {window} tokens"
                if self._config.respond
                else "too short to give an entry"
            )
            say(f"{_count(told.skipped, noun)} skipped: {why}")
        if told.split:
            said = f"{_count(told.split, noun)} longer than the model's window of {window} tokens"
            say(f"{said}: cut into overlapping pieces")

    def _check_prompts(self, told: Reading, totals: Totals) -> None:
        """Refuses, before anything is answered, what cannot give enough entries."""
        config = self._config
        if totals.documents == 0:
            self._refuse(
                f"Every prompt fills the model's window of {self._started.target.max_length} tokens. "
                "Give shorter prompts."
                if told.skipped
                else "No record of the corpus can be used. Look at those left out."
            )
        answers = totals.documents * config.answers_per_prompt
        most = answers * config.max_new_tokens + (totals.tokens if config.prompt_keys else 0)
        if most <= config.dims and config.reducer_of is None:
            self._refuse(
                f"{_count(totals.documents, 'prompt')} with answers of at most {config.max_new_tokens} tokens give "
                f"{most} hidden states at most, but keys of {config.dims} dimensions are fitted on at least "
                f"{config.dims + 1}. Give more prompts, a greater --max-new-tokens, or smaller --dims."
            )

    def _check_entries(self, totals: Totals) -> None:
        dims = self._config.dims
        if totals.entries == 0:
            self._refuse("The corpus gives no entries: every document is empty or a single token. Give longer texts.")
        if totals.entries <= dims and self._config.reducer_of is None:
            self._refuse(
                f"The corpus gives {totals.entries} hidden states, but keys of {dims} dimensions are fitted on at "
                f"least {dims + 1}. Give more text, or smaller --dims."
            )

    def _refuse(self, sentence: str) -> None:
        self._workspace.discard()  # it would be of no use to any other build
        raise BuildError(sentence)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
