"""An engine's numbers, on a port and in the files that several processes share."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from decoder_client.engines.vllm.prometheus import show
from decoder_client.errors import SettingError
from decoder_client.retriever import RetrieverClient
from decoder_client.stats import GenerationStats


class Engine:
    totals = GenerationStats(tokens=7, forwards=3)
    retriever: RetrieverClient | None = None


def test_a_port_shows_what_the_engine_counts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    engine = Engine()
    show(engine, port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert "dresd_decoder_tokens_total 7.0" in answer.read().decode()


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"metrics_port {port} cannot be opened"):
            show(Engine(), port)


_CHILD = """
import sys
from decoder_client.engines.vllm.prometheus import SharedCounters
from decoder_client.stats import GenerationStats

class Engine:
    totals, retriever = GenerationStats(tokens=7), None

times = iter([0.0, 0.5, 2.0])
engine = Engine()
counters = SharedCounters(engine, clock=lambda: next(times))
counters.refresh()
engine.totals = GenerationStats(tokens=10)
counters.refresh()  # too soon
engine.totals = GenerationStats(tokens=11)
counters.refresh()
"""
_PARENT = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_another_process_shows_what_this_one_shares(tmp_path: Path) -> None:
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", _CHILD], env=environment, check=True, timeout=60)
    shown = subprocess.run(
        [sys.executable, "-c", _PARENT], env=environment, check=True, timeout=60, capture_output=True, text=True
    ).stdout
    assert "dresd_decoder_tokens_total 11.0" in shown
    assert 'dresd_decoder_retrievals_total{outcome="late"} 0.0' in shown
