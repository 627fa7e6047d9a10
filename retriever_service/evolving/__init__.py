"""Datastores made from datastores: joined and pruned. Knows datastores; not corpora, models, Ray or gRPC."""

from retriever_service.evolving.merging import merge
from retriever_service.evolving.pruning import Pruned, prune

__all__ = ["Pruned", "merge", "prune"]
