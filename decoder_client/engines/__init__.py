"""Adapters: drafts inside engines that decode by themselves (transformers' `generate`, vLLM)."""
