"""Sends answers to every server of a retriever, in a thread of its own; what cannot be sent is dropped and counted.

Decoding never waits for it. Each server keeps the entries of its partitions, and nothing of what it knows already.
Knows the contract; not how answers were decoded.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import grpc

from decoder_client.channel import RetrieverChannel
from decoder_client.drafting.local import FinishedText
from decoder_client.learning.config import LearnConfig
from decoder_client.retriever import RetrieverClient
from decoder_client.retriever_errors import RetrieverError
from dresd.v1 import ingest_pb2 as pb
from dresd.v1 import ingest_pb2_grpc as pb_grpc
from dresd.v1 import retriever_pb2

logger = logging.getLogger(__name__)

_AT_ONCE = 32
"""Answers in a request."""
_BYTES_AT_ONCE = 1 << 20
"""In a request of several answers; servers refuse those of more than 4 MiB, unless they are told another limit."""


@dataclass(frozen=True, slots=True)
class LearnStats:
    """What became of the answers of one decoder.

    Attributes:
        learned: on the disk of every server.
        partly: of some of the servers.
        failed: of none.
        dropped: not sent, because too many waited.
        skipped: too short, not in the sample, without keys, or nothing was left of them.
    """

    learned: int = 0
    partly: int = 0
    failed: int = 0
    dropped: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class _Offered:
    text: FinishedText
    reducer_hash: str


class AnswerSender:
    """Sends from the first `offer` on, until it is closed.

    Args:
        client: knows the servers; it may be connected later.
        config: what is sent.
        decode: tokens to text, for a redaction hook; called in another thread.
    """

    def __init__(self, client: RetrieverClient, config: LearnConfig, decode: Callable[[Sequence[int]], str]) -> None:
        self._client = client
        self._config = config
        self._decode = decode
        self._access = client.config.access
        if config.token_file is not None:
            self._access = replace(self._access, token_file=config.token_file)
        self._waiting: queue.Queue[_Offered | None] = queue.Queue(config.queue_size)
        self._channels: dict[str, RetrieverChannel] = {}
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()  # of the counts
        self._counts = dict.fromkeys(("learned", "partly", "failed", "dropped", "skipped"), 0)
        self._complained: set[str] = set()

    @property
    def stats(self) -> LearnStats:
        """The counts so far."""
        with self._lock:
            return LearnStats(**self._counts)

    def wants(self, tokens: int) -> bool:
        """Whether to offer an answer of so many tokens; decided anew each time."""
        config = self._config
        wanted = tokens >= config.min_tokens and random.random() < config.sample  # noqa: S311 - no secret
        if not wanted:
            self._count("skipped")
        return wanted

    def offer(self, text: FinishedText, reducer_hash: str) -> None:
        """Sends an answer soon, if it can; returns at once."""
        if self._closing.is_set():
            self._count("dropped")
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_sending, name="dresd-learn", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(_Offered(text, reducer_hash))
        except queue.Full:
            self._count("dropped")

    def close(self, patience_s: float = 2.0) -> None:
        """Sends what waits, for `patience_s` seconds at most."""
        self._closing.set()
        if self._thread is not None:
            try:
                self._waiting.put(None, timeout=patience_s)
            except queue.Full:
                return  # the thread gives up with the process
            if self._thread is not threading.current_thread():  # whoever forgets it may be collected anywhere
                self._thread.join(patience_s)

    def _keep_sending(self) -> None:
        while (first := self._waiting.get()) is not None:
            offered = [first]
            while len(offered) < _AT_ONCE and not self._waiting.empty():
                more = self._waiting.get()
                if more is None:
                    self._waiting.put(None)
                    break
                offered.append(more)
            for reducer_hash in {one.reducer_hash for one in offered}:
                self._send(reducer_hash, [one.text for one in offered if one.reducer_hash == reducer_hash])
        for channel in self._channels.values():
            channel.close()

    def _send(self, reducer_hash: str, texts: Sequence[FinishedText]) -> None:
        answers = [message for text in texts if (message := self._message(text)) is not None]
        self._count("skipped", len(texts) - len(answers))
        for together in _portions(answers):
            self._send_together(reducer_hash, texts[0].keys.shape[1], together)

    def _send_together(self, reducer_hash: str, dims: int, answers: Sequence[pb.FinishedAnswer]) -> None:
        servers = self._client.servers
        if self._client.handshake is None:
            self._count("failed", len(answers))
            return
        request = pb.AppendRequest(
            collection=self._client.config.collection,
            reducer_hash=reducer_hash,
            key_type=retriever_pb2.KEY_TYPE_FLOAT16,
            dims=dims,
            answers=answers,
        )
        took = sum(self._append(address, request) for address in servers)
        outcome = "failed" if took == 0 else "learned" if took == len(servers) else "partly"
        self._count(outcome, len(answers))

    def _append(self, address: str, request: pb.AppendRequest) -> bool:
        try:
            channel = self._channels.get(address) or RetrieverChannel(address, self._access)
            self._channels[address] = channel
            channel.read_token()
            pb_grpc.IngestStub(channel.channel).Append(request, timeout=self._config.timeout_s)
        except grpc.RpcError as error:
            self._complain(address, f"{error.code().name}: {error.details()}")
            return False
        except RetrieverError as error:
            self._complain(address, str(error))
            return False
        self._complained.discard(address)
        return True

    def _message(self, text: FinishedText) -> pb.FinishedAnswer | None:
        """None where nothing is left of it."""
        if self._config.redact is not None:
            text = text.without_prompt()
            text = text.cut(self._kept(text.tokens[text.answer_begin :].tolist()))
        if len(text.positions) == 0:
            return None
        return pb.FinishedAnswer(
            id=uuid.uuid4().bytes,
            tokens=text.tokens.tolist(),
            positions=text.positions.tolist(),
            keys=text.keys.astype("<f2").tobytes(),
        )

    def _kept(self, answer: Sequence[int]) -> int:
        """How many tokens of an answer the hook lets pass."""
        redact = self._config.redact
        if redact is None:
            return len(answer)
        whole = self._decode(answer)
        try:
            kept = redact(whole)
        except Exception:
            logger.exception("a redaction hook failed; its answer is dropped")
            return 0
        if kept is None:
            return 0
        if kept == whole:
            return len(answer)
        same = next((at for at, (ours, theirs) in enumerate(zip(whole, kept, strict=False)) if ours != theirs), None)
        characters = min(len(whole), len(kept)) if same is None else same
        low, high = 0, len(answer)
        while low < high:  # the most tokens whose text lies within what is kept
            middle = (low + high + 1) >> 1
            low, high = (middle, high) if len(self._decode(answer[:middle])) <= characters else (low, middle - 1)
        return low

    def _complain(self, address: str, reason: str) -> None:
        if address not in self._complained:
            self._complained.add(address)
            logger.warning("answers are not learned by %s: %s", address, reason)

    def _count(self, name: str, number: int = 1) -> None:
        with self._lock:
            self._counts[name] += number


def _portions(answers: Sequence[pb.FinishedAnswer]) -> Iterator[list[pb.FinishedAnswer]]:
    """All of them in their order, as many together as one request may have bytes."""
    portion: list[pb.FinishedAnswer] = []
    size = 0
    for answer in answers:
        if portion and size + answer.ByteSize() > _BYTES_AT_ONCE:
            yield portion
            portion, size = [], 0
        portion.append(answer)
        size += answer.ByteSize()
    if portion:
        yield portion
