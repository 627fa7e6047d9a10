"""The rendered manifests as tests read them: containers with their environment and commands filled in."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dresd.command_line import Command
from k8s.checks.rendering import K8S, Manifest, Pod, pods

_REFERENCE = re.compile(r"\$\(([A-Z_][A-Z0-9_]*)\)")

OURS = {"retriever": "dresd-retriever", "retriever-gpu": "dresd-retriever", "dresd-retriever": "dresd-retriever"}
"""Images whose entry point is a command of ours."""


@dataclass(frozen=True)
class Container:
    """One container of a pod of an overlay."""

    pod: Pod
    spec: Manifest
    documents: list[Manifest]

    @property
    def name(self) -> str:
        return f"{self.pod.name}/{self.spec['name']}"

    @property
    def image(self) -> str:
        return self.spec["image"].rpartition("/")[2].partition(":")[0].partition("@")[0]

    def environment(self, ordinal: int = 0) -> dict[str, str]:
        """As the kubelet sets it: ConfigMaps, then variables; what only a cluster knows has a value of its kind."""
        found: dict[str, str] = {}
        for source in self.spec.get("envFrom", []):
            found |= one(self.documents, "ConfigMap", source["configMapRef"]["name"])["data"]
        for variable in self.spec.get("env", []):
            found[variable["name"]] = variable["value"] if "value" in variable else self._looked_up(variable, ordinal)
        return found

    def arguments(self, environment: Mapping[str, str]) -> list[str]:
        """`args` with references filled in; one to a variable that is not there fails."""
        return [_REFERENCE.sub(lambda match: environment[match[1]], each) for each in self.spec.get("args", [])]

    def _looked_up(self, variable: Manifest, ordinal: int) -> str:
        source = variable["valueFrom"]
        if "resourceFieldRef" in source:
            kind, name = source["resourceFieldRef"]["resource"].split(".")
            return str(self.spec["resources"][kind][name])
        path = source["fieldRef"]["fieldPath"]
        if path == "metadata.labels['apps.kubernetes.io/pod-index']":
            return str(ordinal)
        assert path == "metadata.labels['batch.kubernetes.io/job-name']", path
        return "name-of-the-job"


def containers(documents: list[Manifest]) -> list[Container]:
    return [Container(pod, spec, documents) for pod in pods(documents) for spec in pod.containers]


def one(documents: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = [each for each in documents if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def names(documents: list[Manifest], kind: str) -> set[str]:
    return {each["metadata"]["name"] for each in documents if each["kind"] == kind}


def every(node: object, key: str) -> Iterator[Any]:
    """All values of a key, wherever in a manifest it is."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key:
                yield value
            yield from every(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from every(value, key)


def matches(selector: Manifest, labels: Mapping[str, str]) -> bool:
    """A label selector of whichever form; a StatefulSet's pods have an index of any value."""
    wanted = selector.get("matchLabels", {} if "matchExpressions" in selector else selector)
    if any(labels.get(name) != value for name, value in wanted.items()):
        return False
    return all(
        expression["operator"] == "In"
        and (
            expression["key"] == "apps.kubernetes.io/pod-index" or labels.get(expression["key"]) in expression["values"]
        )
        for expression in selector.get("matchExpressions", [])
    )


def parsed(commands: Mapping[str, Command], arguments: list[str]) -> argparse.Namespace:
    """What the command line makes of them; a flag that it does not know fails."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    subparsers = parser.add_subparsers(dest="command", required=True)
    for name, command in commands.items():
        command.add_arguments(subparsers.add_parser(name))
    return parser.parse_args(arguments)


def commands_of_script(name: str) -> list[list[str]]:
    """The lines of a shell script under k8s/ that call a command of ours, each variable as a word."""
    text = (K8S / name).read_text("utf-8").replace("\\\n", " ")
    text = re.sub(r"\$\{\w+:\+([^}]*)\}", r"\1", text)
    lines = [line.strip() for line in text.splitlines()]
    return [shlex.split(re.sub(r"\$\w+", "4", line)) for line in lines if line.startswith("dresd-")]
