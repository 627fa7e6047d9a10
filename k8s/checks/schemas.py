"""Every manifest against the schema of its kind; one whose kind has none is an error, never passed over."""

from __future__ import annotations

from collections.abc import Iterator

import jsonschema
import kubernetes_validate
import yaml
from kubernetes_validate.utils import all_versions, major_minor

from k8s.checks.rendering import K8S, Manifest, Pod, pods

VERSIONS = list(dict.fromkeys(major_minor(version) for version in all_versions()))[-3:]
"""The three newest that kubernetes-validate brings."""


def problems(documents: list[Manifest]) -> Iterator[str]:
    """What is wrong, a line each."""
    ours = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in (K8S / "schemas").glob("*.yaml")}
    for document in [*documents, *as_jobs(documents)]:
        name = f"{document['kind']}/{document['metadata']['name']}"
        schema = ours.get(f"{document['kind']}.{document['apiVersion'].replace('/', '_')}")
        if schema is not None:
            for error in jsonschema.Draft202012Validator(schema).iter_errors(document):
                yield f"{name}: {error.json_path}: {error.message[:300]}"
            continue
        yield from filter(None, (_problem(document, name, version) for version in VERSIONS))


def _problem(document: Manifest, name: str, version: str) -> str | None:
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        return f"{name}: neither Kubernetes {version} nor k8s/schemas knows this kind"
    except kubernetes_validate.ValidationError as error:
        return f"{name}: Kubernetes {version}: {error.json_path}: {error.message[:300]}"
    return None


def as_jobs(documents: list[Manifest]) -> list[Manifest]:
    """The pods of kinds that general tools do not know, as Jobs: what runs to its end, and has no probes of ours."""
    return [_as_job(pod) for pod in pods(documents) if pod.owner["kind"] == "RayJob"]


def _as_job(pod: Pod) -> Manifest:
    metadata = {
        "name": pod.name.lower().replace("/", "-"),
        "namespace": pod.owner["metadata"].get("namespace"),
        "annotations": pod.metadata.get("annotations", {}),
    }
    template = {"metadata": pod.metadata, "spec": {"restartPolicy": "Never", **pod.spec}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}
