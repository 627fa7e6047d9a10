"""Runs every check of the manifests and says what is wrong; exit code 1 if anything is.

In an environment of its own (requirements.txt beside this file), which `make manifests` makes.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import yaml

from k8s.checks import alerting, queries, schemas
from k8s.checks.rendering import K8S, OVERLAYS, manifests, text_of
from scripts.prepare_model import cache_folder
from scripts.prepare_prometheus import prepare

ROOT = K8S.parent
BIN = Path(sys.executable).parent


def main() -> int:
    """Runs them one after the other."""
    promtool = prepare(cache_folder()) / "promtool"
    checks: list[tuple[str, Callable[[], Iterable[str]]]] = [
        ("yamllint", lambda: _tool("yamllint", "--strict", "k8s", ".yamllint.yaml")),
        ("hadolint", lambda: _tool("hadolint", "Dockerfile")),
        *((f"schemas of {overlay}", lambda overlay=overlay: _schemas(overlay)) for overlay in OVERLAYS),
        ("what schemas refuse", _refusals),
        ("checkov", _checkov),
        ("promtool", lambda: alerting.problems(promtool)),
        ("dashboard queries", queries.problems),
    ]
    failed = 0
    for name, check in checks:
        begun = time.perf_counter()
        found = list(check())
        print(f"{name}: {'failed' if found else 'ok'} ({time.perf_counter() - begun:.1f} s)", flush=True)
        print("".join(f"  {line}\n" for line in found), end="", flush=True)
        failed += bool(found)
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _schemas(overlay: str) -> Iterator[str]:
    documents = manifests(overlay)
    yield from schemas.problems(documents)
    kinds = sorted({document["kind"] for document in documents})
    print(f"  {len(documents)} manifests ({', '.join(kinds)}) for Kubernetes {', '.join(schemas.VERSIONS)}")


def _refusals() -> Iterator[str]:
    """Whether a check of the above would notice: a kind that nobody knows, and a field that a known kind lacks."""
    strange = {"apiVersion": "example.com/v1", "kind": "Strange", "metadata": {"name": "strange"}}
    documents = [strange, *(copy.deepcopy(document) for document in manifests("production"))]
    for document in documents:
        document["surprise"] = 1
    refused = "\n".join(schemas.problems(documents))
    for kind in sorted({document["kind"] for document in documents}):
        if f"{kind}/" not in refused:
            yield f"a wrong {kind} passed"


def _checkov() -> Iterator[str]:
    """Policies on what is rendered; RayJobs' pods as Jobs. What is excepted, and why, is said in .checkov.yaml."""
    with tempfile.TemporaryDirectory() as folder:
        for overlay in OVERLAYS:
            extra = yaml.safe_dump_all(schemas.as_jobs(manifests(overlay)))
            (Path(folder) / f"{overlay}.yaml").write_text(f"{text_of(overlay)}\n---\n{extra}", "utf-8")
        yield from _tool("checkov", "--config-file", ".checkov.yaml", "--directory", folder)
    yield from _tool("checkov", "--config-file", ".checkov.yaml", "--framework", "dockerfile", "--file", "Dockerfile")


def _tool(name: str, *arguments: str) -> Iterator[str]:
    # By the interpreter: a script's first line cannot name one in a path with spaces.
    program = [sys.executable, "-m", "checkov.main"] if name == "checkov" else [BIN / name]
    done = subprocess.run([*program, *arguments], check=False, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        yield from (done.stdout + done.stderr).strip().splitlines() or [f"exit code {done.returncode}"]


if __name__ == "__main__":
    sys.exit(main())
