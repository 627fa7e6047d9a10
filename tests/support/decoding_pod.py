"""A program that decodes the same prompt again and again with the service that its environment names, as a decoder's
pod does, and says of every answer what it was: a line of JSON each. The first one begun after SIGUSR1 is `fresh`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

import torch

from decoder_client.generation import SpeculativeDecoder
from decoder_client.retriever import RetrieverClient, RetrieverConfig
from decoder_client.target_model import TargetModel
from tests.support.models import tiny_model
from tests.support.serving import HIDDEN, VOCAB

PROMPT = [3, 1, 4, 1, 5]
NEW_TOKENS = 24
DEADLINE_MS = 2_000.0
"""Long enough on a busy machine, so that whatever is missing is missing for a reason."""
PAUSE_S = 0.1
"""Leaves the pods a core."""


def small_target() -> TargetModel:
    torch.manual_seed(9)
    return TargetModel(tiny_model("llama", vocab_size=VOCAB, hidden_size=HIDDEN))


def main() -> None:
    asked: list[bool] = []
    signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))
    pause = threading.Event()
    target = small_target()
    config = RetrieverConfig(os.environ["DRESD_RETRIEVER"], deadline_ms=DEADLINE_MS, resolve_interval_s=0.1)
    with RetrieverClient(config) as client:
        decoder = SpeculativeDecoder.from_pretrained(target, client, nodes=16, context=False)
        while True:
            fresh = bool(asked)
            asked.clear()
            before = client.stats
            out = decoder.generate(PROMPT, max_new_tokens=NEW_TOKENS)
            after = client.stats
            said = {
                "fresh": fresh,
                "tokens": list(out.tokens),
                "drafted": out.stats.drafted,
                "asked": after.partitions_asked - before.partitions_asked,
                "answered": after.partitions_answered - before.partitions_answered,
                "retrievals": out.stats.retrievals,
                "retrievals_answered": out.stats.retrievals_answered,
            }
            print(json.dumps(said), flush=True)
            pause.wait(PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
