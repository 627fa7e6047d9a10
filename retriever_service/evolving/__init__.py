"""Datastores made from datastores: joined and pruned. Knows datastores; not corpora, models, Ray or gRPC."""

from retriever_service.evolving.merging import merge

__all__ = ["merge"]
