"""Results as one self-contained HTML page: it asks nothing of the network, runs no script, and prints.

The same record gives the same bytes. Knows the record of results; measures nothing.
"""

from __future__ import annotations

from importlib.resources import files

from decoder_client.evaluation import report
from decoder_client.evaluation.report.about import facts, findings, title
from decoder_client.evaluation.report.answers import answer_section
from decoder_client.evaluation.report.curves import curves
from decoder_client.evaluation.report.markup import Markup, element, text
from decoder_client.evaluation.report.method_tables import ablation_section, comparison_section, method_section
from decoder_client.evaluation.report.step_times import step_time_section
from decoder_client.evaluation.results import Results

# Whatever a mistake may let into the page, no browser fetches or runs it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render(results: Results) -> str:
    """The page's text, without characters that UTF-8 cannot hold."""
    style = Markup(files(report).joinpath("report.css").read_text(encoding="utf-8"))
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": _POLICY}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("title", None, text(title(results))),
        element("style", None, style),
    )
    main = element(
        "main",
        None,
        element("header", None, element("h1", None, text(title(results))), facts(results), findings(results)),
        method_section(results),
        *curves(results),
        step_time_section(results),
        answer_section(results),
        comparison_section(results),
        ablation_section(results),
    )
    return f"<!doctype html>\n{element('html', {'lang': 'en'}, head, element('body', None, main))}\n"
