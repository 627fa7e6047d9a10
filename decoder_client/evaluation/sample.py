"""Lays one answer out token by token: its text, and where each token came from.

Knows tokens and a recording of how they were drafted.
"""

from __future__ import annotations

from collections.abc import Sequence

from decoder_client.evaluation.recording import Recording
from decoder_client.evaluation.results import Sample, SampleToken
from decoder_client.target_model import TargetModel


def sample_of(prompt: str, label: str, answer: Sequence[int], recording: Recording, target: TargetModel) -> Sample:
    """One answer as a picture shows it; without a tokenizer the texts are token ids."""
    texts = _texts(answer, target)
    tokens = [
        SampleToken(text, origin, step)
        for text, origin, step in zip(texts, recording.origins, recording.steps, strict=True)
    ]
    return Sample(prompt, label, tuple(tokens))


def _texts(answer: Sequence[int], target: TargetModel) -> list[str]:
    if target.tokenizer is None:
        return [f"{token} " for token in answer]
    texts: list[str] = []
    shown = ""
    for count in range(1, len(answer) + 1):
        whole = target.decode(answer[:count])
        # A character of several tokens appears with its last one.
        grown = whole if whole.startswith(shown) and not whole.endswith("\N{REPLACEMENT CHARACTER}") else shown
        texts.append(grown[len(shown) :])
        shown = grown
    return texts
