"""The script that builds in a pod, with a command in dresd-retriever's place that writes down how it was called."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from k8s.checks.rendering import K8S

SCRIPT = K8S / "components" / "build" / "build.sh"
_STAND_IN = """#!/bin/sh
echo "$@" >> "$CALLS"
[ "$1" != "$FAILS" ] || exit 1
while [ $# -gt 0 ]; do
  if [ "$1" = --out ]; then mkdir -p "$2"; : > "$2/manifest.json"; fi
  shift
done
"""


class Job:
    """One build by its name, tried as often as a test wants."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls = folder / "calls"
        command = folder / "dresd-retriever"
        command.write_text(_STAND_IN)
        command.chmod(0o755)

    def run(self, fails: str = "", **variables: str) -> tuple[int, list[str]]:
        """Exit code, and the commands that were given."""
        self._calls.write_text("")
        environment = {
            "PATH": f"{self._folder}:/usr/bin:/bin",
            "CALLS": str(self._calls),
            "FAILS": fails,
            "MODEL": "/m",
            "CORPUS": "/c",
            "PARTITIONS": "4",
            "BUILD_NAME": "b",
            "BUILDS": str(self._folder),
            "DATASTORE_URL": "s3://x/y",
            **variables,
        }
        done = subprocess.run(["sh", str(SCRIPT)], check=False, env=environment)
        return done.returncode, self._calls.read_text().splitlines()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def words(calls: list[str]) -> list[str]:
    return [call.split()[0] for call in calls]


def test_it_builds_verifies_and_publishes(job: Job, tmp_path: Path):
    code, calls = job.run()
    assert code == 0
    assert words(calls) == ["build", "verify", "push"]
    assert "--ray-address" not in calls[0]
    assert calls[2] == f"push {tmp_path}/b s3://x/y"


def test_it_joins_the_cluster_it_is_told_of(job: Job):
    _, calls = job.run(BUILD_RAY_ADDRESS="auto")
    assert calls[0].endswith("--ray-address auto")


@pytest.mark.parametrize(("fails", "again"), [("build", ["build", "verify", "push"]), ("push", ["verify", "push"])])
def test_a_retry_does_what_is_left(job: Job, fails: str, again: list[str]):
    code, calls = job.run(fails)
    assert code != 0
    assert words(calls)[-1] == fails
    code, calls = job.run()
    assert code == 0
    assert words(calls) == again


def test_what_is_not_right_is_not_published(job: Job):
    code, calls = job.run("verify")
    assert code != 0
    assert "push" not in words(calls)


def test_a_variable_that_is_missing_is_no_empty_one():
    done = subprocess.run(
        ["sh", str(SCRIPT)], check=False, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode != 0
    assert "BUILD" in done.stderr
