"""A cluster in miniature: the retrievers' StatefulSet, its Services' names and its probes, played step by step.

Every step is what a controller would do: an init container before the others, a probe before an address, a rollout from
the highest ordinal down, a restart of what died. The pace is the test's.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from k8s.checks.rendering import Manifest, pods
from tests.support.manifests import Container, one
from tests.support.pods import PlayedPod, Volume
from tests.support.serving import PATIENCE_S, eventually

RETRIEVER = "dresd-retriever"
_FIRST_ADDRESS = 10
_DECODER_ADDRESS = 5


def _environment(container: Container, ordinal: int = 0) -> dict[str, str]:
    """As its manifest says, but for where machine code is kept: it lies in the project's copy, made already."""
    said = container.environment(ordinal)
    said.pop("NUMBA_CACHE_DIR", None)
    return {"HOME": "/tmp", **said}  # noqa: S108 - a container's own


class RetrieverPod:
    """One pod of the StatefulSet; its disk outlives it."""

    def __init__(self, ordinal: int, folder: Path, hosts: Path, outside: dict[str, Path]) -> None:
        self.ordinal = ordinal
        self._folder, self._outside = folder, outside
        name, project = f"{RETRIEVER}-{ordinal}", outside["project"]
        self._net = PlayedPod(name, _FIRST_ADDRESS + ordinal, folder, hosts, project)
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.address = self._net.address

    def start(self, documents: list[Manifest]) -> bool:
        """Runs init containers to their end, then starts the others; whether all init containers did their work."""
        (pod,) = [each for each in pods(documents) if each.owner["metadata"]["name"] == RETRIEVER]
        self._containers = {spec["name"]: Container(pod, spec, documents) for spec in pod.containers}
        for name, container in self._containers.items():
            process = self.run(name)
            is_first = "restartPolicy" not in container.spec and container.spec in pod.spec["initContainers"]
            if is_first and process.wait(PATIENCE_S) != 0:
                return False
        return True

    def run(self, name: str) -> subprocess.Popen[str]:
        """Starts one of its containers, for the first time or again."""
        container = self._containers[name]
        arguments = container.arguments(_environment(container, self.ordinal))
        self._processes[name] = self._start(container, arguments)
        return self._processes[name]

    def execute(self, *arguments: str) -> str:
        """`kubectl exec POD -c retriever -- dresd-retriever ...`: what it prints."""
        process = self._start(self._containers["retriever"], arguments)
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, self.log("retriever")
        return output

    def _start(self, container: Container, arguments: Sequence[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "retriever_service.cli", *arguments]
        volumes = [self._volume(mount) for mount in container.spec["volumeMounts"]]
        if "bucket" in self._outside:
            volumes.append(Volume(self._outside["bucket"], "/bucket", read_only=True))
        return self._net.start(container, command, _environment(container, self.ordinal), volumes)

    def is_ready(self) -> bool:
        """What the readiness probe finds."""
        probe = self._containers["retriever"].spec["readinessProbe"]
        with grpc.insecure_channel(f"{self.address}:{probe['grpc']['port']}") as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1.0)
            except grpc.RpcError:
                return False
        return answer.status == health_pb2.HealthCheckResponse.SERVING

    def wait_until_ready(self) -> None:
        def ready() -> bool:
            assert self._processes["retriever"].poll() is None, self.log("retriever")
            return self.is_ready()

        eventually(ready)

    def build(self) -> str:
        """The build that its metrics say is current."""
        port = next(each for each in self._containers["retriever"].spec["ports"] if each["name"] == "metrics")
        url = f"http://{self.address}:{port['containerPort']}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            families = text_string_to_metric_families(response.read().decode())
        (found,) = [
            sample.labels["build_id"]
            for family in families
            for sample in family.samples
            if sample.name == "dresd_retriever_build_info"
        ]
        return found

    def kill(self) -> None:
        """The server dies, as by a fault or for want of memory; the sidecar stays."""
        self._end("retriever", signal.SIGKILL)

    def stop(self) -> None:
        """As a pod ends: the server first, and in order, then the sidecar."""
        assert self._end("retriever", signal.SIGTERM) == 0, self.log("retriever")
        self._end("follow", signal.SIGTERM)

    def log(self, name: str) -> str:
        return self._net.log_of(name).read_text()

    def _end(self, name: str, number: signal.Signals) -> int:
        process = self._processes.pop(name)
        process.send_signal(number)
        return process.wait(PATIENCE_S)

    def _volume(self, mount: Manifest) -> Volume:
        name = mount["name"]
        source = self._outside.get(name, self._folder / name)
        if not source.exists():
            source.mkdir()
            source.chmod(0o777)
        return Volume(source, mount["mountPath"], mount.get("readOnly", False))


class Miniature:
    """The StatefulSet's controller, the kubelet and the cluster's names.

    Args:
        folder: of this machine, for everything.
        outside: folders by the name of the volume that they stand for, and `bucket` and `project`.
    """

    def __init__(self, folder: Path, outside: dict[str, Path]) -> None:
        self._folder, self._outside = folder, outside
        folder.mkdir(parents=True)
        self.hosts = folder / "hosts"
        self.hosts.write_text("")
        self.pods: dict[int, RetrieverPod] = {}

    def apply(self, documents: list[Manifest]) -> None:
        """The first time: all pods at once, as the pod management policy says."""
        spec = one(documents, "StatefulSet", RETRIEVER)["spec"]
        assert spec["podManagementPolicy"] == "Parallel"
        for ordinal in range(spec["replicas"]):
            self.pods[ordinal] = RetrieverPod(ordinal, self._folder / str(ordinal), self.hosts, self._outside)
            assert self.pods[ordinal].start(documents), self.pods[ordinal].log("fetch")
        for pod in self.pods.values():
            pod.wait_until_ready()
        self.publish_addresses()

    def roll(self, documents: list[Manifest], between: Callable[[], None]) -> None:
        """Replaces pods one at a time, the highest ordinal first, the next when the last one is ready."""
        for ordinal, pod in sorted(self.pods.items(), reverse=True):
            self.publish_addresses(without=ordinal)
            pod.stop()
            between()
            assert pod.start(documents), pod.log("fetch")
            pod.wait_until_ready()
            self.publish_addresses()

    def publish_addresses(self, without: int | None = None) -> None:
        """The headless Service's records: of pods that are ready and not about to go."""
        ready = [pod for ordinal, pod in self.pods.items() if ordinal != without and pod.is_ready()]
        # In place: it is bind-mounted into the containers.
        self.hosts.write_text("".join(f"{pod.address} dresd-retriever-direct\n" for pod in ready))

    def builds(self) -> set[str]:
        """The builds that are current in some pod."""
        return {pod.build() for pod in self.pods.values()}


def run_in_job(
    documents: list[Manifest], name: str, command: Sequence[str], folder: Path, outside: dict[str, Path]
) -> None:
    """`kubectl exec` in a Job's pod: a command with the files that its container has."""
    (pod,) = [each for each in pods(documents) if each.owner["metadata"]["name"] == name]
    (container,) = [Container(pod, spec, documents) for spec in pod.containers]
    volumes = [
        Volume(outside[mount["name"]], mount["mountPath"], read_only=False) for mount in container.spec["volumeMounts"]
    ]
    net = PlayedPod(name, _DECODER_ADDRESS, folder, empty_hosts(folder), outside["project"])
    process = net.start(container, command, _environment(container), volumes)
    assert process.wait(PATIENCE_S) == 0, net.log_of(container.spec["name"]).read_text()


def empty_hosts(folder: Path) -> Path:
    """A pod's /etc/hosts in which there is nobody."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hosts").write_text("")
    return folder / "hosts"


class DecoderPod:
    """The decoders' pod, with a program of ours in vLLM's place that decodes when told to."""

    def __init__(self, documents: list[Manifest], folder: Path, hosts: Path, outside: dict[str, Path]) -> None:
        (pod,) = [each for each in pods(documents) if each.owner["metadata"]["name"] == "dresd-decoder"]
        container = Container(pod, pod.spec["containers"][0], documents)
        mounts = {mount["name"]: mount["mountPath"] for mount in container.spec["volumeMounts"]}
        volumes = [
            Volume(outside[name], mounts[name], read_only=name != "scratch")
            for name in ("authority", "token", "scratch")
        ]
        net = PlayedPod("dresd-decoder", _DECODER_ADDRESS, folder, hosts, outside["project"])
        command = [sys.executable, "-m", "tests.support.decoding_pod"]
        self._log = net.log_of(container.spec["name"])
        self._process = net.start(container, command, _environment(container), volumes)

    def heard(self) -> dict[str, Any]:
        """What it says of its next answer; it decodes all the time."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text()
        found: dict[str, Any] = json.loads(line)
        return found

    def fresh(self) -> dict[str, Any]:
        """Of an answer that was begun after now: what is said already, and the answer under way, are passed over."""
        self._process.send_signal(signal.SIGUSR1)
        while not (said := self.heard())["fresh"]:
            pass
        return said
