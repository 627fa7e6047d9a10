"""Keys: what the fit must get right however the states arrive, and that both sides compute the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoder_client.reducer import KeyReducer, ReducerError, ReducerFit


def correlated_states(samples: int, hidden_size: int = 12, seed: int = 0) -> np.ndarray:
    """States with unequal scales, far from zero mean, whose variance lies mostly in few directions."""
    random = np.random.default_rng(seed)
    mixing = random.normal(size=(4, hidden_size))
    states = random.normal(size=(samples, 4)) @ mixing + 0.1 * random.normal(size=(samples, hidden_size))
    return (states * np.geomspace(0.01, 100, hidden_size) + np.linspace(-50, 50, hidden_size)).astype(np.float32)


def fitted(states: np.ndarray, dims: int = 4) -> KeyReducer:
    fit = ReducerFit(states.shape[1])
    fit.update(states)
    return fit.finish(dims)


def test_keys_are_the_normalised_principal_components_of_z_scores() -> None:
    states = correlated_states(500)
    keys = fitted(states).reduce(states)
    scores = (states - states.mean(0, dtype=np.float64)) / states.std(0, dtype=np.float64)
    _, singular, directions = np.linalg.svd(scores, full_matrices=False)
    expected = scores @ directions[:4].T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    # Directions may be mirrored; cosines between keys may not change.
    np.testing.assert_allclose(keys @ keys.T, expected @ expected.T, atol=2e-3)
    assert fitted(states).explained_variance == pytest.approx((singular[:4] ** 2).sum() / (singular**2).sum(), abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 200), max_size=5), merged=st.booleans())
def test_the_fit_does_not_depend_on_how_states_are_batched(cuts: list[int], merged: bool) -> None:
    states = correlated_states(200)
    whole = fitted(states)
    fit = ReducerFit(states.shape[1])
    for part in np.split(states, sorted(cuts)):
        if merged:
            other = ReducerFit(states.shape[1])
            other.update(part)
            fit.merge(other)
        else:
            fit.update(part)
    assert fit.num_samples == 200
    np.testing.assert_allclose(fit.finish(4).reduce(states), whole.reduce(states), atol=1e-4)


def test_torch_and_numpy_agree() -> None:
    states = correlated_states(300)
    reducer = fitted(states)
    keys = reducer.reduce_torch(torch.from_numpy(states).reshape(3, 100, -1))
    assert keys.dtype == torch.float16
    assert keys.shape == (3, 100, 4)
    np.testing.assert_allclose(keys.reshape(300, 4).float().numpy(), reducer.reduce(states), atol=1e-3)


@pytest.mark.parametrize("rows", [0, 1, 3, 64, 65])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_and_many_states_give_the_same_keys(rows: int, dtype: torch.dtype) -> None:
    every = torch.from_numpy(correlated_states(300)).to(dtype)
    reducer = fitted(every.float().numpy())
    # Every other row and a padded width: states need not lie one behind the other.
    states = torch.cat([every, every], dim=1)[: 2 * rows : 2, : every.shape[1]]
    keys = reducer.reduce_torch(states)
    assert keys.shape == (rows, 4)
    np.testing.assert_allclose(keys.float().numpy(), reducer.reduce(states.float().numpy()), atol=1e-3)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_no_number_shows_in_the_key_of_its_state_only(number: float) -> None:
    states = correlated_states(300)
    reducer = fitted(states)
    states[1, 2] = number
    assert torch.isfinite(reducer.reduce_torch(torch.from_numpy(states[:3]))).all(dim=1).tolist() == [True, False, True]


def test_keys_have_length_one_and_the_mean_state_gives_no_direction() -> None:
    states = correlated_states(300)
    np.testing.assert_allclose(np.linalg.norm(fitted(states).reduce(states), axis=1), 1, atol=1e-5)
    zero = KeyReducer(np.zeros((2, 3), np.float32), np.zeros(2, np.float32), 1.0, 10)
    assert zero.reduce(np.ones((1, 3), np.float32)).tolist() == [[0.0, 0.0]]
    assert zero.reduce_torch(torch.ones(1, 3)).tolist() == [[0.0, 0.0]]


def test_a_constant_dimension_has_weight_zero() -> None:
    states = correlated_states(100)
    states[:, 3] = 7.5
    states[:, 5] = 0.0
    reducer = fitted(states)
    assert not reducer.weight[:, [3, 5]].any()
    assert reducer.weight[:, 4].any()
    moved = states.copy()
    moved[:, 3] = 7.4
    np.testing.assert_array_equal(reducer.reduce(moved), reducer.reduce(states))


@pytest.mark.parametrize(
    ("samples", "dims", "message"),
    [(4, 4, "4 hidden states are too few.*at least 5"), (50, 13, "13 dimensions cannot be made"), (50, 0, "0 dim")],
)
def test_impossible_dimensions_are_refused(samples: int, dims: int, message: str) -> None:
    with pytest.raises(ReducerError, match=message):
        fitted(correlated_states(samples), dims)


def test_more_dimensions_than_vary_are_refused() -> None:
    states = correlated_states(50)
    states[:, 2:] = 1.0
    with pytest.raises(ReducerError, match="only 2 of 12 dimensions"):
        fitted(states, 3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_numbers_are_refused(value: float) -> None:
    states = correlated_states(50)
    reducer = fitted(states)
    states[7, 3] = value
    with pytest.raises(ReducerError, match="NaN or infinite"):
        ReducerFit(12).update(states)
    with pytest.raises(ReducerError, match="NaN or infinite"):
        reducer.reduce(states)


def test_another_width_is_refused() -> None:
    reducer = fitted(correlated_states(50))
    with pytest.raises(ReducerError, match="12"):
        reducer.reduce(np.ones((2, 11), np.float32))
    with pytest.raises(ReducerError, match="12"):
        reducer.reduce_torch(torch.ones(2, 11))
    with pytest.raises(ReducerError, match="12"):
        ReducerFit(12).update(np.ones((2, 11), np.float32))
    with pytest.raises(ReducerError, match="12 and 11"):
        ReducerFit(12).merge(ReducerFit(11))


def test_bytes_round_trip_and_are_the_same_every_time() -> None:
    states = correlated_states(100)
    reducer = fitted(states)
    read = KeyReducer.from_bytes(reducer.to_bytes())
    np.testing.assert_array_equal(read.reduce(states), reducer.reduce(states))
    assert read.explained_variance == reducer.explained_variance
    assert read.num_samples == 100
    assert read.sha256 == reducer.sha256 == fitted(states).sha256
    assert read.sha256 != fitted(states, dims=5).sha256


def test_bytes_that_are_no_reducer_are_refused() -> None:
    good = fitted(correlated_states(50)).to_bytes()
    with pytest.raises(ReducerError, match="not a reducer"):
        KeyReducer.from_bytes(good[:-8])
    with pytest.raises(ReducerError, match="not a reducer"):
        KeyReducer.from_bytes(b"nonsense")
    with pytest.raises(ReducerError, match="bias"):
        KeyReducer.from_bytes(good.replace(b'"bias"', b'"bios"'))
    for number_format in (b"BF16", b"F8_E4M3"):  # numpy has no such numbers
        with pytest.raises(ReducerError, match="not a reducer"):
            KeyReducer.from_bytes(good.replace(b'"F32"', b'"' + number_format + b'"'))
