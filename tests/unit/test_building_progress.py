"""What a build says where stderr is no terminal: a line where a stage begins, and one where it ends well."""

from __future__ import annotations

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
