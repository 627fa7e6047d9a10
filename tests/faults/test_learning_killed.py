"""A learning server that is killed while answers arrive: what it acknowledged is there afterwards, once, and whole."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import grpc
import numpy as np
import pytest

from dresd.v1 import ingest_pb2 as pb
from dresd.v1 import ingest_pb2_grpc as pb_grpc
from dresd.v1 import retriever_pb2
from retriever_service.learning import LearnedStore, LearningLimits
from tests.support.datastore import BuiltDatastore, build_datastore
from tests.support.learning import random_answer
from tests.support.serving import ServerProcess


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltDatastore:
    return build_datastore(tmp_path_factory.mktemp("killed") / "store")


def send_until_it_dies(address: str, reducer_hash: str, first: int, acknowledged: set[int], enough: threading.Event):
    """Sends answers number `first`, `first` + 1, ...; notes those that are acknowledged."""
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.IngestStub(channel)
        for number in range(first, first + 10_000):
            answer = random_answer(number, tokens=30)
            sent = pb.FinishedAnswer(
                id=answer.id,
                tokens=answer.tokens.tolist(),
                positions=answer.positions.tolist(),
                keys=answer.keys.astype("<f2").tobytes(),
            )
            request = pb.AppendRequest(
                reducer_hash=reducer_hash, key_type=retriever_pb2.KEY_TYPE_FLOAT16, dims=8, answers=[sent]
            )
            try:
                stub.Append(request, timeout=60)
            except grpc.RpcError:
                return
            acknowledged.add(number)
            if number >= first + 5 + first % 7:
                enough.set()


def test_nothing_acknowledged_is_lost_nothing_is_there_twice(built: BuiltDatastore, tmp_path: Path):
    acknowledged: set[int] = set()
    reducer_hash = built.manifest.key_recipe.reducer_hash
    folder = tmp_path / "learned" / "default" / reducer_hash[:16]
    for life in range(3):
        enough = threading.Event()
        with ServerProcess(built.path, "--learn", str(tmp_path / "learned")) as server:
            address = server.ready()
            writers = [
                threading.Thread(
                    target=send_until_it_dies,
                    args=(address, reducer_hash, 100_000 * life + 20_000 * writer, acknowledged, enough),
                )
                for writer in range(3)
            ]
            for writer in writers:
                writer.start()
            assert enough.wait(60)
            server.send(signal.SIGKILL)
            for writer in writers:
                writer.join()
        store = LearnedStore(folder, built.open(), LearningLimits())
        assert len(acknowledged) >= 6 * (life + 1)
        assert store.recovered.damaged == 0
        expected = [random_answer(number, tokens=30) for number in sorted(acknowledged)]
        keys = np.concatenate([answer.keys for answer in expected]).astype(np.float32)
        tokens = np.concatenate([answer.next_tokens for answer in expected])
        found = store.base.search(keys, tokens, neighbors=2)
        # Each is its own nearest neighbour, and the next one is another.
        assert (found.similarities[:, 0] > 0.99).all()
        assert (found.similarities[:, 1] < found.similarities[:, 0]).all()
        store.close()
