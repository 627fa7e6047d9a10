"""How tokens are chosen from logits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from decoder_client.sampling import GreedyChooser, ProcessedChooser, SamplingConfig

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("repetition_penalty", 0.0),
    ],
)
def test_a_setting_out_of_range_is_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        SamplingConfig(**{field: value})


def test_greedy_takes_the_likeliest_token_of_the_row() -> None:
    choose = GreedyChooser().choices(torch.tensor([[0.0, 3.0, 1.0], [2.0, 1.0, 0.0]]), [9])
    assert [choose(0, []), choose(1, [1])] == [1, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_takes_the_first_of_equals(dtype: torch.dtype) -> None:
    # Over many numbers, as vector instructions compare them.
    logits = torch.zeros(3, 5000, dtype=dtype)
    logits[0, [4999, 77, 78]] = 2.0
    logits[1, 4998] = 0.5
    choose = GreedyChooser().choices(logits, [9])
    assert [choose(row, []) for row in range(3)] == [77, 4998, 0]


def test_processors_see_the_text_and_what_was_accepted_since() -> None:
    seen: list[list[int]] = []

    def record(text: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(text[0].tolist())
        return scores

    chooser = ProcessedChooser(record)
    chooser.begin([7, 8], 6, CPU)
    logits = torch.zeros(3, 4)

    def step(text: Sequence[int], accepted: list[list[int]]) -> None:
        choose = chooser.choices(logits, text)
        for before in accepted:
            choose(0, before)

    step([7, 8], [[]])
    step([7, 8, 1], [[], [2], [2, 3]])
    # The last choice of a step was not among the accepted; the next step's text holds it.
    step([7, 8, 1, 2, 3, 0], [[], [1]])
    text = [7, 8, 1, 2, 3, 0, 1]
    assert seen == [text[:2], text[:3], text[:4], text[:5], text[:6], text[:7]]


def test_processors_may_overwrite_what_they_get() -> None:
    logits = torch.tensor([[1.0, 2.0]])

    def spoil(_text: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.fill_(-1.0)

    chooser = ProcessedChooser(spoil)
    chooser.begin([0], 1, CPU)
    chooser.choices(logits, [0])(0, [])
    assert logits.tolist() == [[1.0, 2.0]]


def test_a_repetition_penalty_counts_without_sampling_too() -> None:
    chooser = SamplingConfig(repetition_penalty=4.0).chooser(CPU)
    chooser.begin([1], 1, CPU)
    assert chooser.choices(torch.tensor([[1.0, 2.0]]), [1])(0, []) == 0


def test_top_k_and_top_p_bound_what_can_be_sampled() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])

    def drawn(**settings: float) -> set[int]:
        chooser = SamplingConfig(temperature=5.0, seed=3, **settings).chooser(CPU)
        chooser.begin([0], 1, CPU)
        choose = chooser.choices(logits, [0])
        return {choose(0, []) for _ in range(200)}

    assert drawn() == {0, 1, 2, 3}
    assert drawn(top_k=2) == {0, 1}
    assert drawn(top_p=0.3) == {0}


def test_a_seed_fixes_the_samples() -> None:
    logits = torch.zeros(1, 100)

    def drawn(seed: int) -> list[int]:
        chooser = SamplingConfig(temperature=1.0, seed=seed).chooser(CPU)
        chooser.begin([0], 1, CPU)
        choose = chooser.choices(logits, [0])
        return [choose(0, []) for _ in range(10)]

    assert drawn(1) == drawn(1) != drawn(2)
