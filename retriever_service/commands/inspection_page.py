"""An inspection as one self-contained HTML page: the same datastore gives the same bytes. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dresd.page.axes import Axis
from dresd.page.bars import bar
from dresd.page.document import document
from dresd.page.layout import details, left_out, pairs, prose, section, table
from dresd.page.line_chart import LineChart, Point, Series, draw
from dresd.page.markup import NOTHING, Markup, element, isolated, text
from retriever_service.commands.output import human_bytes

if TYPE_CHECKING:
    from retriever_service.datastore import Inspection, Manifest

_MOST_ROWS = 64
"""Of partitions and of corpus files; those beyond are summed up."""


def inspection_page(inspection: Inspection, manifest: Manifest) -> str:
    """The page's text."""
    return document(
        f"Datastore {manifest.build_id[:16]}",
        _facts(inspection, manifest),
        _tokens(inspection),
        _recall(inspection, manifest),
        _partitions(inspection),
        _files(inspection),
        _corpus(manifest),
        _origin(manifest),
    )


def _facts(inspection: Inspection, manifest: Manifest) -> Markup:
    reducer, recipe, model = inspection.reducer, manifest.key_recipe, manifest.model
    explained = "" if reducer.explained_variance is None else f"{reducer.explained_variance:.1%} of the variance"
    samples = "" if reducer.num_samples is None else f", fitted on {reducer.num_samples:,} states"
    searched = "every list of a token" if manifest.nprobe == 0 else f"{manifest.nprobe} lists of a token"
    return pairs(
        [
            ("Model", isolated(f"{model.name} {model.revision}".strip())),
            ("Entries", text(f"{inspection.num_entries:,}")),
            ("Next tokens", text(f"{inspection.tokens.num_tokens:,} of {model.vocab_size:,}")),
            ("Size", text(f"{human_bytes(inspection.total_bytes)}, {inspection.bytes_per_entry:.0f} bytes an entry")),
            ("Keys", text(f"{recipe.dims} of {model.hidden_size} dimensions, codec {manifest.codec}")),
            ("Reducer keeps", text(f"{explained}{samples}")),
            ("Searched", text(searched)),
            ("Recall@50", text(f"{inspection.recall:.3f}")),
            ("Partitions", text(f"{len(inspection.partitions)}, the largest {inspection.balance:.2f} times the mean")),
            ("Corpus", text(f"{manifest.corpus.documents:,} documents, {manifest.corpus.tokens:,} tokens")),
            ("Created", text(manifest.created)),
        ]
    )


def _tokens(inspection: Inspection) -> Markup:
    tokens, title = inspection.tokens, "Entries by next token"
    if not tokens.ranks:
        return left_out(title, "Left out: there are no entries.")
    points = tuple(
        Point(one.rank, one.entries, f"rank {one.rank:,}: {one.entries:,} entries; {one.share:.0%} up to there")
        for one in tokens.ranks
    )
    chart = LineChart(
        description="Entries of a next token by its rank, both logarithmic",
        x_name="rank of the next token",
        y_name="entries",
        x_axis=_decades(tokens.num_tokens),
        y_axis=_decades(tokens.max),
        series=(Series("entries", 0, points),),
        y_text="{:,.0f}".format,
    )
    half = next((one.rank for one in tokens.ranks if one.share >= 0.5), tokens.num_tokens)
    about = (
        f"A token has {tokens.median:,.0f} entries at the median, {tokens.p99:,.0f} at the 99th percentile and "
        f"{tokens.max:,} at most; about {half:,} tokens have half of all."
    )
    if tokens.split_tokens:
        about += f" {tokens.split_tokens:,} lie in several partitions."
    heaviest = table(
        "The tokens with most entries",
        ["token id", "", "entries", "share"],
        [
            [
                text(str(one.token)),
                bar([(one.entries / max(tokens.max, 1), f"{one.entries:,} entries")]),
                text(f"{one.entries:,}"),
                text(f"{one.entries / max(inspection.num_entries, 1):.1%}"),
            ]
            for one in tokens.heaviest
        ],
    )
    return section(title, prose(about), draw(chart), details("The heaviest", heaviest))


def _decades(most: int) -> Axis:
    """From 1 to a power of ten that is enough."""
    ticks = [1.0]
    while ticks[-1] < most:
        ticks.append(10 * ticks[-1])
    ticks = ticks if len(ticks) > 1 else [1.0, 10.0]
    return Axis(ticks[0], ticks[-1], tuple(ticks), logarithmic=True)


def _recall(inspection: Inspection, manifest: Manifest) -> Markup:
    title, tuning = "Recall", manifest.tuning
    about = prose(
        f"A search finds {inspection.recall:.1%} of the 50 nearest keys with the same next token, measured on keys "
        "that neither the codec nor the lists were fitted to."
    )
    made_from = [
        ("Recall of " + source.build_id[:16], text(f"{source.recall:.3f}, {source.num_entries:,} entries read back"))
        for source in manifest.made_from
    ]
    chosen = (
        [("Lists", text("every token has one, or all are searched"))]
        if tuning is None
        else [
            ("Aim", text(f"recall@{tuning.neighbors} of {tuning.target_recall:g}")),
            (f"With {manifest.nprobe} lists", text(f"{tuning.recall:.4f} ± {tuning.standard_error:.4f}")),
            ("With every list", text(f"{tuning.every_list_recall:.4f}: what is missing there, the codec loses")),
            ("Measured on", text(f"{tuning.held_out_keys:,} keys")),
        ]
    )
    return section(title, about, pairs([*chosen, *made_from]))


def _partitions(inspection: Inspection) -> Markup:
    parts = sorted(inspection.partitions, key=lambda part: (-part.num_entries, part.index))
    largest = max((part.num_entries for part in parts), default=0)
    rows = [
        [
            text(str(part.index)),
            bar([(part.num_entries / max(largest, 1), f"{part.num_entries:,} entries")]),
            text(f"{part.num_entries:,}"),
            text(f"{part.share:.1%}"),
            text(f"{part.num_tokens:,}"),
            text(str(part.segments)),
            text(human_bytes(part.bytes)),
            text(f"{part.recall:.3f}"),
        ]
        for part in parts[:_MOST_ROWS]
    ]
    whole = table(
        "Partitions, the largest first",
        ["partition", "", "entries", "share", "next tokens", "segments", "size", "recall@50"],
        rows,
    )
    rest = parts[_MOST_ROWS:]
    more = prose(f"{len(rest):,} more have {sum(part.num_entries for part in rest):,} entries.") if rest else NOTHING
    return section("Size by partition", whole, more, wide=True)


def _files(inspection: Inspection) -> Markup:
    sizes = sorted(inspection.bytes_by_file.items(), key=lambda item: (-item[1], item[0]))
    largest = max((size for _, size in sizes), default=0)
    rows = [
        [
            isolated(name),
            bar([(size / max(largest, 1), human_bytes(size))]),
            text(human_bytes(size)),
            text(f"{size / max(inspection.num_entries, 1):,.1f}"),
        ]
        for name, size in sizes
    ]
    return section("Size by file", table("Of all partitions", ["file", "", "size", "bytes an entry"], rows))


def _corpus(manifest: Manifest) -> Markup:
    corpus = manifest.corpus
    rows: Sequence[Sequence[Markup]] = [
        [isolated(file.name), text(f"{file.documents:,}"), text(human_bytes(file.size)), text(file.sha256[:16])]
        for file in corpus.files[:_MOST_ROWS]
    ]
    about = (
        f"{corpus.documents:,} documents; {corpus.duplicates:,} of them equal another, {corpus.skipped:,} skipped "
        f"and {corpus.split:,} split. {corpus.bad:,} records could not be read."
    )
    if len(corpus.files) > _MOST_ROWS:
        about += f" The first {_MOST_ROWS} of {len(corpus.files):,} files:"
    return section("Corpus", prose(about), table("Files", ["file", "documents", "size", "sha256"], rows))


def _origin(manifest: Manifest) -> Markup:
    model = manifest.model
    identity = [
        ("Build", text(manifest.build_id)),
        ("Weights", text(model.weights_fingerprint)),
        ("Tokenizer", text(model.tokenizer_hash)),
        ("Reducer", text(manifest.key_recipe.reducer_hash)),
        *((name, text(number)) for name, number in manifest.versions.items()),
    ]
    command = element("pre", None, text(manifest.command))
    return section("How it was made", details("Hashes and versions", pairs(identity)), command, wide=True)
