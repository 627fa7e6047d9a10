"""What a build says where stderr is no terminal: lines where a stage begins, goes on for long, and ends well."""

from __future__ import annotations

import threading

import pytest

from retriever_service.building.progress import TerminalProgress


def test_a_stage_has_two_lines_with_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with TerminalProgress().stage("Embedding", 12_000, "tokens", lambda: 11_999):
        assert capsys.readouterr().err == "Embedding: 12,000 tokens\n"
    assert capsys.readouterr().err.startswith("Embedding done: 11,999 of 12,000 tokens in ")


def test_a_stage_that_failed_is_not_done(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with TerminalProgress().stage("Embedding", 5, "tokens", lambda: 3):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert capsys.readouterr().err == "Embedding: 5 tokens\n"


def test_a_stage_that_takes_long_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    asked_twice = threading.Semaphore(0)

    def done() -> int:
        asked_twice.release()
        return 3

    with TerminalProgress(every_s=0.001).stage("Embedding", 5, "tokens", done):
        for _ in range(2):
            assert asked_twice.acquire(timeout=60)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Embedding: 5 tokens"
    assert lines[1].startswith("Embedding: 3 of 5 tokens in ")
    assert lines[-1].startswith("Embedding done: 3 of 5 tokens in ")
