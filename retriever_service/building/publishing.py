"""The last step before a datastore appears: its own files, its manifest, and how many lists a search reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from decoder_client.reducer import KeyReducer
from dresd.identity import KeyRecipe, ModelIdentity
from dresd.routing import RoutingTable
from retriever_service.building import blocks
from retriever_service.building.entries import LEFT_CONTEXT_LENGTH
from retriever_service.datastore import (
    REDUCER_FILE,
    ROUTING_FILE,
    CorpusProvenance,
    Manifest,
    PartitionRecord,
    SegmentRecord,
    build_id_of,
    dataset_files,
    save_routing,
    token_dtype,
    tune_built,
    write_manifest,
)
from retriever_service.datastore.files import replacing
from retriever_service.echo import printable
from retriever_service.versions import installed_versions


@dataclass(frozen=True, slots=True)
class Finisher:
    """Completes a datastore whose partitions and token table are written; a picklable value.

    Attributes:
        datastore: its folder.
        reducer: block of the reducer.
        routing: to partitions.
        identity: of the model.
        corpus: what was read.
        continuation_length: tokens kept after an entry's next token.
        codec: of the keys.
        command: as typed.
    """

    datastore: Path
    reducer: Path
    routing: RoutingTable
    identity: ModelIdentity
    corpus: CorpusProvenance
    continuation_length: int
    codec: str
    command: str

    def finish(self, segments: Sequence[SegmentRecord]) -> Manifest:
        """Writes what is missing, the manifest last; equal content gives an equal build id."""
        reducer = KeyReducer.from_bytes(blocks.load(self.reducer))
        with replacing(self.datastore / REDUCER_FILE) as beside:
            beside.write_bytes(reducer.to_bytes())
        save_routing(self.routing, self.datastore / ROUTING_FILE)
        recipe = KeyRecipe(layer="last", norm="l2", dims=reducer.dims, reducer_hash=reducer.sha256)
        files, identity = dataset_files(self.datastore), self.identity
        partitions = [
            PartitionRecord(index=number, segments=[segment] if segment.num_entries else [])
            for number, segment in enumerate(segments)
        ]
        manifest = Manifest(
            build_id=build_id_of(recipe, identity, files, partitions),
            model=replace(identity, name=printable(identity.name), revision=printable(identity.revision)),
            key_recipe=recipe,
            corpus=self.corpus,
            continuation_length=self.continuation_length,
            left_context_length=LEFT_CONTEXT_LENGTH,
            token_dtype=token_dtype(identity.vocab_size),
            codec=self.codec,
            nprobe=0,
            num_entries=sum(segment.num_entries for segment in segments),
            files=files,
            partitions=partitions,
            versions=installed_versions(),
            command=printable(self.command),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )
        write_manifest(self.datastore, manifest)
        return tune_built(self.datastore)
