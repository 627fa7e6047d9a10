"""Builds datastores: Ray jobs from a corpus to partitions. `build` is in `job`, which imports torch."""
