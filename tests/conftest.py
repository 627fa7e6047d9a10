"""Fixtures shared by all tests."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from scripts.prepare_model import cache_folder, prepare
from scripts.prepare_prometheus import prepare as prepare_prometheus

if TYPE_CHECKING:
    from decoder_client.target_model import TargetModel
    from tests.support.datastore import BuiltDatastore
    from tests.support.evaluation import TinyWorld

# Read when torch and FAISS are imported, here and in the processes that tests start: two processes with a thread a
# core each spin for the same cores and run many times slower than with one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test is about time, and an example may well take long on a busy machine.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

_BUILT_ONCE = ("SmolLM2-135M-Instruct", "suffix-decoding-*")
_USERS_CACHE = cache_folder()
_CACHE = tempfile.TemporaryDirectory(prefix="dresd-tests-")


def pytest_configure() -> None:
    """Gives the run a cache folder of its own, which lends from the user's only what takes long to make."""
    for pattern in _BUILT_ONCE:
        for made in _USERS_CACHE.glob(pattern):
            (Path(_CACHE.name) / made.name).symlink_to(made.resolve())
    os.environ["DRESD_CACHE"] = _CACHE.name


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """A command configures logging as for a process of its own, with a stderr that ends with its test."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    yield
    root.handlers = handlers


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltDatastore:
    """A small datastore in one partition, for all who only read it."""
    from tests.support.serving import servable_datastore

    return servable_datastore(tmp_path_factory.mktemp("built") / "store")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    """A tiny model, answers of its own and a datastore of others, for all who only read them."""
    from tests.support.evaluation import tiny_world

    return tiny_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def target() -> TargetModel:
    """A tiny random target model that fits the small datastores' hidden size and vocabulary."""
    import torch

    from decoder_client.target_model import TargetModel
    from tests.support.models import tiny_model
    from tests.support.serving import HIDDEN, VOCAB

    torch.manual_seed(9)
    return TargetModel(tiny_model("llama", vocab_size=VOCAB, hidden_size=HIDDEN))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the real SmolLM2-135M-Instruct; fetched and converted if `make model` has not done so."""
    return prepare(_USERS_CACHE)


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """The folder with Prometheus's programs; fetched from Debian if `make manifests` has not done so."""
    if shutil.which("apt-get") is None:
        pytest.skip("Prometheus comes from Debian's packages, and this machine has no apt-get")
    return prepare_prometheus(_USERS_CACHE)
