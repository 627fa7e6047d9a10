"""Several servers of one datastore, and what one server that has all of it would answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from decoder_client.retriever import Draft, Drafts, RetrieverClient
from dresd.draft_tree import DraftTree
from dresd.path_merging import merge_trees
from retriever_service.datastore import Datastore
from tests.support.datastore import BuiltDatastore
from tests.support.drafts import node_paths
from tests.support.serving import ServerThread, local_config, serving

ALL = 10_000
"""More neighbours and nodes than a small datastore has."""


@contextmanager
def fleet(
    built: BuiltDatastore, shares: Sequence[Sequence[int]], *, peers: str | None = None
) -> Iterator[list[ServerThread]]:
    """A server for each share: the partitions that it serves."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(serving(local_config(built.path, partitions=share, peers=peers))) for share in shares
        ]


def addresses_of(servers: Sequence[ServerThread]) -> str:
    return ",".join(server.address for server in servers)


def asked_of(
    client: RetrieverClient, built: BuiltDatastore, rows: Sequence[int], *, neighbors: int = 10, max_nodes: int = 16
) -> Drafts | None:
    """Drafts for the positions of some entries."""
    return client.retrieve(
        built.entries.keys[rows].astype(np.float16),
        built.entries.next_tokens[rows].tolist(),
        left_contexts=built.entries.left_contexts[rows],
        neighbors=neighbors,
        sparse_neighbors=neighbors,
        max_nodes=max_nodes,
        temperature=0.1,
    )


def expected(
    store: Datastore, built: BuiltDatastore, rows: Sequence[int], *, neighbors: int = 10, max_nodes: int = 16
) -> list[DraftTree]:
    """What the service means by these drafts: of each partition its own nearest, merged by adding.

    For a token that lies in one partition that is what one server with everything answers.
    """
    trees = []
    for row in rows:
        token = built.entries.next_tokens[[row]]
        parts = [
            store.draft(
                built.entries.keys[[row]].astype(np.float16).astype(np.float32),
                token,
                left_contexts=built.entries.left_contexts[[row]],
                neighbors=neighbors,
                sparse_neighbors=neighbors,
                max_nodes=max_nodes,
                temperature=float(np.float32(0.1)),
                match_temperature=float(np.float32(3.3)),
                partitions={partition},
            ).trees[0]
            for partition in store.routing.partitions_of(int(token[0])).tolist()
        ]
        trees.append(parts[0] if len(parts) == 1 else merge_trees(parts, max_nodes))
    return trees


def same_tree(found: DraftTree, wanted: DraftTree) -> bool:
    """Equal nodes and, up to the wire's float32 and the order of sums, masses; nodes of equal mass in any order."""
    masses = [dict(zip(node_paths(tree), tree.masses.tolist(), strict=True)) for tree in (found, wanted)]
    return masses[0].keys() == masses[1].keys() and all(
        np.allclose(masses[0][path], masses[1][path], rtol=1e-5, atol=1e-12) for path in masses[0]
    )


def trees_of(drafts: Sequence[Draft] | None) -> list[DraftTree]:
    assert drafts is not None
    return [draft.tree for draft in drafts]
