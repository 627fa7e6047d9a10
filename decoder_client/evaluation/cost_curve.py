"""Reads a device's cost curve and predicts passes with it. Knows the file; measuring is somebody else's business."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from decoder_client.drafting.cost import CostCurve
from decoder_client.errors import DecoderError
from decoder_client.evaluation.replay import PassSeconds
from decoder_client.evaluation.results import CostPoint


class CostCurveError(DecoderError):
    """A file holds no cost curve."""


def read_cost_curve(path: Path) -> CostCurve:
    """Reads what `CostCurve.to_json` wrote; CostCurveError names the file."""
    try:
        return CostCurve.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CostCurveError(f"Cannot read the cost curve {str(path)!r}: {error.strerror}.") from error
    except ValueError as error:
        raise CostCurveError(f"{str(path)!r} is no cost curve: {error}. Name a file with measured passes.") from error


def pass_seconds(curve: CostCurve) -> PassSeconds:
    """Predicts single passes."""

    @cache
    def seconds(tokens: int) -> float:
        return float(curve.seconds([tokens])[0])

    return seconds


def cost_points(curve: CostCurve) -> tuple[CostPoint, ...]:
    """For the record of results."""
    return tuple(CostPoint(*point) for point in zip(curve.tokens, curve.pass_seconds, strict=True))
