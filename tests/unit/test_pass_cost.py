"""The cost of passes is measured once for a model where it runs, and a folder that cannot keep it is no failure."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from decoder_client.default_drafter import default_drafter
from decoder_client.drafting import AnyDrafter, CostCurve, NoDrafter
from decoder_client.generation import SpeculativeDecoder
from decoder_client.pass_cost import pass_cost
from decoder_client.target_model import ForwardOutput, TargetModel
from tests.support.drafts import FakeRetriever, handshake_of, some_reducer
from tests.support.models import ARCHITECTURES, tiny_model

VOCAB = 48
SIZES = 17
"""Passes in a round, one of each size."""


class Counting(TargetModel):
    """Counts passes and the tokens in them."""

    def __init__(self, *, seed: int = 0, architecture: str = "llama", max_length: int = 256) -> None:
        torch.manual_seed(seed)
        super().__init__(tiny_model(architecture, vocab_size=VOCAB, max_length=max_length))
        self.passes: list[int] = []

    def forward(self, input_ids: torch.Tensor, *arguments: object, **options: object) -> ForwardOutput:
        self.passes.append(input_ids.shape[1])
        return super().forward(input_ids, *arguments, **options)


class Clock:
    """Every pass takes as long as the script says, in turn."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = seconds
        self._reads = 0
        self._now = 0.0

    def __call__(self) -> float:
        self._reads += 1
        if self._reads % 2 == 0:  # a pass begins at odd reads and ends at even ones
            self._now += self._seconds[(self._reads // 2 - 1) % len(self._seconds)]
        return self._now


def steady(target: Counting, folder: Path) -> CostCurve:
    """The cost of passes on an idle machine."""
    return pass_cost(target, folder=folder, clock=Clock(0.01))


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_curve_is_measured_once_and_kept(architecture: str, tmp_path: Path) -> None:
    target = Counting(architecture=architecture)
    curve = steady(target, tmp_path)
    assert set(target.passes) >= set(curve.tokens)
    assert all(target.passes.count(size) >= 3 for size in curve.tokens)
    target.passes.clear()
    assert steady(target, tmp_path) == curve
    assert steady(Counting(architecture=architecture), tmp_path) == curve  # another process, as it were
    assert target.passes == []
    assert [CostCurve.from_json(file.read_text()) for file in kept(tmp_path)] == [curve]


@pytest.mark.parametrize(
    ("seconds", "is_kept"),
    [
        ((0.01,), True),
        ((0.01, 0.012, 0.011), True),
        ((0.01, 0.02, 0.03), False),
        (tuple(0.01 * (1 + size) for size in range(SIZES)), True),
    ],
    ids=["idle", "a little noise", "busy", "sizes that differ"],
)
def test_a_curve_of_a_busy_machine_is_used_and_not_kept(
    seconds: tuple[float, ...], is_kept: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = Counting()
    with caplog.at_level(logging.INFO, "decoder_client"):
        curve = pass_cost(target, folder=tmp_path, clock=Clock(*seconds))
    assert len(curve.tokens) == SIZES
    assert curve.seconds([1])[0] == pytest.approx(0.01)
    assert len(kept(tmp_path)) == is_kept
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "timing the model's forward passes, once for this device"
    assert any("machine was busy" in sentence for sentence in said) != is_kept
    assert all(record.levelno == logging.INFO for record in caplog.records)


def _retyped(target: Counting) -> None:
    target.model.to(torch.bfloat16)


def _attending_otherwise(target: Counting) -> None:
    target.model.set_attn_implementation("eager")


def _packed(target: Counting) -> None:
    target.is_packed = True


@pytest.mark.parametrize(
    "other",
    [
        lambda: Counting(seed=1),
        lambda: Counting(architecture="gpt2"),
        *(
            lambda change=change: (target := Counting(), change(target))[0]
            for change in (_retyped, _attending_otherwise, _packed)
        ),
    ],
    ids=["weights", "architecture", "dtype", "attention", "packed"],
)
def test_other_circumstances_are_measured_anew(other: Callable[[], Counting], tmp_path: Path) -> None:
    steady(Counting(), tmp_path)
    target = other()
    steady(target, tmp_path)
    assert target.passes != []
    assert len(kept(tmp_path)) == 2


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff\xfe", b"{}", b'{"tokens": [1], "pass_seconds": [1]}'])
def test_a_damaged_curve_is_measured_again(content: bytes, tmp_path: Path) -> None:
    target = Counting()
    steady(target, tmp_path)
    [file] = kept(tmp_path)
    file.write_bytes(content)
    target.passes.clear()
    curve = steady(target, tmp_path)
    assert target.passes != []
    target.passes.clear()
    assert steady(target, tmp_path) == curve
    assert target.passes == []
    assert kept(tmp_path) == [file]


def _a_file(place: Path) -> None:
    place.write_text("not a folder")


def _a_folder_of_files(place: Path) -> None:
    place.mkdir()
    (place / "pass-cost").write_text("not a folder")


def _nowhere(place: Path) -> None:
    place.symlink_to(place.parent / "file" / "below")
    (place.parent / "file").write_text("")


@pytest.mark.parametrize("make", [_a_file, _a_folder_of_files, _nowhere])
def test_a_folder_that_takes_no_file_is_no_failure(make: Callable[[Path], None], tmp_path: Path) -> None:
    place = tmp_path / "cache"
    make(place)
    before = sorted(tmp_path.rglob("*"))
    target = Counting()
    for _ in range(2):
        target.passes.clear()
        assert pass_cost(target, folder=place).seconds([1])[0] > 0.0
        assert target.passes != []
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"DRESD_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"DRESD_CACHE": "", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/dresd"),
        ({"HOME": "/c"}, "/c/.cache/dresd"),
    ],
)
def test_the_cache_folder_is_the_one_named_or_the_users(environment: dict[str, str], place: str) -> None:
    command = "from decoder_client.cache_folder import cache_folder; print(cache_folder())"
    done = subprocess.run([sys.executable, "-c", command], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout == place + "\n"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be nobody")
def test_a_user_without_a_home_is_no_failure() -> None:
    command = """if True:
        import os
        from tests.unit.test_pass_cost import Counting, pass_cost
        target = Counting()
        for name in ("HOME", "XDG_CACHE_HOME", "DRESD_CACHE"):
            os.environ.pop(name, None)
        os.setuid(54321)
        print(pass_cost(target).tokens[0])
    """
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", command], check=True, capture_output=True, text=True, cwd=root)
    assert done.stdout == "1\n"


@pytest.mark.parametrize("length", [3, 8, 60])
def test_no_pass_reaches_beyond_a_short_models_length(length: int, tmp_path: Path) -> None:
    target = Counting(architecture="gpt2", max_length=length)  # has no embedding for a position beyond it
    assert steady(target, tmp_path).tokens[-1] > length  # nodes side by side stand at one position


NOTHING_TO_DRAFT: dict[str, Callable[[TargetModel, FakeRetriever], AnyDrafter]] = {
    "no nodes": lambda target, retriever: default_drafter(target, retriever, nodes=0),
    "no sources": lambda target, _: default_drafter(target, None, context=False),
}


@pytest.mark.parametrize("name", NOTHING_TO_DRAFT)
def test_who_drafts_nothing_measures_nothing_and_asks_nobody(name: str) -> None:
    target = Counting()
    retriever = FakeRetriever(handshake_of(some_reducer(target.hidden_size)), paths=[[1, 2]])
    drafter = NOTHING_TO_DRAFT[name](target, retriever)
    assert isinstance(drafter, NoDrafter)
    assert target.passes == []
    generation = SpeculativeDecoder(target, drafter).generate([1, 2, 1, 2, 1], max_new_tokens=8)
    assert (generation.stats.forwards, generation.stats.drafted) == (8, 0)
    assert retriever.asked == []


def test_a_number_of_nodes_that_is_given_is_not_measured() -> None:
    target = Counting()
    default_drafter(target, None, nodes=8)
    assert max(target.passes) < 10  # those of the check of its attention
