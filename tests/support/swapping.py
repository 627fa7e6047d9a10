"""Roots of small builds, and what tells whether a process still holds one."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import grpc

from dresd.v1 import admin_pb2
from dresd.v1 import admin_pb2_grpc as admin_grpc
from retriever_service.datastore import publish
from retriever_service.serving.server import ServeConfig
from tests.support.datastore import BuiltDatastore
from tests.support.serving import PATIENCE_S, ServerThread, local_config, servable_datastore

SOON_S = 0.02
"""A look at `CURRENT` so often that no test waits for it."""
LONG_S = 10 * PATIENCE_S


@dataclass(frozen=True)
class Root:
    """Builds beside each other, by name; `first` is published."""

    path: Path
    builds: dict[str, BuiltDatastore]

    def publish(self, name: str) -> None:
        publish(self.path, self.path / name, allow_other_model=True)

    def add_copy(self, name: str, of: str) -> Path:
        return Path(shutil.copytree(self.path / of, self.path / name))


def root_of_builds(path: Path, **builds: dict[str, object]) -> Root:
    """A root with a build for each name, made with the options given; the first one is published."""
    made = {name: servable_datastore(path / name, build_id=name, **options) for name, options in builds.items()}
    root = Root(path, made)
    root.publish(next(iter(builds)))
    return root


def swapping_config(path: Path | None, **options: object) -> ServeConfig:
    """Looks for builds only when told to, unless the options say otherwise; with an admin port."""
    chosen = {"admin_listen": "127.0.0.1:0", "reload_interval_s": 0.0, "build_grace_s": LONG_S, **options}
    return local_config(path, **chosen)


class Admin:
    """The admin service of a server in this process."""

    def __init__(self, server: ServerThread | str) -> None:
        address = server if isinstance(server, str) else f"127.0.0.1:{server.server.admin_port}"
        self.address = address
        self._channel = grpc.insecure_channel(address)
        self._stub = admin_grpc.AdminStub(self._channel)

    def reload(self, collection: str = "", **options: object) -> admin_pb2.ReloadResponse:
        return self._stub.Reload(admin_pb2.ReloadRequest(collection=collection, **options), timeout=PATIENCE_S)

    def refusal(self, collection: str = "") -> tuple[grpc.StatusCode, str]:
        """Of a reload that must be refused."""
        try:
            answer = self.reload(collection)
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
        raise AssertionError(f"it was not refused: {answer}")

    def status(self, collection: str = "default") -> admin_pb2.CollectionStatus:
        answer = self._stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=PATIENCE_S)
        (found,) = [each for each in answer.collections if each.name == collection]
        return found

    def builds(self, collection: str = "default") -> list[str]:
        return [build.build_id for build in self.status(collection).builds]

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()


def held(folder: Path, process: str = "self") -> list[str]:
    """What a process has mapped or opened of a folder's files."""
    proc = Path("/proc") / process
    mapped = [line.split(maxsplit=5)[5] for line in (proc / "maps").read_text().splitlines() if f"{folder}/" in line]
    opened = []
    for link in (proc / "fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:  # closed meanwhile
            continue
        if target.startswith(f"{folder}/"):
            opened.append(target)
    return mapped + opened
