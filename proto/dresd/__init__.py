"""The contract between the draft retriever and its decoders: messages (`dresd.v1`) and the draft tree they carry."""
