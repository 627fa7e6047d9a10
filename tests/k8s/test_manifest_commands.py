"""Every flag, variable and file that a manifest gives to a command of ours is one that it knows."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import pytest

from decoder_client.engines.vllm.settings import ProposerSettings
from dresd.peer_access import PeerAccess
from k8s.checks.rendering import K8S, OVERLAYS, manifests
from retriever_service.cli import COMMANDS
from retriever_service.commands import serve_operations
from retriever_service.serving.config import ServeConfig, split_address
from tests.support.manifests import OURS, Container, commands_of_script, containers, every, one, parsed

ROOT = K8S.parent
FOREIGN = {"HF_HOME", "HOME", "NUMBA_CACHE_DIR", "OMP_NUM_THREADS", "RAY_USAGE_STATS_ENABLED", "VLLM_CACHE_ROOT"}
"""Variables of other people's programs."""

ALL = [(overlay, container) for overlay in OVERLAYS for container in containers(manifests(overlay))]
COMMANDED = [
    (overlay, container) for overlay, container in ALL if container.image in OURS and "command" not in container.spec
]


def each(pairs: list[tuple[str, Container]]) -> list[object]:
    return [pytest.param(container, id=f"{overlay}/{container.name}") for overlay, container in pairs]


@pytest.mark.parametrize("container", each(COMMANDED))
def test_the_command_line_accepts_the_arguments(container: Container):
    arguments = parsed(COMMANDS, container.arguments(container.environment(ordinal=3)))
    assert arguments.command in {"serve", "fetch"}
    assert arguments.ordinal == 3


def test_every_overlay_has_retrievers():
    assert {overlay for overlay, _ in COMMANDED} == set(OVERLAYS)
    assert len(COMMANDED) == 3 * len(OVERLAYS)


@pytest.mark.parametrize("words", commands_of_script("components/build/build.sh"), ids=lambda words: words[1])
def test_the_command_line_accepts_what_the_build_script_says(words: list[str]):
    program, *arguments = words
    assert program == "dresd-retriever"
    parsed(COMMANDS, arguments)


def used_by(container: Container) -> set[str]:
    """Variables that something in the container reads: its own arguments, or the build script."""
    text = " ".join([*container.spec.get("args", []), *container.spec.get("command", [])])
    text += str(container.pod.owner["spec"].get("entrypoint", ""))
    found = set(re.findall(r"\$\((\w+)\)", text))
    if "build.sh" in text:
        found |= set(re.findall(r"\$\{?([A-Z_]+)", (K8S / "components/build/build.sh").read_text("utf-8")))
    return found


def known_of_ours() -> set[str]:
    serve = {variable for variable, _ in serve_operations._FILES.values()}
    caller = set(re.findall(r'(?:text|path|switch)\("([A-Z_]+)"\)', inspect.getsource(PeerAccess.from_environment)))
    assert len(caller) >= 7
    return serve | {f"DRESD_RETRIEVER_{name}" for name in caller} | {"DRESD_CACHE"}


@pytest.mark.parametrize("container", each(ALL))
def test_every_variable_is_read_by_somebody(container: Container):
    known = FOREIGN | used_by(container) | known_of_ours()
    if container.image == "decoder-example":
        known |= {f"DRESD_{field.name.upper()}" for field in fields(ProposerSettings)}
    said = set(container.environment())
    # A ConfigMap that several containers share says more than each of them needs.
    shared = {
        name
        for source in container.spec.get("envFrom", [])
        for name in one(container.documents, "ConfigMap", source["configMapRef"]["name"])["data"]
    }
    readers = [other for _, other in ALL if set(other.environment()) & shared]
    assert said - shared <= known, container.name
    assert shared <= set().union(*map(used_by, readers)) | known, container.name


@pytest.mark.parametrize("container", each(COMMANDED))
def test_ports_that_are_named_are_listened_on(container: Container):
    arguments = parsed(COMMANDS, container.arguments(container.environment()))
    ports = {port["name"]: port["containerPort"] for port in container.spec.get("ports", [])}
    if arguments.command != "serve":
        assert list(ports) == ["fetch-metrics"] * (arguments.every is not None)
        assert all(split_address(arguments.metrics_listen) == ("", port) for port in ports.values())
        return
    listened = {"grpc": arguments.listen, "health": arguments.health_listen, "metrics": arguments.metrics_listen}
    assert ports == {name: split_address(address)[1] for name, address in listened.items()}
    assert {split_address(address)[0] for address in listened.values()} == {""}  # from other pods
    assert split_address(arguments.admin_listen)[0] == "127.0.0.1"  # and this one from none
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container.spec[probe]["grpc"]["port"] == ports["health"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_has_time_to_drain(overlay: str):
    pod = one(manifests(overlay), "StatefulSet", "dresd-retriever")["spec"]["template"]["spec"]
    (before,) = [each["lifecycle"]["preStop"]["sleep"]["seconds"] for each in pod["containers"]]
    drains = ServeConfig(Path("d")).shutdown_grace_s
    assert before + drains < pod["terminationGracePeriodSeconds"]


def test_versions_are_those_of_this_project():
    pinned = dict(
        line.partition(";")[0].strip().split("==")
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
        if "==" in line and not line.startswith("#")
    )
    documents = manifests("production")
    assert set(every(documents, "rayVersion")) == {pinned["ray"]}
    tags = {image.rpartition(":")[2] for image in every(documents, "image")}
    assert tags == {version("dresd")}
    assert f"ARG VERSION={version('dresd')}" in (ROOT / "Dockerfile").read_text("utf-8")


def test_the_dockerfile_has_a_target_for_every_image():
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE))
    images = {
        image.rpartition("/")[2].partition(":")[0] for name in OVERLAYS for image in every(manifests(name), "image")
    }
    assert {image.removeprefix("dresd-") for image in images} <= targets
