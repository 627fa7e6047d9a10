"""What a datastore is on disk, and how the partitions of one are searched."""

from retriever_service.datastore.codecs import CODECS
from retriever_service.datastore.entries import EntryBatch
from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.inspection import Inspection, PartitionInspection, TokenSkew, TokenWeight, inspect
from retriever_service.datastore.layout import segment_directory
from retriever_service.datastore.manifest import (
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
    read_manifest,
    write_manifest,
)
from retriever_service.datastore.routing import RoutingTable
from retriever_service.datastore.store import Datastore, DraftBatch, Neighbors, StoredEntries
from retriever_service.datastore.token_table import TokenTable, TokenTableBuilder
from retriever_service.datastore.tokens import token_dtype
from retriever_service.datastore.verification import VerificationReport, verify
from retriever_service.datastore.writer import write_partition

__all__ = [
    "CODECS",
    "FORMAT_VERSION",
    "MANIFEST_FILE",
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
    "Neighbors",
    "PartitionInspection",
    "PartitionRecord",
    "RoutingTable",
    "SegmentRecord",
    "StoredEntries",
    "TokenSkew",
    "TokenTable",
    "TokenTableBuilder",
    "TokenWeight",
    "VerificationReport",
    "inspect",
    "read_manifest",
    "segment_directory",
    "token_dtype",
    "verify",
    "write_manifest",
    "write_partition",
]
