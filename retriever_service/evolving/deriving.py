"""Writing a datastore whose entries come from others: its files, then its manifest. Knows no reason to do so.

Memory is that of writing one segment (see `datastore.writer`), and a bit an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from dresd.routing import RoutingTable
from dresd.token_table import TokenTable
from retriever_service.datastore import (
    REDUCER_FILE,
    ROUTING_FILE,
    TOKEN_TABLE_FILE,
    CorpusProvenance,
    Datastore,
    EntryBatch,
    Manifest,
    PartitionRecord,
    SourceRecord,
    build_id_of,
    dataset_files,
    save_routing,
    save_token_table,
    segment_directory,
    tune_built,
    write_manifest,
    write_partition,
)
from retriever_service.datastore.files import replacing
from retriever_service.versions import installed_versions

OnEntries = Callable[[int], None]
"""Told how many more entries were read back."""


def write_derived(
    directory: Path,
    sources: Sequence[Datastore],
    *,
    routing: RoutingTable,
    token_table: TokenTable,
    batches: Callable[[int], Iterable[EntryBatch]],
    num_entries: int,
    codec: str,
    seed: int,
    command: str,
    on_entries: OnEntries,
) -> Manifest:
    """Writes a datastore of one segment a partition.

    Args:
        directory: an empty folder.
        sources: what it inherits its model, its keys and its corpus from; one at least, of one key recipe.
        routing: of its entries.
        token_table: its table.
        batches: the entries of a partition.
        num_entries: of all partitions, about: decides whether tokens are split into lists.
        codec: one of `CODECS`.
        seed: of the clustering, and of the keys that recall is measured on.
        command: as typed, for the manifest.
        on_entries: told of every batch.

    Raises:
        OSError: a file cannot be written.
    """
    first = sources[0].manifest
    with replacing(directory / REDUCER_FILE) as beside:
        beside.write_bytes(sources[0].reducer_bytes)
    save_routing(routing, directory / ROUTING_FILE)
    save_token_table(directory / TOKEN_TABLE_FILE, token_table)
    partitions = []
    for number in range(routing.num_partitions):
        record = write_partition(
            directory / segment_directory(number),
            _told(batches(number), on_entries),
            codec=codec,
            vocab_size=first.model.vocab_size,
            num_entries_total=num_entries,
            seed=seed,
        )
        if record.num_entries == 0:
            (directory / record.directory).rmdir()
        partitions.append(PartitionRecord(index=number, segments=[record] if record.num_entries else []))
    files = dataset_files(directory)
    manifest = first.model_copy(
        update={
            "build_id": build_id_of(first.key_recipe, first.model, files, partitions),
            "corpus": joined_corpora([source.manifest.corpus for source in sources]),
            "codec": codec,
            "nprobe": 0,
            "tuning": None,
            "num_entries": sum(partition.num_entries for partition in partitions),
            "files": files,
            "partitions": partitions,
            "versions": installed_versions(),
            "command": command,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "made_from": [SourceRecord.of(source.manifest) for source in sources],
        }
    )
    write_manifest(directory, manifest)
    return tune_built(directory)


def joined_corpora(parts: Sequence[CorpusProvenance]) -> CorpusProvenance:
    """What the entries of several datastores were made from; a file that is in several counts once for each."""
    counts = [name for name in CorpusProvenance.model_fields if name != "files"]
    return CorpusProvenance(
        files=[file for part in parts for file in part.files],
        **{name: sum(getattr(part, name) for part in parts) for name in counts},
    )


def _told(batches: Iterable[EntryBatch], on_entries: OnEntries) -> Iterator[EntryBatch]:
    for batch in batches:
        yield batch
        on_entries(len(batch))
