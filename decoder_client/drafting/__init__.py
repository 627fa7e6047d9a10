"""Drafters: sources of guesses for the target's next tokens, and their blend into one draft tree."""

from decoder_client.drafting.blend import Blend
from decoder_client.drafting.context import ContextDrafter
from decoder_client.drafting.dense import DenseDrafter
from decoder_client.drafting.drafter import Drafter, DraftRequest, Proposal

__all__ = ["Blend", "ContextDrafter", "DenseDrafter", "DraftRequest", "Drafter", "Proposal"]
