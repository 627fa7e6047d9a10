"""Where vLLM's model runner hands over a pass: the one module that reaches into vLLM's inside.

vLLM's own interface for custom proposers leaves out states and logits. So three methods of its V1 model runner are
wrapped, once in a process, when a `DresdProposer` is made; a runner with another drafter goes its old way.

- `execute_model` and `sample_tokens` run a pass, and between them lie its logits. What it took is the time from the
  drafts before it to those after it, where requests went on from one to the other: vLLM's own work is part of it.
- `propose_draft_token_ids` gets everything else that the pass showed, and asks `StepProposer.propose_step`.

`show_passes` shows the states of a runner without a drafter in the same place, for building a datastore.

In the same process group the other ranks of a tensor-parallel model do nothing: vLLM takes the drafts of rank 0 to its
scheduler, which sends them to all ranks with the next step, so a broadcast of ours would be a second one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from decoder_client.engines.vllm.engine_step import EngineStep, RunningRequest, TokenView

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

_HOOKED = "_dresd_hooked"
_BEGAN = "_dresd_began"
_ENDED = "_dresd_ended"
_LOGITS = "_dresd_logits"


@runtime_checkable
class StepProposer(Protocol):
    """What drafts for a runner's steps."""

    def propose_step(self, step: EngineStep, known: Collection[str]) -> list[list[int]]:
        """One draft a request; `known`: all requests that the runner keeps anything of."""


def install() -> None:
    """Wraps the runner's methods; does nothing the second time."""
    if getattr(GPUModelRunner, _HOOKED, False):
        return
    setattr(GPUModelRunner, _HOOKED, True)
    _wrap_execute_model()
    _wrap_sample_tokens()
    _wrap_propose()


def _proposer(runner: GPUModelRunner) -> StepProposer | None:
    drafter = getattr(runner, "drafter", None)
    return drafter if isinstance(drafter, StepProposer) else None


def _wrap_execute_model() -> None:
    original = GPUModelRunner.execute_model

    @wraps(original)
    def execute_model(
        self: GPUModelRunner, scheduler_output: SchedulerOutput, *arguments: object, **named: object
    ) -> object:
        if _proposer(self) is not None:
            was_busy = bool(scheduler_output.scheduled_cached_reqs.req_ids)
            setattr(self, _BEGAN, getattr(self, _ENDED, None) if was_busy else None)
            if getattr(self, _BEGAN) is None:
                setattr(self, _BEGAN, time.perf_counter())
        return original(self, scheduler_output, *arguments, **named)

    GPUModelRunner.execute_model = execute_model


def _wrap_sample_tokens() -> None:
    original = GPUModelRunner.sample_tokens

    @wraps(original)
    def sample_tokens(self: GPUModelRunner, *arguments: object, **named: object) -> object:
        state = self.execute_model_state
        if _proposer(self) is None or state is None:
            return original(self, *arguments, **named)
        # Drafts end before the model's length by themselves; without this, vLLM would have all requests verify zeros
        # while one of them is near its end.
        self.effective_drafter_max_model_len = self.max_model_len + self.num_spec_tokens + 1
        setattr(self, _LOGITS, state.logits)
        try:
            return original(self, *arguments, **named)
        finally:
            setattr(self, _LOGITS, None)

    GPUModelRunner.sample_tokens = sample_tokens


def _wrap_propose() -> None:
    original = GPUModelRunner.propose_draft_token_ids

    @wraps(original)
    def propose_draft_token_ids(
        self: GPUModelRunner,
        scheduler_output: SchedulerOutput,
        sampled_token_ids: list[list[int]],
        sampling_metadata: object,
        hidden_states: Tensor,
        sample_hidden_states: Tensor,
        aux_hidden_states: object,
        spec_decode_metadata: SpecDecodeMetadata | None,
        *others: object,
    ) -> object:
        proposer = _proposer(self)
        if proposer is None:
            given = (sampling_metadata, hidden_states, sample_hidden_states, aux_hidden_states, spec_decode_metadata)
            return original(self, scheduler_output, sampled_token_ids, *given, *others)
        step = EngineStep(
            requests=_requests(self, scheduler_output, sampled_token_ids, spec_decode_metadata),
            states=sample_hidden_states,
            all_states=hidden_states,
            logits=getattr(self, _LOGITS, None),
            gone=scheduler_output.finished_req_ids,
            seconds=time.perf_counter() - getattr(self, _BEGAN),
        )
        drafts = proposer.propose_step(step, self.requests.keys())
        setattr(self, _ENDED, time.perf_counter())
        return drafts

    GPUModelRunner.propose_draft_token_ids = propose_draft_token_ids


def _requests(
    runner: GPUModelRunner,
    scheduler_output: SchedulerOutput,
    sampled_token_ids: list[list[int]],
    spec_decode_metadata: SpecDecodeMetadata | None,
) -> list[RunningRequest]:
    batch = runner.input_batch
    most = min(runner.num_spec_tokens, scheduler_output.num_spec_tokens_to_schedule)
    drafted = [0] * len(sampled_token_ids) if spec_decode_metadata is None else spec_decode_metadata.num_draft_tokens
    lengths = batch.num_tokens_no_spec[: len(sampled_token_ids)].tolist()
    found = []
    for place, (sampled, length) in enumerate(zip(sampled_token_ids, lengths, strict=True)):
        name = batch.req_ids[place]
        state = runner.requests[name]
        room = min(most, runner.max_model_len - length - 1)
        longest = None if state.sampling_params is None else state.sampling_params.max_tokens
        if longest is not None:
            # The target adds one token to what it accepts.
            room = min(room, longest - len(state.output_token_ids) - 1)
        found.append(
            RunningRequest(
                request_id=name,
                text=TokenView(batch.token_ids_cpu[place], length),
                sampled=len(sampled),
                drafted=drafted[place],
                scheduled=scheduler_output.num_scheduled_tokens[name],
                room=room,
                adapter="" if state.lora_request is None else state.lora_request.lora_name,
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of a pass that belong to one request: of its tokens `first`, `first` + 1, ..."""

    request_id: str
    first: int
    count: int


def runner_of(llm: LLM) -> GPUModelRunner:
    """The model runner of an engine that runs in this process, alone."""
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker
    return getattr(worker, "worker", worker).model_runner


def show_passes(runner: GPUModelRunner, read: Callable[[Sequence[Span], Tensor], None]) -> None:
    """Has `read` see every pass of this runner before it is sampled from: whose rows, in order, and the states
    [rows, hidden_size], which the next pass may overwrite.
    """
    original = runner.sample_tokens

    def sample_tokens(*arguments: object, **named: object) -> object:
        state = runner.execute_model_state
        if state is not None:
            counts = state.scheduler_output.num_scheduled_tokens
            names = runner.input_batch.req_ids
            spans = [Span(name, runner.requests[name].num_computed_tokens, counts[name]) for name in names]
            read(spans, state.hidden_states)
        return original(*arguments, **named)

    runner.sample_tokens = sample_tokens
