"""The answers that one server has learned for one datastore: on the disk before they are acknowledged, then searched.

One thread writes; appends that come while it syncs are synced together with the next. When there are more entries than
allowed, the oldest log goes as a whole. It must not know who sends answers, nor who asks.
"""

from __future__ import annotations

import fcntl
import logging
import os
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dresd.compiled import warm
from dresd.draft_tree import PAD
from retriever_service.datastore import Datastore, EntryBatch, Segment, datastore_around, memory_segment, split_entries
from retriever_service.datastore.files import sync_directory
from retriever_service.echo import echoed
from retriever_service.learning.answers import MAGIC, Answer
from retriever_service.learning.crc32c import crc32c
from retriever_service.learning.errors import LearningError
from retriever_service.learning.generation import Generation
from retriever_service.learning.log import HEAD, LogWriter, create_log, read_log

logger = logging.getLogger(__name__)

_LOCK_FILE = ".lock"
_GENERATIONS = 8
"""Full logs, about; so many segments a partition at least are searched once there are as many entries as allowed."""
_LENGTH_TOLERANCE = 0.01
"""Of keys; float16 rounds far finer than this."""
_AT_ONCE = 256
"""Appends synced together."""


@dataclass(frozen=True, slots=True)
class LearningLimits:
    """How much is learned. Checks itself: ValueError names the field.

    Attributes:
        max_entries: kept, about; one in eight more before the oldest go.
        max_waiting: appends that wait for the disk; one more is refused.
    """

    max_entries: int = 200_000
    max_waiting: int = 1024

    def __post_init__(self) -> None:
        for name in ("max_entries", "max_waiting"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found on the disk.

    Attributes:
        answers: that are whole.
        entries: of this server's partitions.
        torn: bytes that a crash had left of what was never acknowledged; they are cut.
        damaged: bytes that belong to no answer, in the middle of others: a disk's doing.
    """

    answers: int = 0
    entries: int = 0
    torn: int = 0
    damaged: int = 0


class FullError(Exception):
    """As many appends wait as may, or the store is being closed."""


@dataclass(frozen=True, slots=True)
class _Append:
    answers: Sequence[Answer]
    done: Future[int]


class LearnedStore:
    """Learns for one datastore from the start until closed. Methods may be called from any thread.

    Args:
        folder: of the logs, made here; this process's alone.
        base: searched together with what is learned; replaced by `rebase`.
        limits: of both.

    Attributes:
        recovered: what was there at the start.
        appended: entries since.
        known: answers that were sent again.
        failures: commits that the disk refused.

    Raises:
        LearningError: another process has the folder, it lies in a datastore, or a log cannot be read.
    """

    def __init__(self, folder: Path, base: Datastore, limits: LearningLimits) -> None:
        self._folder = folder
        self._limits = limits
        self._base = base
        self.appended = self.known = self.failures = 0
        self._gate = threading.Lock()  # of what may still be appended
        self._closed = False
        self._waiting: queue.Queue[_Append | None] = queue.Queue()
        self._lock = threading.Lock()  # of the generations
        self._generations: list[Generation] = []
        if (around := datastore_around(folder)) is not None:
            raise LearningError(
                f"{echoed(folder)} lies in the datastore {echoed(around)}.", "Give a folder that lies in no datastore."
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._alone = _take(folder)
            try:
                self.recovered = self._recover()
            except BaseException:
                os.close(self._alone)  # or nobody else could have the folder, this process's next try neither
                raise
        except OSError as error:
            raise LearningError(
                f"{echoed(folder)} cannot be learned into: {error.strerror}.", "Give a folder that can be written to."
            ) from error
        self._thread = threading.Thread(target=self._keep_committing, name="dresd-learn", daemon=True)
        self._thread.start()

    @property
    def num_entries(self) -> int:
        """Kept now."""
        return sum(generation.num_entries for generation in self._generations)

    @property
    def base(self) -> Datastore:
        """Searched together with what is learned."""
        return self._base

    def append(self, answers: Sequence[Answer]) -> Future[int]:
        """Keeps answers; what belongs to others' partitions is left out, and so is an answer that is here already.

        Args:
            answers: with keys by the base's reducer and tokens of its vocabulary.

        Returns:
            Entries added, once they are on the disk and searched; or the OSError that kept them from it.

        Raises:
            FullError: too many appends wait, or no more are taken.
            ValueError: an answer is not for this base; says why. None of them is kept.
        """
        for answer in answers:
            self._check(answer)
        append = _Append(answers, Future())
        with self._gate:
            if self._closed or self._waiting.qsize() >= self._limits.max_waiting:
                raise FullError
            self._waiting.put(append)
        return append.done

    def rebase(self, base: Datastore) -> None:
        """From now on learns for another datastore whose keys are by the same reducer; appends wait meanwhile.

        Raises:
            LearningError: a log cannot be read any more.
        """
        with self._lock:
            before, self._base = self._base, base
            try:
                base.accept_any_token()
                self._generations = [self._read(generation.path)[0] for generation in self._generations]
            except BaseException:
                self._base = before
                raise
            self._attach()

    def close(self) -> None:
        """Ends when everything that waits is on the disk."""
        with self._gate:
            self._closed = True
            self._waiting.put(None)
        self._thread.join()
        self._writer.close()
        os.close(self._alone)

    def _recover(self) -> Recovered:
        self._base.accept_any_token()
        self._warm()
        found = Recovered()
        paths = sorted(self._folder.glob("log-*.log"))
        if not paths:
            paths = [self._folder / _log_name(1)]
            create_log(paths[0])
        for path in paths:
            generation, in_log, end = self._read(path)
            self._generations.append(generation)
            found = Recovered(
                found.answers + in_log.answers,
                found.entries + generation.num_entries,
                found.torn + in_log.torn,
                found.damaged + in_log.damaged,
            )
        self._writer = LogWriter(paths[-1], end)
        for generation in self._generations[:-1]:
            generation.settle()
        self._attach()
        return found

    def _read(self, path: Path) -> tuple[Generation, Recovered, int]:
        """The generation of a log, what was found in it, and where its last record ends."""
        content = read_log(path, MAGIC)
        generation = Generation(path, self._base.manifest.model.vocab_size)
        answers, damaged = [], content.damaged
        known = set(chain.from_iterable(one.ids for one in self._generations if one.path != path))
        for record in content.records:
            try:
                answer = Answer.decoded(record)
                self._check(answer)
            except ValueError:
                damaged += len(record)
                continue
            if answer.id not in known:
                known.add(answer.id)
                answers.append(answer)
        generation.add([answer.id for answer in answers], self._entries(answers))
        return generation, Recovered(len(answers), generation.num_entries, content.torn, damaged), content.end

    def _keep_committing(self) -> None:
        while True:
            taken = [self._waiting.get()]
            while len(taken) < _AT_ONCE and taken[-1] is not None and not self._waiting.empty():
                taken.append(self._waiting.get())
            appends = [append for append in taken if append is not None]
            if appends:
                with self._lock:
                    self._commit(appends)
            if taken[-1] is None:
                return

    def _commit(self, appends: Sequence[_Append]) -> None:
        current = self._generations[-1]
        seen: set[bytes] = set()
        shares: list[list[Answer]] = []
        for append in appends:
            mine = []
            for answer in append.answers:
                if answer.id in seen or any(answer.id in one.ids for one in self._generations):
                    self.known += 1
                    continue
                seen.add(answer.id)
                share = self._share(answer)
                if len(share.positions) > 0:
                    mine.append(share)
            shares.append(mine)
        new = [answer for mine in shares for answer in mine]
        try:
            if new:
                self._writer.append([answer.encoded() for answer in new])
        except OSError as error:
            self.failures += 1
            for append in appends:
                append.done.set_exception(error)
            return
        current.add([answer.id for answer in new], self._entries(new))
        self._attach()
        self.appended += sum(len(answer.positions) for answer in new)
        for append, mine in zip(appends, shares, strict=True):
            append.done.set_result(sum(len(answer.positions) for answer in mine))
        if current.num_entries >= max(1, self._limits.max_entries // _GENERATIONS):
            self._begin_generation()

    def _begin_generation(self) -> None:
        """A new log; the oldest ones go if there is too much."""
        last = self._generations[-1]
        try:
            path = self._folder / _log_name(int(last.path.stem.split("-")[1]) + 1)
            create_log(path)
            writer = LogWriter(path, len(HEAD))
        except OSError as error:
            logger.warning("the log grows beyond its size: no new one can be made: %s", echoed(error))
            return
        self._writer.close()
        self._writer = writer
        last.settle()
        self._generations.append(Generation(path, self._base.manifest.model.vocab_size))
        while self.num_entries > self._limits.max_entries and len(self._generations) > 1:
            gone = self._generations.pop(0)
            gone.path.unlink(missing_ok=True)
        sync_directory(self._folder)
        self._attach()

    def _share(self, answer: Answer) -> Answer:
        served = np.isin(self._partitions(answer), self._base.served_partitions)
        return answer if served.all() else answer.select(served)

    def _check(self, answer: Answer) -> None:
        manifest = self._base.manifest
        dims, vocab_size = manifest.key_recipe.dims, manifest.model.vocab_size
        if answer.keys.shape[1] != dims:
            raise ValueError(f"keys: have {answer.keys.shape[1]} numbers; the datastore's have {dims}")
        if answer.tokens.max() >= vocab_size:
            raise ValueError(f"tokens: {answer.tokens.max()} is beyond the vocabulary of {vocab_size}")
        lengths = np.linalg.norm(answer.keys.astype(np.float32), axis=1)
        if not (np.abs(lengths - 1.0) <= _LENGTH_TOLERANCE).all():  # what is not finite has no such length
            raise ValueError("keys: must be finite and of length 1")

    def _partitions(self, answer: Answer) -> NDArray[np.int64]:
        # Of a token that is split over several partitions every server must choose the same for an entry.
        ordinals = int.from_bytes(answer.id[:4], "little") + answer.positions
        return split_entries(self._base.routing, answer.next_tokens, ordinals)

    def _entries(self, answers: Sequence[Answer]) -> dict[int, EntryBatch]:
        """Those of the served partitions."""
        if not answers:
            return {}
        manifest = self._base.manifest
        whole = EntryBatch.concatenate(
            [answer.entries(manifest.continuation_length, manifest.left_context_length) for answer in answers]
        )
        partitions = np.concatenate([self._partitions(answer) for answer in answers])
        return {number: whole.select(partitions == number) for number in self._base.served_partitions}

    def _warm(self) -> None:
        """Compiles what searches call once there is something, and what is called to write it."""
        manifest, partition = self._base.manifest, self._base.served_partitions[0]
        one = EntryBatch(
            np.eye(1, manifest.key_recipe.dims, dtype=np.float32),
            np.zeros(1, np.int64),
            np.full((1, manifest.continuation_length), PAD, np.int32),
            np.full((1, manifest.left_context_length), PAD, np.int32),
        )
        segment = memory_segment(one, manifest.token_dtype)
        self._base.attach({partition: [segment, segment]})
        self._base.warm_attached()
        warm(lambda: crc32c(b""))

    def _attach(self) -> None:
        more: dict[int, list[Segment]] = {}
        for generation in self._generations:
            for partition, segments in generation.segments().items():
                more.setdefault(partition, []).extend(segments)
        self._base.attach(more)


def _log_name(number: int) -> str:
    return f"log-{number:08d}.log"


def _take(folder: Path) -> int:
    """A descriptor that holds the folder for this process.

    Raises:
        LearningError: another process holds it.
    """
    descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise LearningError(
            f"{echoed(folder)} is another server's, which runs.", "Give each server a folder of its own."
        ) from None
    return descriptor
