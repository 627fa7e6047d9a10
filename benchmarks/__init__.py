"""Benchmarks of the retrieval service: synthetic datastores, the service beside what it could at best be, and peers."""
