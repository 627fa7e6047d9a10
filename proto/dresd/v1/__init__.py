"""Generated modules of the wire contract, version 1; regenerate with `make proto`."""
