"""Measures drafters against each other on the same prompts, in the same decode loop, in one run."""
