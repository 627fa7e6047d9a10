"""Pods without a cluster: a network namespace each, and containers as processes in a root of their own.

A container sees what its manifest mounts, the interpreter and a copy of this project; its root is read-only, it runs as
the user that the manifest names, without capabilities, with the manifest's environment and no other. For a process that
has network, mount and process namespaces of its own (see `isolated`), so that nothing of it outlives or leaves it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.manifests import Container

ROOT = Path(__file__).resolve().parents[2]
BRIDGE = "pods"
SUBNET = "198.18.0"
"""Of addresses that nobody has; they exist in our own namespaces only."""
_TOOLS = ("unshare", "nsenter", "ip", "mount", "chroot", "setpriv")
_NETNS = Path("/run/netns")
_SYSTEM = ("bin", "sbin", "lib", "lib64", "usr")
_CONTAINER = r"""
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$R"
mkdir -p "$R/proc" "$R/dev" "$R/etc"
for name in $SYSTEM; do
  if [ -L "/$name" ]; then cp -P "/$name" "$R/$name"
  elif [ -d "/$name" ]; then mkdir "$R/$name"; mount --bind "/$name" "$R/$name"; mount -o remount,bind,ro "$R/$name"; fi
done
mount --rbind /proc "$R/proc"
mount --rbind /dev "$R/dev"
printf 'hosts: files\n' > "$R/etc/nsswitch.conf"
printf 'multi on\n' > "$R/etc/host.conf"
printf 'dresd:x:%s:%s::/tmp:/bin/sh\n' "$USER_ID" "$USER_ID" > "$R/etc/passwd"
: > "$R/etc/hosts"; mount --bind "$HOSTS" "$R/etc/hosts"
eval "$MOUNTS"
mount -o remount,ro "$R"
exec chroot "$R" setpriv --reuid "$USER_ID" --regid "$USER_ID" --clear-groups --no-new-privs --bounding-set=-all \
  --inh-caps=-all -- env -i "$@"
"""


def missing() -> str:
    """Why pods cannot be played here; "" where they can."""
    if os.geteuid() != 0:
        return "pods need root, for namespaces"
    if lacking := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"pods need {', '.join(lacking)}"
    done = subprocess.run(
        [*isolated(), "ip", "link", "add", BRIDGE, "type", "bridge"], check=False, capture_output=True, text=True
    )
    return done.stderr.strip()


def isolated() -> list[str]:
    """Before a command that is to have namespaces of its own, and to leave no process behind."""
    return ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def copy_of_project(folder: Path, user: int) -> Path:
    """What an image would hold of this project, with the machine code that numba made; `user` may add some."""
    for name in ("decoder_client", "k8s/checks", "proto", "retriever_service", "tests/support"):
        shutil.copytree(ROOT / name, folder / name)  # with times, by which numba knows its sources
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user)
    return folder


def prepare_node() -> None:
    """Once, in the isolated process: a bridge that pods are plugged into."""
    _NETNS.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "tmpfs", str(_NETNS))
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", BRIDGE, "type", "bridge")
    _run("ip", "addr", "add", f"{SUBNET}.1/24", "dev", BRIDGE)
    _run("ip", "link", "set", BRIDGE, "up")


@dataclass(frozen=True)
class Volume:
    """A folder of this machine, and where a container has it."""

    source: Path
    target: str
    read_only: bool


class PlayedPod:
    """A network namespace with an address, in which containers are started.

    Args:
        name: of the namespace.
        number: of the address, 2 to 254.
        folder: for roots and logs.
        hosts: the file that its containers have as /etc/hosts.
        project: made by `copy_of_project`.
    """

    def __init__(self, name: str, number: int, folder: Path, hosts: Path, project: Path) -> None:
        self.address = f"{SUBNET}.{number}"
        self._name, self._folder, self._hosts, self._project = name, folder, hosts, project
        folder.mkdir(parents=True, exist_ok=True)
        outside = f"to{number}"
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", outside, "master", BRIDGE, "up")
        _run("ip", "-n", name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run("ip", "-n", name, "link", "set", device, "up")

    def start(
        self, container: Container, command: Sequence[str], environment: dict[str, str], volumes: Sequence[Volume]
    ) -> subprocess.Popen[str]:
        """Starts one; its stdout is a pipe, its stderr goes to a log."""
        root = self._folder / f"root-{container.spec['name']}"
        root.mkdir(exist_ok=True)
        user = str(container.pod.spec["securityContext"]["runAsUser"])
        assert container.spec["securityContext"]["readOnlyRootFilesystem"]
        said = {
            **environment,
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}",
            "PYTHONUNBUFFERED": "1",
        }
        variables = {
            "PATH": os.environ["PATH"], "R": str(root), "HOSTS": str(self._hosts), "USER_ID": user,
            "SYSTEM": " ".join(_SYSTEM), "MOUNTS": "\n".join(_mounts(root, [*volumes, *self._image()])),
        }  # fmt: skip
        words = ["nsenter", f"--net={_NETNS / self._name}", "unshare", "--mount", "sh", "-c", _CONTAINER, "container"]
        with self.log_of(container.spec["name"]).open("a") as log:
            return subprocess.Popen(
                [*words, *(f"{name}={value}" for name, value in said.items()), *command],
                env=variables, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def _image(self) -> list[Volume]:
        """What an image would bring. Last, because it may lie within a folder that a volume covers."""
        python = {Path(sys.prefix), Path(sys.base_prefix)} - {Path("/usr")}
        project = Volume(self._project, str(ROOT), read_only=False)
        # The environment may lie in the project's folder.
        return [project, *(Volume(folder, str(folder), read_only=True) for folder in sorted(python))]

    def log_of(self, container: str) -> Path:
        return self._folder / f"{container}.log"


def _mounts(root: Path, volumes: Sequence[Volume]) -> list[str]:
    lines = []
    for volume in volumes:
        source, target = shlex.quote(str(volume.source)), shlex.quote(f"{root}{volume.target}")
        lines += [f"mkdir -p {target}", f"mount --bind {source} {target}"]
        if volume.read_only:
            lines.append(f"mount -o remount,bind,ro {target}")
    return lines


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
