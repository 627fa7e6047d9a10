"""Every option of every command: a value that can never be right is wrong usage, said before anything is opened.

A new option is in none of the lists below, and the test that goes through all of them says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from decoder_client.cli import COMMANDS as DECODER
from decoder_client.cli import main as decoder
from dresd.command_line import Command
from retriever_service.cli import COMMANDS as RETRIEVER
from retriever_service.cli import main as retriever

# What each command needs; none of it exists, so whoever opens it before complaining exits with 1.
REQUIRED = {
    "build": ["--model", "./no-model", "--corpus", "./no-corpus.txt", "--out", "./no-folder/store"],
    "serve": ["./no-store"],
    "tune": ["./no-store"],
    "publish": ["./no-root", "./no-root/store"],
    "push": ["./no-store", "./no-remote"],
    "fetch": ["./no-remote", "./no-folder/root"],
    "reload": ["127.0.0.1:1"],
    "status": ["127.0.0.1:1"],
    "add": ["./no-store", "--model", "./no-model", "--corpus", "./no-corpus.txt", "--out", "./no-folder/store"],
    "merge": ["./no-store", "./no-other-store", "--out", "./no-folder/store"],
    "prune": ["./no-store", "--max-entries", "10", "--out", "./no-folder/store"],
    "inspect": ["./no-store"],
    "k8s-values": ["./no-store"],
    "verify": ["./no-store"],
    "generate": ["--model", "./no-model", "--prompt", "x"],
    "bench": ["--model", "./no-model", "--prompts", "./no-prompts", "--methods", "plain"],
    "replay": ["--model", "./no-model", "--traces", "./no-traces", "--methods", "plain"],
}
ADDRESSES = ["", "nonsense", "a:b", "host:", "host:65536", "http://host:1", "a b:1"]
COUNTS = ["0", "-1", "1.5", "many", "", "nan", "inf", "9" * 5000]
LIMITED = [*COUNTS, "9" * 30]
SEEDS = ["-1", "0.5", "x", ""]
NAMES = ["", "no such thing"]
PATHS = [""]
REAL = ["nan", "inf", "-inf", "x", "", "-1"]

WRONG: dict[str, list[str]] = {
    "--model": [""], "--corpus": PATHS, "--out": PATHS, "--answers-out": PATHS, "datastore": PATHS, "--prompts": PATHS,
    "--traces": PATHS, "--cost-curve": PATHS, "--datastore": PATHS, "--html": PATHS,
    "--codec": [*NAMES, "SQ8", "pq4"], "--methods": [*NAMES, "plain,", "plain,magic"], "--ann": NAMES,
    "--dtype": NAMES, "--device": ["", "no such thing", "cuda:", "cuda:x", "CUDA", "-1"], "--stop": [""],
    "--listen": ADDRESSES, "--retriever": ADDRESSES, "--ray-address": ADDRESSES,
    "--dims": LIMITED, "--continuation": LIMITED, "--fit-tokens": LIMITED, "--workers": LIMITED,
    "--table-tokens": ["-1", "0.5", "x", "", "9" * 30], "--answers-per-prompt": LIMITED, "--engine": NAMES,
    "--max-new-tokens": COUNTS, "--limit": COUNTS, "--repeats": COUNTS, "--threads": LIMITED,
    "--search-threads": LIMITED, "--queue-size": LIMITED, "--top-k": COUNTS, "--sample": ["-1", "0.5", "x", ""],
    "--seed": SEEDS, "--deadline-ms": [*REAL, "0"], "--temperature": [*REAL, "1e-45", "1e30"],
    "--top-p": [*REAL, "0", "1.1"],
    "--repetition-penalty": [*REAL, "0", "1e30"],
    "build --partitions": LIMITED, "serve --workers": [*LIMITED, "65"],
    "serve --partitions": ["", "-1", "x", "0,", "0;1", "0.5", "9" * 30],
    "generate --nodes": ["-1", "1025", "x", "", "0.5"],
    "bench --nodes": ["0", "-1", "1025", "x", "", "8,", "8,x", "0.5"],
    "generate --seed": [*SEEDS, "9" * 30], "build --seed": [*SEEDS, "9" * 30],
    "bench --json": PATHS,
    "--recall": [*REAL, "0", "1.01"], "--neighbors": LIMITED,
    "serve --collection": ["", "name", "name=", "=folder", "a\tb=folder"], "--collection": ["x" * 65, "a\tb"],
    "reload --collection": [""], "--timeout": [*REAL, "0"],
    "--replicas": LIMITED, "--most-replicas": LIMITED, "--cpus": COUNTS, "--entries": [*LIMITED, "1,,2"],
    "k8s-values --partitions": [*LIMITED, "4097"],
    "url": [""], "--every": [*REAL, "0"], "--keep": COUNTS, "fetch --partitions": ["", "-1", "x", "0,", "9" * 30],
    "merge --partitions": LIMITED, "merge --seed": [*SEEDS, "9" * 30],
    "reducer_of": PATHS, "--reducer-of": PATHS,
    "--max-entries": COUNTS, "prune --seed": [*SEEDS, "9" * 30], "--similarity": [*REAL, "1.01"],
    "root": PATHS, "build": PATHS, "address": ADDRESSES,
    "--peers": ["", "nonsense", "a:1,nonsense", "a:65536", "file:", "dns:///"], "--admin-listen": ADDRESSES,
    "--health-listen": ADDRESSES, "--ordinal": ["-1", "x", "", "0.5", "9" * 30],
    "--metrics-listen": ADDRESSES, "--log-format": NAMES, "--reload-interval": REAL, "--build-grace": REAL,
    "--tls-cert": PATHS, "--tls-key": PATHS, "--tls-client-ca": PATHS, "--token-file": PATHS,
    "--admin-token-file": PATHS, "--learn": PATHS, "--learn-token-file": PATHS,
    "--learn-max-rate": LIMITED, "--learn-max-entries": LIMITED,
    "--max-request-bytes": LIMITED, "--max-streams": LIMITED, "--keepalive-s": [*REAL, "0"], "--max-age-s": REAL,
}  # fmt: skip
"""By option, or by command and option where an option is not the same everywhere."""
WRONG |= {f"replay {option}": WRONG[f"bench {option}"] for option in ("--nodes", "--json")}

ANYTHING_GOES = {"--prompt"}
TOGETHER = {"--answers-out": ["--respond"], "--max-new-tokens": ["--respond"], "--temperature": ["--respond"]}
"""What else `build` wants to see, or it would complain of that."""


def options(commands: dict[str, Command]) -> Iterator[tuple[str, str]]:
    """The commands with those of their options that take a value."""
    for name, command in commands.items():
        parser = argparse.ArgumentParser(add_help=False)
        command.add_arguments(parser)
        for action in parser._actions:
            if action.nargs != 0:
                yield name, action.option_strings[-1] if action.option_strings else action.dest


EVERY_OPTION = [(decoder, *one) for one in options(DECODER)] + [(retriever, *one) for one in options(RETRIEVER)]


POSITIONAL = [(command, option) for _, command, option in EVERY_OPTION if not option.startswith("--")]


def wrong_values(command: str, option: str) -> list[str]:
    if option in ANYTHING_GOES:
        return []
    by_command = f"{command} {option}"
    return WRONG[by_command] if by_command in WRONG else WRONG[option]


@pytest.mark.parametrize(("main", "command", "option"), EVERY_OPTION, ids=[" ".join(one[1:]) for one in EVERY_OPTION])
def test_a_value_that_is_never_right_is_wrong_usage(
    main: Callable[[list[str]], int], command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in wrong_values(command, option):
        if option.startswith("--"):
            arguments = [*REQUIRED[command], *(TOGETHER.get(option, []) if command in ("add", "build") else [])]
            arguments.append(f"{option}={value}")
        else:
            positions = [one for name, one in POSITIONAL if name == command]
            arguments = [value if one == option else valid for one, valid in zip(positions, REQUIRED[command])]  # noqa: B905
        try:
            code: object = main([command, *arguments])
        except SystemExit as ending:
            code = ending.code
        captured = capsys.readouterr()
        assert code == 2, (arguments, captured.err)
        complaints = [line for line in captured.err.splitlines() if "error: " in line]
        assert len(complaints) == 1, captured.err
        assert len(complaints[0]) < 600
        assert captured.out == ""


def test_every_command_is_looked_at() -> None:
    assert set(REQUIRED) == {*DECODER, *RETRIEVER}
    assert len(EVERY_OPTION) > 50


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        *((decoder, [command, *REQUIRED.get(command, [])]) for command in DECODER),
        *((retriever, [command, *REQUIRED.get(command, [])]) for command in RETRIEVER),
        (retriever, ["build", *REQUIRED["build"], "--ray-address", "127.0.0.1:6379"]),
        (decoder, ["generate", *REQUIRED["generate"], "--device", "cuda:99", "--seed", str(2**64 - 1)]),
    ],
    ids=lambda value: " ".join(value[:1] + value[-2:]) if isinstance(value, list) else "",
)
def test_what_only_the_files_tell_is_a_failure(
    main: Callable[[list[str]], int],
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("error: ")
