"""Tests with the real vLLM, which has a virtual environment of its own: `make test-vllm`. Elsewhere there are none."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

HAS_VLLM = find_spec("vllm") is not None
collect_ignore_glob = [] if HAS_VLLM else ["test_*.py"]

if HAS_VLLM:
    # Read when vLLM is imported. In one process, a test can look at the drafter and step the engine.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"
    # vLLM for processors looks into every module when an engine is made, and fails on one of llvmlite, which numba
    # brings (docs/vllm.md, "Known trouble"). What it does there is done once, before anything of ours is imported.
    from vllm.platforms.cpu import CpuPlatform

    CpuPlatform.register_triton_kernel_overrides()
    CpuPlatform.register_triton_kernel_overrides = classmethod(lambda _cls: None)

from tests.support.evaluation import TinyWorld, tiny_world  # noqa: E402


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    """A tiny model whose heads are as wide as vLLM's kernels want them, its datastore and its answers."""
    return tiny_world(tmp_path_factory.mktemp("world"), head_dim=32, hidden_size=64)
