"""What a build would take: told without building, exact where the corpus is small, near where it is a sample."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from retriever_service.building.config import BuildConfig
from retriever_service.building.ray_connection import connect
from retriever_service.building.sampling import take_sample
from retriever_service.building.sources import find_sources
from retriever_service.cli import main
from tests.support.building import QUESTIONS, write_corpus
from tests.support.models import save_tiny_model


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[None]:
    with connect(None, 1):
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("gpt2", tmp_path_factory.mktemp("models") / "gpt2")


def test_a_dry_run_tells_and_writes_nothing(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", times=3)
    arguments = ["build", "--model", str(model), "--corpus", str(corpus), "--out", str(tmp_path / "store")]
    assert main([*arguments, "--partitions", "2", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    answers = sum(len(answer) for _, answer in QUESTIONS) * 3 + 2 * 4 * len(" (1)")
    ends = 3 * len(QUESTIONS)
    assert (told["exact"], told["documents"], told["entries"], told["partitions"]) == (True, 12, answers + ends, 2)
    assert told["tokens"] > told["entries"]
    assert min(told[name] for name in ("tokens_per_s", "datastore_bytes", "work_bytes", "worker_bytes")) > 0
    assert main([*arguments, "--dry-run", "--respond", "--max-new-tokens", "7"]) == 0
    shown = capsys.readouterr().out
    assert f"tokens to answer  {12 * 7} at most" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_a_sample_tells_the_size_of_the_whole(ending: str, model: Path, tmp_path: Path) -> None:
    texts = [f"{number} " * (20 + number % 90) for number in range(30_000)]
    path = tmp_path / f"corpus{ending}"
    if ending == ".jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    else:
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
    config = BuildConfig(model=str(model), corpus=(path,), out=tmp_path / "store")
    sample = take_sample(find_sources([str(path)]), str(model), config)
    assert sample.share < 0.5
    # Of the first records only, whose numbers are shorter.
    assert sum(sample.lengths) / sample.share == pytest.approx(sum(map(len, texts)), rel=0.3)
    windows = 256 - 256 // 8
    assert sample.entries <= sum(sample.lengths) <= sample.entries * 256 / windows + len(sample.lengths)
