"""Fits the acceptance model that drafting comes with (`decoder_client/drafting/acceptance.safetensors`).

    python scripts/fit_acceptance.py --model M --datastore DIR --traces FILE --out FILE

The traces are answers of the target that the datastore does not hold. At every position of every answer the evidence
of all sources is gathered as in decoding, and followed along the true answer; the model learns which child comes next,
or that none of them does.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import Tensor, nn

from decoder_client.cache_folder import cache_folder
from decoder_client.drafting.acceptance import AcceptanceModel
from decoder_client.drafting.drafter import LikelyTokens
from decoder_client.drafting.evidence import Evidence, gather
from decoder_client.drafting.fresh import FreshTable
from decoder_client.drafting.kernel import FEATURES, MIXTURE, children, features
from decoder_client.drafting.local import LocalIndex
from decoder_client.drafting.lookup import TableArrays, table_arrays
from decoder_client.drafting.mixture import MixtureConfig
from decoder_client.drafting.retrieved import RetrievedPaths
from decoder_client.drafting.weights import SourceWeights
from decoder_client.evaluation.local_retriever import LocalRetriever
from decoder_client.evaluation.token_records import read_token_records
from decoder_client.evaluation.traces import Trace, load_traces
from decoder_client.target_model import load_target_model
from retriever_service.datastore import Datastore

DEPTH = 16
MOST_CHILDREN = 24
HIDDEN = 64
NODES_A_BATCH = 2048


@dataclass(frozen=True)
class Examples:
    """Children of many nodes: their features [n, FEATURES], which came next [n], whose they are [n], ascending."""

    features: NDArray[np.float32]
    is_next: NDArray[np.bool_]
    nodes: NDArray[np.int64]


def evidences(trace: Trace, retriever: LocalRetriever) -> Iterator[tuple[Evidence, FreshTable, tuple[int, ...]]]:
    """What is known at each position of an answer, with the tokens that follow."""
    config = MixtureConfig()
    tokens, begin = trace.tokens, len(trace.record.prompt)
    keys = retriever.handshake.reducer.reduce(trace.states.numpy())
    index, fresh = LocalIndex(), FreshTable()
    index.extend(tokens[: begin + 1], keys[:begin])
    for end in range(begin + 1, len(tokens)):
        context = np.array([[tokens[end - 3] if end > 2 else -1, tokens[end - 2]]])
        row = slice(end - 2, end - 1)
        fresh.add(LikelyTokens(context, trace.next_tokens[row].numpy(), trace.probabilities[row].numpy()))
        key = index.key
        assert key is not None  # noqa: S101 - every position has one
        (draft,) = retriever.retrieve(
            key[None].astype(np.float16),
            [tokens[end - 1]],
            left_contexts=index.left_context(retriever.handshake.left_context_length)[None],
            neighbors=config.retrieval.neighbors,
            sparse_neighbors=config.retrieval.sparse_neighbors,
            max_nodes=config.retrieval.nodes,
            max_depth=DEPTH,
            temperature=config.retrieval.temperature,
            match_temperature=config.retrieval.match_temperature,
        )
        retrieved = RetrievedPaths.of(draft.tree)
        places = index.places(max_places=config.places, depth=DEPTH)
        yield gather(index, places, retrieved, max_depth=DEPTH), fresh, tokens[end : end + DEPTH]
        index.extend([tokens[end]], keys[end - 1 : end])


def follow(
    evidence: Evidence, weights: SourceWeights, table: TableArrays, fresh: FreshTable, answer: tuple[int, ...]
) -> Iterator[tuple[NDArray[np.float32], int]]:
    """The children at each node of the true path, likeliest first, with the place of the next token or -1."""
    masses, members = evidence.masses * weights.values[:3], np.arange(len(evidence.paths))
    previous, current = evidence.previous, evidence.newest
    for depth, token in enumerate(answer):
        tokens, known, owners = children(
            evidence.paths, masses, members, depth, previous, current, table, fresh.arrays, weights.values
        )
        order = np.argsort(-known[:, MIXTURE], kind="stable")[:MOST_CHILDREN]
        if len(order) == 0:
            return
        right = np.flatnonzero(tokens[order] == token)
        read = np.empty((len(order), FEATURES))
        for row, child in zip(read, known[order], strict=True):
            features(child, depth, row)
        yield read.astype(np.float32), int(right[0]) if len(right) else -1
        if len(right) == 0:
            return
        members = members[owners == order[right[0]]]
        previous, current = current, token


def collect(traces: list[Trace], datastore: Datastore) -> Examples:
    """Examples of all traces."""
    retriever = LocalRetriever(datastore)
    weights, table = SourceWeights(), table_arrays(retriever.handshake.token_table)
    seen: list[NDArray[np.float32]] = []
    places: list[int] = []
    for number, trace in enumerate(traces, start=1):
        for evidence, fresh, answer in evidences(trace, retriever):
            for read, place in follow(evidence, weights, table, fresh, answer):
                seen.append(read)
                places.append(place)
        print(f"\r{number} of {len(traces)} answers, {len(seen)} nodes", end="", flush=True)
    print()
    sizes = [len(one) for one in seen]
    is_next = [np.arange(size) == place for size, place in zip(sizes, places, strict=True)]
    return Examples(np.concatenate(seen), np.concatenate(is_next), np.repeat(np.arange(len(sizes)), sizes))


class Network(nn.Module):
    """`AcceptanceModel` with gradients."""

    def __init__(self, center: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.center, self.scale = center, scale
        self.hidden, self.out = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, 1, bias=False)
        self.direct = nn.Linear(FEATURES, 1)
        self.escape = nn.Parameter(torch.zeros(1))
        with torch.no_grad():
            self.out.weight.mul_(0.1)

    def forward(self, inputs: Tensor) -> Tensor:
        """[n]: the scores of children."""
        standard = (inputs - self.center) / self.scale
        return (self.direct(standard) + self.out(torch.tanh(self.hidden(standard))))[:, 0]

    def fitted(self) -> AcceptanceModel:
        """The same in numpy."""
        array = lambda tensor: np.ascontiguousarray(tensor.detach().numpy(), np.float32)  # noqa: E731
        return AcceptanceModel(
            array(self.center),
            array(self.scale),
            array(self.hidden.weight.T),
            array(self.hidden.bias),
            array(self.out.weight[0]),
            array(self.direct.weight[0]),
            array(self.direct.bias),
            array(self.escape),
        )


def fit(examples: Examples, epochs: int) -> AcceptanceModel:
    """Maximises the likelihood of the tokens that came next."""
    inputs = torch.from_numpy(examples.features)
    is_next = torch.from_numpy(examples.is_next)
    nodes = torch.from_numpy(examples.nodes)
    count = int(nodes[-1]) + 1
    starts = torch.searchsorted(nodes, torch.arange(count + 1))
    network = Network(inputs.mean(0), inputs.std(0) + 1e-3)
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3, weight_decay=1e-4)
    steps = epochs * -(-count // NODES_A_BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, steps)
    runs = torch.arange(count).split(256)
    for epoch in range(epochs):
        total = 0.0
        order = torch.randperm(len(runs)).tolist()
        for first in range(0, len(order), NODES_A_BATCH // 256):
            batch = [runs[place] for place in order[first : first + NODES_A_BATCH // 256]]
            rows = torch.cat([torch.arange(int(starts[run[0]]), int(starts[run[-1] + 1])) for run in batch])
            _, owner = torch.unique(nodes[rows], return_inverse=True)
            scores = network(inputs[rows]).clamp(-20.0, 20.0).exp()
            sums = torch.zeros(int(owner.max()) + 1).index_add(0, owner, scores)
            right = torch.zeros(len(sums)).index_add(0, owner[is_next[rows]], scores[is_next[rows]])
            escape = network.escape.exp()
            likelihoods = torch.where(right > 0, right, escape) / (sums + escape)
            loss = -likelihoods.log().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(sums)
        print(f"epoch {epoch + 1}: {total / count:.4f} nats a node", flush=True)
    return network.fitted()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--datastore", required=True, type=Path)
    parser.add_argument("--traces", required=True, type=Path, help=".jsonl of prompt_ids and response_ids")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--limit", type=int, help="only the first answers")
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    target = load_target_model(arguments.model)
    records = read_token_records(arguments.traces, vocab_size=target.vocab_size, limit=arguments.limit)
    traces = load_traces(records, target, cache_folder(), on_trace=lambda number: print(f"\r{number} read", end=""))
    print()
    model = fit(collect(traces, Datastore.open(arguments.datastore)), arguments.epochs)
    beside = arguments.out.with_name(f".{arguments.out.name}.partial")
    beside.write_bytes(save({name: getattr(model, name) for name in AcceptanceModel.__slots__}))
    beside.replace(arguments.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
