"""Measures how long the target's forward pass takes by the number of tokens in it, once for a model on a device.

The curve is kept in the cache folder: measuring takes about a hundred passes. Knows the target model and its passes,
not what is drafted.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from decoder_client.cache import TreeCache
from decoder_client.cache_folder import cache_folder
from decoder_client.drafting.cost import CostCurve
from decoder_client.masks import AttentionLayout
from decoder_client.target_model import TargetModel
from dresd.draft_tree import ROOT, DraftTree

logger = logging.getLogger(__name__)

_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 17, 21, 25, 33, 49, 65)
"""Each size up to 9: kernels take rows in groups, so the cost rises in steps, and most drafts on a CPU are small."""
_CONTEXT = 128
_ROUNDS = 5
_BUSY = 1.5
"""An idle machine's ordinary pass takes hardly longer than its fastest one; from this ratio on something else ran."""


def pass_cost(
    target: TargetModel, *, folder: Path | None = None, clock: Callable[[], float] = time.perf_counter
) -> CostCurve:
    """The cost curve of `target` where it is, with the threads it has now: measured, or as it was measured before.

    What was measured while the machine was busy is used, but not kept.

    Args:
        target: any.
        folder: keeps the curve; the cache folder for None.
        clock: seconds.
    """
    with contextlib.suppress(OSError, ValueError):
        kept = _file(target, folder)
        if kept.is_file():
            return CostCurve.from_json(kept.read_text(encoding="utf-8"))
    logger.info("timing the model's forward passes, once for this device")
    curve, spread = measure_pass_cost(target, clock)
    if spread > _BUSY:
        logger.info("the machine was busy meanwhile (spread %.2f), so they will be timed again next time", spread)
        return curve
    # A curve that cannot be kept is measured again next time.
    with contextlib.suppress(OSError):
        file = _file(target, folder)
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{file.name}.{time.monotonic_ns()}")
        try:
            beside.write_text(curve.to_json(), encoding="utf-8")
            beside.replace(file)
        finally:
            beside.unlink(missing_ok=True)
    return curve


@torch.inference_mode()
def measure_pass_cost(target: TargetModel, clock: Callable[[], float]) -> tuple[CostCurve, float]:
    """Times passes over drafts of several sizes in turn, behind a text of ordinary length.

    The fastest of several counts: whatever else runs on the machine only ever adds. The model must have room for three
    tokens.

    Returns:
        The curve, and how many times longer than the fastest pass of its size an ordinary one took: 1 or more.
    """
    layout = AttentionLayout.of(target.config)
    length = min(_CONTEXT, max(1, target.max_length // 2))
    cache = TreeCache()
    text = torch.arange(length, device=target.device)[None] % target.vocab_size
    target.forward(text, torch.arange(length, device=target.device)[None], None, cache, keep=1)
    cache.fill(length)
    times: dict[int, list[float]] = {size: [] for size in _TOKENS}
    for turn in range(_ROUNDS + 1):
        for size in _TOKENS:
            _synchronize(target)
            started = clock()
            if size == 1:
                ids = torch.zeros(1, 1, dtype=torch.int64, device=target.device)
                output = target.forward(ids, torch.tensor([[length]], device=target.device), None, cache, keep=1)
            else:
                flat = layout.tree_input([0], [_star(size - 1)], [length], device=target.device, dtype=target.dtype)
                output = target.forward(flat.input_ids, flat.position_ids, flat.masks, cache, keep=size)
            output.logits.argmax(-1).tolist()
            taken = clock() - started
            if turn > 0:
                times[size].append(taken)
            cache.forget_pass()
    curve = CostCurve(_TOKENS, tuple(min(times[size]) for size in _TOKENS))
    logger.debug("measured the cost of passes: %s", curve.to_json())
    return curve, statistics.median(statistics.median(times[size]) / min(times[size]) for size in _TOKENS)


def _star(nodes: int) -> DraftTree:
    """Nodes side by side; what hangs on what makes no difference to a pass."""
    return DraftTree(np.zeros(nodes, np.int32), np.full(nodes, ROOT, np.int32), np.zeros((nodes, 1)))


def _synchronize(target: TargetModel) -> None:
    if target.device.type == "cuda":
        torch.cuda.synchronize(target.device)


def _file(target: TargetModel, folder: Path | None) -> Path:
    return (folder or cache_folder()) / "pass-cost" / f"{_circumstances(target)}.json"


def _circumstances(target: TargetModel) -> str:
    """What the cost depends on, as a file name."""
    device = torch.cuda.get_device_name(target.device) if target.device.type == "cuda" else platform.processor()
    parts = (
        type(target.model).__name__,
        target.identity().weights_fingerprint,
        target.dtype,
        target.config._attn_implementation,
        target.is_packed,
        target.device,
        device,
        platform.node(),
        torch.get_num_threads(),
        torch.__version__,
        _TOKENS,
    )
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:32]
