"""The stages of a build on Ray, each with committed blocks in a folder of its own: what is there is not made again.

A driver's part is to hand out numbers of blocks: it holds nothing that grows with the entries. What a stage reads is
what those before it committed, and every block is checked when it is read, and once more when a build goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dresd.routing import RoutingTable
from retriever_service.building import blocks
from retriever_service.building.config import BuildConfig
from retriever_service.building.embedded import block_path
from retriever_service.building.fit import fit_reducer
from retriever_service.building.index import (
    Indexer,
    file_is_whole,
    load_segment,
    segment_is_whole,
    write_token_table,
)
from retriever_service.building.ingest import IngestOptions, Reading, ingest, is_ingested, units_of
from retriever_service.building.jobs import Jobs, Workers
from retriever_service.building.planning import Planned, Totals
from retriever_service.building.progress import Progress, sum_of_counters
from retriever_service.building.respond import answer_lines, answers_path, prompts_in_block
from retriever_service.building.shuffle import Shuffler, group_path
from retriever_service.building.sources import Source
from retriever_service.building.target import Target
from retriever_service.datastore import TOKEN_TABLE_FILE, SegmentRecord

_CHECKED_TOGETHER = 32
_EMBED_WORKER = "retriever_service.building.embed:EmbedWorker"
_RESPOND_WORKER = "retriever_service.building.respond:RespondWorker"


class Stages:
    """The stages of one job.

    Attributes:
        datastore: the folder of what will be published.
        reducer: the block of the reducer; one that is there already is used as it is.
    """

    def __init__(
        self,
        folder: Path,
        config: BuildConfig,
        model: str,
        target: Target,
        jobs: Jobs,
        progress: Progress,
        *,
        goes_on: bool,
    ) -> None:
        """Args:
        folder: of the job, on a disk that all workers see.
        config: what is asked for.
        model: folder or hub name that all workers can load.
        target: it.
        jobs: where the work is done.
        progress: what is told.
        goes_on: whether there may be blocks of an interrupted build, to be checked.
        """
        self._folder = folder
        self._config = config
        self._model = model
        self._target = target
        self._jobs = jobs
        self._progress = progress
        self._goes_on = goes_on
        self.datastore = folder / "datastore"
        self.reducer = self._stage_folder("fit") / "reducer.block"

    def ingest(self, sources: Sequence[Source]) -> tuple[list[Path], Reading]:
        """Reads the corpus; returns the shards of documents (or prompts), and what was read."""
        config, identity = self._config, self._target.identity
        folder = self._stage_folder("ingest")
        options = IngestOptions(
            model=self._model,
            model_version=identity.weights_fingerprint + identity.tokenizer_hash,
            prompts=config.respond,
            prompt_keys=config.prompt_keys,
            skip_bad=config.skip_bad,
        )
        units = units_of(sources)
        left = [unit for unit in units if not is_ingested(unit, folder)]
        sizes = [sum(source.size for source in unit.sources) for unit in left]
        with self._stage("Reading", sum(source.size for source in sources), "bytes", sum(sizes)) as finished:
            for number, _ in self._jobs.run_tasks(partial(ingest, unit, folder, options) for unit in left):
                finished(sizes[number])
        shards = [path for unit in units for path in unit.committed(folder)]
        told = Reading()
        for shard in shards:
            told.add(Reading.of_shard(shard))
        return shards, told

    def plan(self, name: str, shards: Sequence[Path], *, sample_entries: int, together: int | None = None) -> Planned:
        """Plans the work on documents, `together` at a time where that is given."""
        planned = Planned(self._stage_folder("plans") / f"{name}.block", tuple(shards))
        if not planned.path.exists():
            self._jobs.run(
                partial(
                    planned.make,
                    vocab_size=self._target.identity.vocab_size,
                    sample_entries=sample_entries,
                    seed=self._config.seed,
                    block_documents=together,
                )
            )
        return planned

    def plan_prompts(self, shards: Sequence[Path]) -> Planned:
        """Plans which prompts are answered together."""
        together = prompts_in_block(self._config.engine, self._config.answers_per_prompt)
        return self.plan("prompts", shards, sample_entries=0, together=together)

    def plan_documents(self, shards: Sequence[Path]) -> Planned:
        """Plans the embedding, the sample for the reducer first unless there is a reducer."""
        return self.plan("documents", shards, sample_entries=self._config.fit_tokens)

    def respond(self, planned: Planned) -> tuple[list[Path], Iterator[str]]:
        """Lets the target answer; returns the shards of answered documents, and lines for the answers' file."""
        config, folder = self._config, self._stage_folder("answers")
        totals = planned.totals()
        paths = [answers_path(folder, block) for block in range(totals.blocks)]
        left = [block for block, path in enumerate(paths) if not path.exists()]
        arguments = {
            "engine": config.engine,
            "model": self._model,
            "planned": planned,
            "out": folder,
            "counters": self._counters("answers"),
            "answers": config.answers_per_prompt,
            "max_new_tokens": config.max_new_tokens,
            "temperature": config.temperature,
            "seed": config.seed,
            "prompt_keys": config.prompt_keys,
        }
        each = config.answers_per_prompt * config.max_new_tokens
        whole = totals.documents * each
        undone = min(len(left) * prompts_in_block(config.engine, config.answers_per_prompt) * each, whole)
        with (
            self._stage("Answering", whole, "tokens", undone, self._counters("answers")) as finished,
            self._jobs.actors(_RESPOND_WORKER, arguments, len(left)) as actors,
        ):
            for _, tokens in actors.run(left):
                finished(tokens)
        return paths, answer_lines(planned, folder, config.answers_per_prompt)

    def embed(self, planned: Planned) -> Path:
        """Runs the target over all documents; returns the folder of embedded blocks. The reducer is there then."""
        config, folder = self._config, self._stage_folder("embedded")
        totals, tokens = planned.totals(), planned.block_tokens()
        left = [block for block in range(totals.blocks) if not block_path(folder, block).exists()]
        arguments = {
            "engine": config.engine,
            "model": self._model,
            "planned": planned,
            "out": folder,
            "counters": self._counters("embedded"),
            "reducer": self.reducer,
            "table_share": min(config.table_tokens / max(totals.entries, 1), 1.0),
            "seed": config.seed,
        }
        undone = int(tokens[left].sum())
        with (
            self._stage("Embedding", totals.tokens, "tokens", undone, self._counters("embedded")) as finished,
            self._jobs.actors(_EMBED_WORKER, arguments, len(left)) as actors,
        ):
            self._run(actors, [block for block in left if block < totals.sample_blocks], finished)
            if not self.reducer.exists():
                # The actors hold the cores, and wait.
                self._jobs.run(
                    partial(
                        fit_reducer,
                        folder,
                        totals.sample_blocks,
                        self.reducer,
                        hidden_size=self._target.identity.hidden_size,
                        dims=config.dims,
                    ),
                    cpus=0,
                )
            self._run(actors, [block for block in left if block >= totals.sample_blocks], finished)
        return folder

    def shuffle(self, planned: Planned, embedded: Path, routing: RoutingTable) -> Path:
        """Sorts the entries by partition; returns the folder of groups."""
        folder, totals = self._stage_folder("shuffled"), planned.totals()
        shuffler = Shuffler(planned, embedded, self.reducer, folder, routing, self._config.continuation_length)
        left = [group for group in range(totals.groups) if not group_path(folder, group).exists()]
        # Groups are of about equal size.
        undone = totals.entries * len(left) // max(totals.groups, 1)
        with self._stage("Shuffling", totals.entries, "entries", undone) as finished:
            for _, entries in self._jobs.run_tasks(partial(shuffler.shuffle, group) for group in left):
                finished(entries)
        return folder

    def index(self, totals: Totals, embedded: Path, shuffled: Path, *, partitions: int) -> list[SegmentRecord]:
        """Writes every partition and the token table; returns the segments by partition."""
        records = self._stage_folder("records")
        self.datastore.mkdir(exist_ok=True)
        attempts = self._folder / "attempts"
        shutil.rmtree(attempts, ignore_errors=True)
        attempts.mkdir()
        indexer = Indexer(
            shuffled,
            totals.groups,
            records,
            attempts,
            self.datastore,
            totals.entries,
            self._config.codec,
            self._target.identity.vocab_size,
            self._config.seed,
        )
        table, table_record = self.datastore / TOKEN_TABLE_FILE, records / "token-table.block"
        checks = [partial(segment_is_whole, records, self.datastore, part) for part in range(partitions)]
        checks.append(partial(file_is_whole, table, table_record))
        tasks: list[Callable[[], int]] = [partial(indexer.write, part) for part in range(partitions)]
        tasks.append(partial(write_token_table, embedded, totals.blocks, table, table_record))
        whole = dict(self._jobs.run_tasks(checks)) if self._goes_on else {}
        left = [task for number, task in enumerate(tasks) if not whole.get(number, False)]
        with self._stage("Indexing", len(tasks), "parts", len(left)) as finished:
            for _ in self._jobs.run_tasks(left):
                finished(1)
        return [load_segment(records, part) for part in range(partitions)]

    @staticmethod
    def _run(actors: Workers, numbers: Sequence[int], finished: Callable[[int], None]) -> None:
        for _, tokens in actors.run(numbers):
            finished(tokens)

    def _stage_folder(self, name: str) -> Path:
        """The folder of a stage's blocks; those that are not as they were written are gone."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        if self._goes_on:
            blocks.remove_partial(folder)
            paths = sorted(folder.glob("*.block"))
            parts = [paths[begin : begin + _CHECKED_TOGETHER] for begin in range(0, len(paths), _CHECKED_TOGETHER)]
            damaged = sum(
                number for _, number in self._jobs.run_tasks(partial(blocks.drop_damaged, part) for part in parts)
            )
            if damaged:
                self._progress.say(f"{damaged} damaged in '{name}': made anew")
        return folder

    def _counters(self, stage: str) -> Path:
        folder = self._folder / "counters" / stage
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @contextmanager
    def _stage(
        self, name: str, whole: int, unit: str, undone: int, counters: Path | None = None
    ) -> Iterator[Callable[[int], None]]:
        """Shows a stage of which `undone` is left; gives what is called with how much of it was finished."""
        done = whole - undone
        if counters is not None:
            for stale in counters.iterdir():
                stale.unlink(missing_ok=True)

        def finished(amount: int) -> None:
            nonlocal done
            done += amount
            self._jobs.tell(f"{name}, {done:,} of {whole:,} {unit} done")

        def told() -> int:
            return min(done + (sum_of_counters(counters, "*") if counters is not None else 0), whole)

        with self._progress.stage(name, whole, unit, told):
            finished(0)
            yield finished
