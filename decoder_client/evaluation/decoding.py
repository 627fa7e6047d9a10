"""Real decoding with a method's drafter, watched. Knows the decode loop; not how answers are compared."""

from __future__ import annotations

from decoder_client.evaluation.bench import Decode, Decoded
from decoder_client.evaluation.methods import Method, max_nodes, new_drafter
from decoder_client.evaluation.resources import Resources
from decoder_client.loop import DecodeTask, DraftLimits, decode
from decoder_client.sampling import SamplingConfig
from decoder_client.target_model import TargetModel
from decoder_client.tree_check import check_tree_attention


def new_decode(target: TargetModel, resources: Resources, max_new_tokens: int, method: Method) -> Decode:
    """Greedy decoding with a fresh drafter of `method`; TargetModelError if the model cannot verify drafts."""
    watched = new_drafter(method, resources)
    limits = DraftLimits(nodes=max_nodes(method))
    if limits.nodes:
        check_tree_attention(target)

    def answer(prompt: tuple[int, ...]) -> Decoded:
        task = DecodeTask(
            prompt, SamplingConfig().chooser(target.device), len(prompt) + max_new_tokens, target.eos_token_ids
        )
        ((tokens, stats),) = decode(target, watched.drafter, [task], limits)
        return Decoded(tuple(tokens), stats, watched.drafter.recording())

    return answer
