"""The gRPC service that answers queries from a datastore: `server.run` and `server.start` with a `ServeConfig`.

Knows the wire contract and the datastore's public surface; never a model, torch, Ray or a decoder.
"""
