"""Options of a build that make no sense are refused before anything is loaded, by the name they have on a terminal."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path

import pytest

from decoder_client.settings import SETTINGS
from retriever_service.building.config import BuildConfig, ConfigError

GIVEN = {"model": "m", "corpus": (Path("c.jsonl"),), "out": Path("store")}


@pytest.mark.parametrize(
    ("name", "option", "low", "high"),
    [
        ("dims", "--dims", 1, None),
        ("partitions", "--partitions", 1, 4096),
        ("continuation_length", "--continuation", 1, 256),
        ("max_new_tokens", "--max-new-tokens", 1, 1_000_000),
        ("seed", "--seed", 0, 2**32 - 1),
        ("workers", "--workers", 1, 1024),
    ],
)
def test_a_number_out_of_bounds_is_named_with_its_bounds(name: str, option: str, low: int, high: int | None) -> None:
    for allowed in (low, high):
        if allowed is not None:
            assert getattr(BuildConfig(**GIVEN, **{name: allowed}), name) == allowed
    for refused in (low - 1, -(10**30), 10**30 if high is None else high + 1):
        with pytest.raises(ConfigError, match=rf"{option} is {refused}, but must lie in {low}\.\."):
            BuildConfig(**GIVEN, **{name: refused})


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-7, 1e6, 1e7, -1.0, 1e-40, 1e40, math.nan, math.inf])
def test_a_build_answers_at_the_temperatures_that_a_decoder_answers_at(temperature: float) -> None:
    allowed = SETTINGS["temperature"].allows(temperature)
    with nullcontext() if allowed else pytest.raises(ConfigError, match=r"--temperature is .*, but must be 0, which"):
        assert BuildConfig(**GIVEN, respond=True, temperature=temperature).temperature == temperature


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"codec": "zip"}, "no codec 'zip'. Choose one of"),
        ({"dims": 64, "fit_tokens": 64}, "--fit-tokens 64 are too few"),
        ({"answers_out": Path("x.jsonl")}, "Add --respond"),
        *(
            ({"respond": True, "answers_out": Path(name)}, r"written as \.jsonl")
            for name in ("answers", "answers.txt", "answers.parquet", ".jsonl")
        ),
        ({"corpus": ()}, "No corpus"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        BuildConfig(**{**GIVEN, **options})
