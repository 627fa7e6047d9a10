"""What a datastore is on disk, and how the partitions of one are searched."""

from retriever_service.datastore.build_id import build_id_of, dataset_files
from retriever_service.datastore.codecs import CODECS
from retriever_service.datastore.current import (
    CURRENT_FILE,
    Mark,
    current_build,
    current_mark,
    datastore_around,
    other_keys,
    publish,
)
from retriever_service.datastore.entries import EntryBatch
from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.fields import MAX_NPROBE
from retriever_service.datastore.inspection import (
    Inspection,
    PartitionInspection,
    ReducerInspection,
    TokenRank,
    TokenSkew,
    TokenWeight,
    inspect,
)
from retriever_service.datastore.layout import MAX_RECALL_NEIGHBORS, RECALL_NEIGHBORS, segment_directory
from retriever_service.datastore.manifest import (
    CHECKSUM_FIELD,
    FORMAT_VERSION,
    MANIFEST_FILE,
    REDUCER_FILE,
    ROUTING_FILE,
    TOKEN_TABLE_FILE,
    CorpusFile,
    CorpusProvenance,
    FileRecord,
    Manifest,
    PartitionRecord,
    SegmentRecord,
    SourceRecord,
    TuningRecord,
    manifest_checksum,
    read_manifest,
    write_manifest,
)
from retriever_service.datastore.memory_segment import memory_segment
from retriever_service.datastore.reducer_file import read_reducer
from retriever_service.datastore.results import DraftBatch, Neighbors, StoredEntries
from retriever_service.datastore.routing import assign_tokens, save_routing, split_entries
from retriever_service.datastore.searched import OpenSegment
from retriever_service.datastore.segment import Segment
from retriever_service.datastore.store import Datastore
from retriever_service.datastore.stored import entries_at, keys_by_id, stored_batches, stored_entries
from retriever_service.datastore.token_table import TokenTableBuilder, save_token_table
from retriever_service.datastore.tokens import token_dtype
from retriever_service.datastore.tuning import UnreachableRecallError, tune, tune_built
from retriever_service.datastore.verification import VerificationReport, verify
from retriever_service.datastore.writer import write_partition

__all__ = [
    "CHECKSUM_FIELD",
    "CODECS",
    "CURRENT_FILE",
    "FORMAT_VERSION",
    "MANIFEST_FILE",
    "MAX_NPROBE",
    "MAX_RECALL_NEIGHBORS",
    "RECALL_NEIGHBORS",
    "REDUCER_FILE",
    "ROUTING_FILE",
    "TOKEN_TABLE_FILE",
    "CorpusFile",
    "CorpusProvenance",
    "Datastore",
    "DatastoreError",
    "DraftBatch",
    "EntryBatch",
    "FileRecord",
    "Inspection",
    "Manifest",
    "Mark",
    "Neighbors",
    "OpenSegment",
    "PartitionInspection",
    "PartitionRecord",
    "ReducerInspection",
    "Segment",
    "SegmentRecord",
    "SourceRecord",
    "StoredEntries",
    "TokenRank",
    "TokenSkew",
    "TokenTableBuilder",
    "TokenWeight",
    "TuningRecord",
    "UnreachableRecallError",
    "VerificationReport",
    "assign_tokens",
    "build_id_of",
    "current_build",
    "current_mark",
    "dataset_files",
    "datastore_around",
    "entries_at",
    "inspect",
    "keys_by_id",
    "manifest_checksum",
    "memory_segment",
    "other_keys",
    "publish",
    "read_manifest",
    "read_reducer",
    "save_routing",
    "save_token_table",
    "segment_directory",
    "split_entries",
    "stored_batches",
    "stored_entries",
    "token_dtype",
    "tune",
    "tune_built",
    "verify",
    "write_manifest",
    "write_partition",
]
