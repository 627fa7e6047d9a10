"""dresd-retriever inspect: what a datastore consists of."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dresd.argument_types import some_path
from dresd.output_file import write_output
from retriever_service.commands.inspection_page import inspection_page
from retriever_service.commands.output import CommandError, check_outside_datastores, human_bytes
from retriever_service.echo import printable

if TYPE_CHECKING:
    from retriever_service.datastore import Inspection, Manifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("datastore", type=some_path, metavar="DIR", help="a build's folder, or a root of builds")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--html", type=some_path, metavar="FILE", help="also write a page with plots")


def run(arguments: argparse.Namespace) -> int:
    """Prints sizes, balance, skew, recall and provenance."""
    from retriever_service.datastore import DatastoreError, current_build, inspect, read_manifest

    try:
        folder = current_build(arguments.datastore)
        inspection, manifest = inspect(folder), read_manifest(folder)
    except DatastoreError as error:
        raise CommandError(str(error)) from error
    if arguments.html is not None:
        _write(arguments.html, inspection_page(inspection, manifest))
    if arguments.json:
        print(json.dumps(asdict(inspection), indent=1))
    else:
        print("\n".join(map(printable, _lines(inspection, manifest))))
    return 0


def _write(path: Path, page: str) -> None:
    check_outside_datastores(path, "--html")
    try:
        write_output(path, page)
    except OSError as error:
        raise CommandError(
            f"The page cannot be written to '{printable(str(path))}': {error.strerror}. Choose another --html."
        ) from error


def _lines(inspection: Inspection, manifest: Manifest) -> Iterator[str]:
    model, corpus, recipe, tokens = manifest.model, manifest.corpus, manifest.key_recipe, inspection.tokens
    revision = f" at {model.revision}" if model.revision else ""
    yield inspection.path
    yield f"  build      {manifest.build_id}, {manifest.created}, format {manifest.format_version}"
    yield f"  model      {model.name}{revision} (hidden size {model.hidden_size}, vocabulary {model.vocab_size:,})"
    yield f"             weights {model.weights_fingerprint[:16]}, tokenizer {model.tokenizer_hash[:16] or 'none'}"
    read = f"{corpus.documents:,} documents, {corpus.tokens:,} tokens"
    yield f"  corpus     {read}; {corpus.skipped:,} skipped, {corpus.split:,} split"
    if corpus.duplicates or corpus.bad:
        yield f"             {corpus.duplicates:,} equal to another, {corpus.bad:,} records could not be read"
    for file in corpus.files:
        length = human_bytes(file.size)
        yield f"             {file.name}: {file.documents:,} documents, {length}, sha256 {file.sha256[:16]}"
    for at, source in enumerate(manifest.made_from):
        yield (
            f"  {'made from ' if at == 0 else '          '} {source.build_id}: {source.num_entries:,} entries, "
            f"codec {source.codec}, recall@50 {source.recall:.3f}"
        )
    yield (
        f"  keys       {recipe.dims} dimensions, codec {manifest.codec}, "
        f"{'every list' if manifest.nprobe == 0 else f'{manifest.nprobe} lists'} of a token searched, "
        f"recall@50 {inspection.recall:.3f}"
    )
    if (explained := inspection.reducer.explained_variance) is not None:
        yield (
            f"             the reducer keeps {explained:.1%} of the variance of hidden states, "
            f"fitted on {inspection.reducer.num_samples or 0:,}"
        )
    if (tuning := manifest.tuning) is not None:
        yield (
            f"             chosen for recall@{tuning.neighbors} {tuning.target_recall:g}: "
            f"{tuning.recall:.4f} ± {tuning.standard_error:.4f} ({tuning.every_list_recall:.4f} with every list) "
            f"on {tuning.held_out_keys:,} held-out keys"
        )
    yield (
        f"  entries    {inspection.num_entries:,} of {tokens.num_tokens:,} next tokens "
        f"(a token has {tokens.median:,.0f} at the median, {tokens.p99:,.0f} at p99, {tokens.max:,} at most); "
        f"{manifest.continuation_length} tokens of continuation, {manifest.left_context_length} of left context"
    )
    yield f"  size       {human_bytes(inspection.total_bytes)}, {inspection.bytes_per_entry:.0f} bytes an entry"
    for name, size in sorted(inspection.bytes_by_file.items(), key=lambda item: -item[1]):
        yield f"             {human_bytes(size):>10}  {name}"
    yield (
        f"  partitions {len(inspection.partitions)}, the largest {inspection.balance:.2f} times the mean; "
        f"{tokens.split_tokens:,} tokens lie in several"
    )
    for part in inspection.partitions:
        yield (
            f"             {part.index}: {part.num_entries:,} entries ({part.share:.1%}), {part.num_tokens:,} tokens, "
            f"{human_bytes(part.bytes)}, recall@50 {part.recall:.3f}"
            f"{f', {part.segments} segments' if part.segments > 1 else ''}"
        )
    yield f"  versions   {', '.join(f'{name} {number}' for name, number in manifest.versions.items())}"
    yield f"  command    {manifest.command or '(none recorded)'}"
