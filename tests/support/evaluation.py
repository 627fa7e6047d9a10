"""What evaluations are tested with: made-up traces, and a tiny model with answers and a datastore of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from decoder_client.drafting.drafter import DraftRequest, NoDrafter, Outcome
from decoder_client.evaluation.token_records import TokenRecord
from decoder_client.evaluation.traces import LIKELY, Trace
from decoder_client.loop import DecodeTask, DraftLimits, decode
from decoder_client.reducer import ReducerFit
from decoder_client.sampling import SamplingConfig
from decoder_client.stats import GenerationStats
from decoder_client.target_model import TargetModel, load_target_model
from dresd.draft_tree import PAD, DraftTree
from retriever_service.datastore import EntryBatch, read_manifest, write_manifest
from retriever_service.datastore.manifest import CorpusFile
from tests.support.datastore import build_datastore
from tests.support.drafts import node_paths
from tests.support.models import save_tiny_model

HIDDEN = 6


def request_of(text: Sequence[int], session: object = None, *, nodes: int = 64, depth: int = 16) -> DraftRequest:
    return DraftRequest(session, list(text), torch.zeros(HIDDEN), nodes, depth, GenerationStats())


def made_up_trace(prompt: Sequence[int], answer: Sequence[int], *, vocab_size: int = 50, seed: int = 0) -> Trace:
    """Random states, and likely tokens whose best one is the answer's."""
    random = np.random.default_rng(seed)
    tokens = np.array([*prompt, *answer], np.int64)
    likely = random.integers(vocab_size, size=(len(tokens), LIKELY))
    likely[:-1, 0] = tokens[1:]
    probabilities = np.sort(random.random((len(tokens), LIKELY)).astype(np.float32))[:, ::-1].copy()
    return Trace(
        TokenRecord("made up:1", tuple(prompt), tuple(answer)),
        torch.from_numpy(random.normal(size=(len(tokens), HIDDEN)).astype(np.float32)),
        torch.from_numpy(likely),
        torch.from_numpy(probabilities),
    )


class ScriptedDrafter:
    """Proposes given trees in turn, and remembers what it was asked and told."""

    def __init__(self, trees: Sequence[DraftTree]) -> None:
        self._trees = list(trees)
        self.prompts: list[list[int]] = []
        self.asked: list[tuple[list[int], torch.Tensor, int, int]] = []
        self.told: list[tuple[list[int], Outcome]] = []

    def start(self, prompt: Sequence[int]) -> int:
        self.prompts.append(list(prompt))
        return len(self.prompts)

    def propose(self, requests: Sequence[DraftRequest[int]]) -> list[DraftTree]:
        for one in requests:
            assert one.session == len(self.prompts)
            self.asked.append((list(one.text), one.state, one.max_nodes, one.max_depth))
        return [self._trees[(len(self.asked) - 1) % len(self._trees)] for _ in requests]

    def observe(self, session: int, outcome: Outcome) -> None:
        assert session == len(self.prompts)
        self.told.append((list(outcome.text), outcome))


def paths_in(tree: DraftTree) -> set[tuple[int, ...]]:
    """All prefixes that the tree holds."""
    return set(node_paths(tree))


def write_records(path: Path, records: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Path:
    lines = [json.dumps({"prompt_ids": list(prompt), "response_ids": list(answer)}) for prompt, answer in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@dataclass(frozen=True)
class TinyWorld:
    """A tiny model, its own greedy answers to some prompts, and a datastore of other answers of its."""

    model: Path
    target: TargetModel
    traces: Path
    corpus: Path
    datastore: Path


MAX_NEW_TOKENS = 24


def tiny_world(folder: Path, **model_options: int) -> TinyWorld:
    """The datastore holds answers to prompts like those of the traces, so that drafts from it are accepted at times.

    `model_options`: of `save_tiny_model`.
    """
    model = save_tiny_model("llama", folder / "model", **model_options)
    target = load_target_model(model)
    random = np.random.default_rng(1)
    prompts = [[int(token) for token in random.integers(60, 70, size=6)] for _ in range(5)]
    records = [(prompt, greedy_answer(target, prompt)) for prompt in prompts]
    stored = [*records[:2], *[(prompt[1:], greedy_answer(target, prompt[1:])) for prompt in prompts]]
    corpus = write_records(folder / "corpus.jsonl", stored)
    traces = write_records(folder / "traces.jsonl", records)
    return TinyWorld(model, target, traces, corpus, _datastore(folder / "datastore", target, stored, corpus))


def greedy_answer(target: TargetModel, prompt: Sequence[int]) -> list[int]:
    chooser = SamplingConfig().chooser(target.device)
    task = DecodeTask(prompt, chooser, len(prompt) + MAX_NEW_TOKENS, target.eos_token_ids)
    ((answer, _),) = decode(target, NoDrafter(), [task], DraftLimits(nodes=0))
    return answer


def _datastore(
    path: Path, target: TargetModel, stored: Sequence[tuple[Sequence[int], Sequence[int]]], corpus: Path
) -> Path:
    states, next_tokens, continuations, left_contexts = [], [], [], []
    for prompt, answer in stored:
        tokens = [*prompt, *answer]
        ids = torch.tensor([tokens])
        read = target.hidden_states(ids, torch.ones_like(ids))[0].numpy()
        for at in range(len(prompt) - 1, len(tokens) - 1):
            states.append(read[at])
            next_tokens.append(tokens[at + 1])
            continuations.append([*tokens[at + 2 : at + 18], *[PAD] * 16][:16])
            left_contexts.append([*tokens[: at + 1][::-1], *[PAD] * 16][:16])
    fit = ReducerFit(target.hidden_size)
    fit.update(np.stack(states))
    reducer = fit.finish(8)
    entries = EntryBatch(
        reducer.reduce(np.stack(states)),
        np.array(next_tokens, np.int64),
        np.array(continuations, np.int32),
        np.array(left_contexts, np.int32),
    )
    built = build_datastore(
        path, entries, vocab_size=target.vocab_size, reducer=reducer.to_bytes(), model=target.identity()
    )
    from hashlib import sha256

    content = corpus.read_bytes()
    file = CorpusFile(name=str(corpus), size=len(content), sha256=sha256(content).hexdigest(), documents=len(stored))
    manifest = read_manifest(built.path)
    provenance = manifest.corpus.model_copy(update={"files": [file], "documents": len(stored)})
    write_manifest(built.path, manifest.model_copy(update={"corpus": provenance}))
    return built.path
