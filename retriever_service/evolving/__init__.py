"""Datastores made from datastores: joined, extended and pruned. Knows datastores; not corpora, models, Ray or gRPC."""

from retriever_service.evolving.extending import Extended, extend
from retriever_service.evolving.merging import merge
from retriever_service.evolving.pruning import Pruned, prune

__all__ = ["Extended", "Pruned", "extend", "merge", "prune"]
