"""One answer by one method: what benchmark and replay both make, and all their results are made of."""

from __future__ import annotations

from dataclasses import dataclass

from decoder_client.evaluation.methods import Method
from decoder_client.evaluation.recording import Recording
from decoder_client.evaluation.results import Answer


@dataclass(frozen=True, slots=True)
class Measurement:
    """An answer, and what was seen of its drafts."""

    method: Method
    answer: Answer
    recording: Recording
