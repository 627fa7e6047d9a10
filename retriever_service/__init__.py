"""dresd's service: what builds datastores of drafts, changes them, and serves them to decoders."""
