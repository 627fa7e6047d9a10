"""The class that vLLM is told to draft with: reads the settings, connects, and drafts for each step of the engine.

    LLM(model, speculative_config={"method": "custom_class", "model": "decoder_client.engines.vllm.DresdProposer",
                                   "num_speculative_tokens": 12})

Knows vLLM's configuration; what a pass shows comes through `hook`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import vllm
from vllm.distributed import get_tensor_model_parallel_rank

from decoder_client.checkpoint import UNKNOWN, identity_of_checkpoint
from decoder_client.drafting import MixtureConfig, MixtureDrafter, RetrievalConfig
from decoder_client.drafting.mixture import MixtureSession
from decoder_client.engines.vllm import cpu_repairs, hook
from decoder_client.engines.vllm.engine_step import EngineStep
from decoder_client.engines.vllm.prometheus import SharedCounters, show
from decoder_client.engines.vllm.settings import ProposerSettings
from decoder_client.engines.vllm.step_drafter import StepDrafter
from decoder_client.engines.vllm.switch import BatchSwitch
from decoder_client.engines.vllm.versions import check_version
from decoder_client.retriever import RetrieverClient
from decoder_client.stats import GenerationStats
from dresd.identity import ModelIdentity

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)


class DresdProposer:
    """One worker's drafter; made by vLLM.

    Attributes:
        retriever: where drafts come from; None for each text alone.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        """Raises:
        EngineVersionError: this vLLM is not a tested one.
        SettingError: a setting makes no sense.
        RetrieverMismatchError: the service has another model's datastore.
        """
        check_version(vllm.__version__)
        hook.install()
        if vllm_config.device_config.device_type == "cpu":
            cpu_repairs.repair()
        self.retriever: RetrieverClient | None = None
        self._steps: StepDrafter[MixtureSession] | None = None
        self._shared: SharedCounters | None = None
        # The other ranks get the drafts of this one from vLLM's scheduler.
        if get_tensor_model_parallel_rank() == 0:
            self._begin(vllm_config, ProposerSettings.read(None, vllm_config.additional_config))

    def _begin(self, vllm_config: VllmConfig, settings: ProposerSettings) -> None:
        model = vllm_config.model_config
        vocab_size = model.get_vocab_size()
        if settings.asks:
            self.retriever = _connect(settings, _identity(vllm_config))
        switch = BatchSwitch(adaptive=settings.adaptive)
        retrieval = RetrievalConfig()
        if settings.asks:
            retrieval = RetrievalConfig(neighbors=settings.neighbors, sparse_neighbors=settings.sparse_neighbors)
        drafter = MixtureDrafter(
            self.retriever,
            vocab_size=vocab_size,
            config=MixtureConfig(retrieval=retrieval, path=True),
            budget=switch,
        )
        retriever = self.retriever
        self._steps = StepDrafter(
            drafter,
            switch,
            handshake=lambda: None if retriever is None else retriever.handshake,
            adapter=settings.adapter,
        )
        self._shared = show(self, settings.metrics_port)
        logger.info("drafting by dresd, retriever: %s", settings.retriever or "none")

    @property
    def totals(self) -> GenerationStats:
        """What drafting cost and gained so far."""
        return GenerationStats() if self._steps is None else self._steps.totals

    @property
    def num_sessions(self) -> int:
        """Requests that something is kept of."""
        return 0 if self._steps is None else self._steps.num_sessions

    def propose_step(self, step: EngineStep, known: Collection[str]) -> list[list[int]]:
        """See `hook.StepProposer`."""
        if self._steps is None:
            return [[] for _ in step.requests]
        if self._steps.num_sessions > len(known):
            self._steps.keep_only(known)
        drafts = self._steps.step(step)
        if self._shared is not None:
            self._shared.refresh()
        return drafts

    def propose(self, sampled_token_ids: list[list[int]], *_: object, **__: object) -> list[list[int]]:
        """vLLM's own call, which has no states to draft from; the hook calls `propose_step` in its place."""
        return [[] for _ in sampled_token_ids]

    def load_model(self, _target_model: object) -> None:
        """vLLM's; there is no draft model."""


def _identity(vllm_config: VllmConfig) -> ModelIdentity:
    model = vllm_config.model_config
    return identity_of_checkpoint(
        model.model,
        tokenizer=model.tokenizer,
        revision=model.revision or "",
        hidden_size=model.get_hidden_size(),
        vocab_size=model.get_vocab_size(),
    )


def _connect(settings: ProposerSettings, identity: ModelIdentity) -> RetrieverClient:
    """A client; a service that is down is used once it is up."""
    config = settings.retriever_config()
    if identity.weights_fingerprint == UNKNOWN and config.require_same_weights:
        logger.warning(
            "the weights of %s cannot be compared with the datastore's; tokenizer and sizes are compared", identity.name
        )
        config = replace(config, require_same_weights=False)
    client = RetrieverClient(config)
    try:
        client.connect_when_up(identity)
    except BaseException:
        client.close()
        raise
    return client
