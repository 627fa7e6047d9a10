"""vLLM with and without drafts, on one machine in one run: `python -m benchmarks.vllm`, in vLLM's own environment."""
