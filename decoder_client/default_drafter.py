"""The drafter that the front doors decode with. Knows what goes together, nothing of how it drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decoder_client.drafting import (
    AnyDrafter,
    CostBudget,
    FixedBudget,
    MixtureConfig,
    MixtureDrafter,
    NoDrafter,
    any_drafter,
)
from decoder_client.drafting.retriever import Retriever
from decoder_client.learning import LearningDrafter
from decoder_client.pass_cost import pass_cost
from decoder_client.target_model import TargetModel
from decoder_client.tree_check import check_tree_attention

if TYPE_CHECKING:
    from decoder_client.learning.sender import AnswerSender

_TINY = 8


def default_drafter(
    target: TargetModel,
    retriever: Retriever | None,
    *,
    nodes: int | None = None,
    context: bool = True,
    sender: AnswerSender | None = None,
) -> AnyDrafter:
    """Drafts from a retriever, if there is one, from the text, and from what the target said before.

    Args:
        target: decides every token; its passes are measured unless `nodes` is given.
        retriever: a client.
        nodes: draft nodes a step, as many each time; None for as many as pay for themselves on this device; 0 for none.
        context: also draft from the text so far and from what the target said in it.
        sender: gets the answers decoded with `listening`; None sends none. Plain decoding makes no keys to be sent.

    Raises:
        TargetModelError: the model cannot verify drafts.
    """
    if nodes == 0 or (retriever is None and not context):
        return NoDrafter()
    check_tree_attention(target)
    # In a window of a few tokens there is nothing to measure, and nothing to gain.
    budget = CostBudget(pass_cost(target)) if nodes is None and target.max_length > _TINY else FixedBudget()
    config = MixtureConfig() if context else MixtureConfig(places=0, tables=False)
    drafter = MixtureDrafter(retriever, vocab_size=target.vocab_size, config=config, budget=budget)
    return any_drafter(drafter) if sender is None else any_drafter(LearningDrafter(drafter, sender))
