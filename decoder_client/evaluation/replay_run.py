"""Replays all traces through all methods. Knows which drafter to make when; a single answer is `replay`'s business."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from decoder_client.evaluation.measurement import Measurement
from decoder_client.evaluation.methods import Method, max_nodes, new_drafter
from decoder_client.evaluation.replay import PassSeconds, replay
from decoder_client.evaluation.resources import Resources
from decoder_client.evaluation.results import Answer
from decoder_client.evaluation.traces import Trace


def run_replay(
    traces: Sequence[Trace],
    methods: Sequence[Method],
    resources: Resources,
    *,
    max_depth: int,
    max_new_tokens: int,
    pass_seconds: PassSeconds | None,
    on_method: Callable[[Method], None],
) -> list[Measurement]:
    """Replays every trace, in order, with every method, which starts out remembering nothing.

    Args:
        traces: at least one.
        methods: at least one.
        resources: what they draft from.
        max_depth: of a draft.
        max_new_tokens: see `replay`, as for the next.
        pass_seconds: predicts seconds.
        on_method: called before each method.
    """
    measurements = []
    for method in methods:
        on_method(method)
        watched = new_drafter(method, resources)
        for trace in traces:
            replayed = replay(
                watched.drafter,
                trace,
                max_nodes=max_nodes(method),
                max_depth=max_depth,
                max_new_tokens=max_new_tokens,
                pass_seconds=pass_seconds,
                counts=watched.counts,
            )
            recording = replayed.recording
            answer = Answer(
                trace.record.name,
                0,
                replayed.stats,
                recording.offered_by_depth,
                recording.accepted_by_depth,
                promises=recording.promises,
            )
            measurements.append(Measurement(method, answer, recording))
    return measurements
