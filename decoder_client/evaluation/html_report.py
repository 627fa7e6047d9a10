"""Results as one self-contained HTML page. Knows the record of results; asks nothing of the network."""

from __future__ import annotations

from html import escape

from decoder_client.evaluation.results import Results
from decoder_client.evaluation.tables import comparison_table, method_table


def render(results: Results) -> str:
    """The page's text."""
    parts = [method_table(results), comparison_table(results), *results.notes]
    body = "\n".join(f"<pre>{escape(part)}</pre>" for part in parts if part)
    title = escape(f"{results.kind} of {results.model}")
    return f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n<h1>{title}</h1>\n{body}\n'
