"""What a setting may be is the same for Python, the commands and transformers' `generate`."""

from __future__ import annotations

import argparse
import re

import numpy as np
import pytest

from decoder_client.commands.options import setting, stop_string
from decoder_client.errors import DecoderError, SettingError
from decoder_client.sampling import SamplingConfig
from decoder_client.settings import SETTINGS, check_setting

NAN, INF = float("nan"), float("inf")
REFUSED = {
    "temperature": [-0.1, 1e-45, 1e-7, 1e7, NAN, INF, -INF, True, None, "1"],
    "top_k": [0, -1, 1.5, NAN, INF, True, "3"],
    "top_p": [0.0, -0.5, 1.5, NAN, INF, True],
    "repetition_penalty": [0.0, -1.0, 1e-45, 1e39, NAN, INF, None],
    "seed": [-1, 2**64, 0.5, NAN, True],
    "max_new_tokens": [-1, 0.5, INF],
    "max_depth": [0, -1, 1025, 1.5, NAN],
    "nodes": [-1, 1025, 5000, 2.5, NAN],
}
ALLOWED = {
    "temperature": [0, 0.0, -0.0, 1e-6, 1, 0.7, np.float32(0.5)],
    "top_k": [1, 10**30, np.int64(4)],
    "top_p": [1e-45, 0.5, 1, 1.0],
    "repetition_penalty": [0.01, 1, 1.1, 100.0],
    "seed": [0, 2**64 - 1],
    "max_new_tokens": [0, 10**30],
    "max_depth": [1, 1024],
    "nodes": [0, 1024],
}
SAMPLING = ("temperature", "top_k", "top_p", "repetition_penalty", "seed")
CASES = [(name, value) for name, values in REFUSED.items() for value in values]


def test_every_setting_is_looked_at() -> None:
    assert REFUSED.keys() == ALLOWED.keys() == SETTINGS.keys()


@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(SettingError, match=f"{name} must be"):
        check_setting(name, value)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ALLOWED.items() for value in values])
def test_a_value_in_range_is_allowed(name: str, value: object) -> None:
    check_setting(name, value)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, value in CASES if name in SAMPLING])
def test_a_sampling_config_refuses_the_same(name: str, value: object) -> None:
    with pytest.raises(SettingError, match=name) as refused:
        SamplingConfig(**{name: value})
    assert isinstance(refused.value, DecoderError)
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, value in CASES if isinstance(value, (int, float)) and value is not True]
)
def test_an_option_refuses_the_same(name: str, value: float) -> None:
    with pytest.raises(
        argparse.ArgumentTypeError, match=f"must be {re.escape(SETTINGS[name].expected)}|must be a (whole )?number"
    ):
        setting(name)(str(value))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("text", ["", "many", "1,5", "9" * 5000 + "x"])
def test_an_option_refuses_what_is_no_number(name: str, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be a (whole )?number"):
        setting(name)(text)


def test_an_empty_stop_string_is_no_option() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not empty"):
        stop_string("")
