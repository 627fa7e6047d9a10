"""The acceptance model as drafting computes it, against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from decoder_client.drafting.acceptance import AcceptanceModel
from decoder_client.drafting.kernel import FEATURES, score


@pytest.mark.parametrize("units", [1, 7, 64])
@pytest.mark.parametrize("size", [1e-6, 0.1, 1.0, 30.0, 1e4])
def test_a_score_is_that_of_the_network(units: int, size: float):
    random = np.random.default_rng(units)
    shapes = ((FEATURES,), (FEATURES,), (FEATURES, units), (units,), (units,), (FEATURES,), (1,), (1,))
    center, scale, hidden, hidden_bias, out, direct, bias, escape = (
        random.normal(size=shape).astype(np.float32) for shape in shapes
    )
    scale = np.abs(scale) + np.float32(0.5)
    folded = AcceptanceModel(center, scale, hidden, hidden_bias, out, direct, bias, escape).folded()
    assert folded.escape == pytest.approx(float(escape[0]))
    for features in size * random.normal(size=(50, FEATURES)):
        standard = (features - center.astype(np.float64)) / scale.astype(np.float64)
        expected = np.tanh(standard @ hidden + hidden_bias) @ out + standard @ direct + float(bias[0])
        found = score(features, folded.arrays, np.empty(units), np.empty(units, np.int64))
        assert found == pytest.approx(np.clip(expected, -20.0, 20.0), abs=1e-5 * (1 + min(size, 100.0)))
