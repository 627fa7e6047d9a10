"""The results of a run, for people: tables as text, and one HTML page with the same tables and a plot.

Knows how results look; measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.codec_sizes import CodecSize
from benchmarks.growth import Size
from benchmarks.load import Load
from benchmarks.overload import Overload
from benchmarks.peers import Peer
from benchmarks.throughput import Partitioned
from benchmarks.timing import Times
from dresd.page.layout import table
from dresd.page.markup import Markup, element, joined, text

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
caption { text-align: left; font-weight: 600; padding: 0.5rem 0; }
th, td { padding: 0.25rem 0.75rem; border-top: 1px solid #8886; text-align: left; vertical-align: top; }
thead th { border-top: 0; } .scroll { overflow-x: auto; } svg { width: 100%; height: auto; }
svg text { font-size: 12px; fill: currentColor; } .bar { fill: #2a6fb0; } .bar.ours { fill: #c2571a; }
"""
_BAR, _GAP, _NAMES, _BARS, _NUMBERS = 22, 12, 330, 330, 140


@dataclass
class Results:
    """What a run measured; None or empty is what it was not asked for."""

    about: dict[str, str]
    sizes: list[Size] = field(default_factory=list)
    codecs: list[CodecSize] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    faiss_per_s: float | None = None
    loads: list[Load] = field(default_factory=list)
    partitions: list[Partitioned] = field(default_factory=list)
    overloads: list[Overload] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header."""

    caption: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def tables(results: Results) -> Iterator[Table]:
    """One after the other, those that have rows."""
    for size in results.sizes:
        latency = size.latency
        rows = [(name, *_times(times)) for name, times in latency.times.items()]
        caption = f"Latency, {size.entries:,} entries (µs)"
        yield Table(caption, ("call", "median", "quartiles", "99%", "calls"), rows)
        ratios = [(name, f"{ratio:.2f}") for name, ratio in latency.ratios.items()]
        yield Table(f"Ratios of medians, {size.entries:,} entries", ("", "ratio"), ratios)
    yield Table(
        "Growth",
        ("entries", "bytes/entry", "lists searched", "recall@50", "draft µs", "stream µs", "open s", "with hashing s",
         "memory, opened", "build s", "build memory, own", "with mapped files"),
        [_growth(size) for size in results.sizes],
    )  # fmt: skip
    yield Table(
        "Codecs",
        ("codec", "bytes/entry", "lists searched", "recall@50", "of every list", "search µs"),
        [
            (each.codec, f"{each.bytes_per_entry:.1f}", str(each.nprobe), f"{each.recall:.3f}",
             f"{each.every_list_recall:.3f}", f"{each.search_us:,.0f}")
            for each in results.codecs
        ],
    )  # fmt: skip
    yield Table(
        "Peers: useful neighbours are true ones of the 50 nearest with the query's next token",
        ("", "median µs", "quartiles", "found", "useful", "recall", "useful/ms", "build s"),
        [
            (peer.name, *_times(peer.times)[:2], f"{peer.found:.1f}", f"{peer.useful:.1f}", f"{peer.recall:.3f}",
             f"{peer.useful_per_ms:,.0f}", f"{peer.build_seconds:.0f}")
            for peer in results.peers
        ],
    )  # fmt: skip
    yield Table(
        "Throughput against streams"
        + ("" if results.faiss_per_s is None else f" (FAISS alone, one core: {results.faiss_per_s:,.0f}/s)"),
        ("streams", "queries/s", "median µs", "quartiles", "99%", "server µs/query", "queries/s and server core"),
        [
            (str(load.streams), f"{load.queries_per_s:,.0f}", *_times(load.times)[:3], f"{load.server_us:,.0f}",
             f"{1e6 / load.server_us:,.0f}" if load.server_us else "")
            for load in results.loads
        ],
    )  # fmt: skip
    yield Table(
        "Partitions, each a process",
        ("partitions", "streams", "pauses", "queries/s", "median µs", "server µs/query, all together",
         "sender µs/query"),
        [
            (str(each.partitions), str(load.streams), pauses, f"{load.queries_per_s:,.0f}",
             f"{load.times.median:,.0f}", f"{load.server_us:,.0f}", f"{load.sender_us:,.0f}")
            for pauses, loads in (("as decoders", [each.load for each in results.partitions]),
                                  ("none", [each.without_pauses for each in results.partitions]))
            for each, load in zip(results.partitions, loads, strict=True)
        ],
    )  # fmt: skip
    yield Table(
        "Overload: requests a second; times from when a request was due",
        ("queries/request", "of the saturating load", "due", "accepted", "refused", "given up", "median ms", "99% ms",
         "sender late by (99%), ms"),
        [
            (str(each.batch), f"{one.rate / each.saturating:.1f}",
             *(f"{count / one.seconds:,.0f}" for count in (one.due, one.accepted, one.refused)),
             f"{(one.due - one.accepted - one.refused) / one.seconds:,.0f}",
             f"{one.p50_ms:,.1f}", f"{one.p99_ms:,.1f}", f"{one.behind_ms:,.1f}")
            for each in results.overloads
            for one in each.offered
        ],
    )  # fmt: skip


def _times(times: Times) -> tuple[str, str, str, str]:
    quartiles = f"{times.lower:,.0f} to {times.upper:,.0f}"
    return f"{times.median:,.0f}", quartiles, f"{times.p99:,.0f}", f"{times.calls:,}"


def _growth(size: Size) -> tuple[str, ...]:
    times = size.latency.times
    return (
        f"{size.entries:,}", f"{size.bytes_per_entry:.1f}", str(size.nprobe), f"{size.recall:.3f}",
        f"{times['draft'].median:,.0f}", f"{times['stream'].median:,.0f}", f"{size.open_s:.2f}",
        f"{size.open_checked_s:.2f}", _mib(size.opened_bytes), f"{size.build.seconds:.0f}",
        _mib(size.build.own_bytes), _mib(size.build.resident_bytes),
    )  # fmt: skip


def _mib(number: int) -> str:
    return f"{number / (1 << 20):,.0f} MiB"


def as_text(results: Results) -> str:
    """All tables, columns aligned."""
    parts = [", ".join(f"{name} {value}" for name, value in results.about.items())]
    parts += ["\n".join(_aligned(each)) for each in tables(results) if each.rows]
    return "\n\n".join([*parts, *results.missing]) + "\n"


def _aligned(each: Table) -> Iterator[str]:
    lines = [each.header, *each.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(each.header))]
    yield each.caption
    for line in lines:
        first, *rest = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join([line[0].ljust(len(first)), *rest]).rstrip()


def as_html(results: Results) -> str:
    """One page."""
    shown = [
        table(each.caption, each.header, [[text(cell) for cell in row] for row in each.rows])
        for each in tables(results)
        if each.rows
    ]
    title = "Retrieval service: benchmark"
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"name": "viewport", "content": "width=device-width"}),
        element("title", None, text(title)),
        Markup(f"<style>{_STYLE}</style>"),
    )
    plot = [chart(results.peers)] if results.peers else []
    about = element("p", None, text(", ".join(f"{name} {value}" for name, value in results.about.items())))
    notes = [element("p", None, text(note)) for note in results.missing]
    body = element("body", None, element("h1", None, text(title)), about, *plot, *shown, *notes)
    return f"<!doctype html>{element('html', {'lang': 'en'}, head, body)}\n"


def chart(peers: Sequence[Peer]) -> Markup:
    """Bars of useful neighbours a millisecond, on a logarithmic scale, best first."""
    best = sorted(peers, key=lambda peer: -peer.useful_per_ms)
    logs = np.log10([max(peer.useful_per_ms, 1.0) for peer in best])
    longest = max(float(logs.max()), 1e-9)
    height = len(best) * (_BAR + _GAP) + _GAP
    bars = []
    for row, (peer, log) in enumerate(zip(best, logs.tolist(), strict=True)):
        top = _GAP + row * (_BAR + _GAP)
        length = max(_BARS * log / longest, 1.0)
        middle = top + 0.7 * _BAR
        number = f"{peer.useful_per_ms:,.0f}, recall {peer.recall:.2f}"
        bars += [
            element("text", {"x": _NAMES - 8, "y": middle, "text-anchor": "end"}, text(peer.name)),
            element("rect", {"class": "bar ours" if peer.name.startswith("dresd") else "bar", "x": _NAMES, "y": top,
                             "width": length, "height": _BAR}),
            element("text", {"x": _NAMES + length + 6, "y": middle}, text(number)),
        ]  # fmt: skip
    caption = element("p", None, text("Useful neighbours a millisecond (logarithmic)"))
    box = f"0 0 {_NAMES + _BARS + _NUMBERS} {height}"
    label = "Useful neighbours a millisecond of every peer; the numbers are in the table below"
    return joined(caption, element("svg", {"viewBox": box, "role": "img", "aria-label": label}, *bars))
