"""Drafters: sources of guesses for the target's next tokens, and the mixture of them that decodes by default."""

from decoder_client.drafting.budget import CostBudget, FixedBudget, NodeBudget
from decoder_client.drafting.cost import CostCurve
from decoder_client.drafting.drafter import (
    AnyDrafter,
    Drafter,
    DraftRequest,
    LikelyTokens,
    NoDrafter,
    Outcome,
    any_drafter,
)
from decoder_client.drafting.mixture import MixtureConfig, MixtureDrafter
from decoder_client.drafting.retrieval import RetrievalConfig

__all__ = [
    "AnyDrafter",
    "CostBudget",
    "CostCurve",
    "DraftRequest",
    "Drafter",
    "FixedBudget",
    "LikelyTokens",
    "MixtureConfig",
    "MixtureDrafter",
    "NoDrafter",
    "NodeBudget",
    "Outcome",
    "RetrievalConfig",
    "any_drafter",
]
