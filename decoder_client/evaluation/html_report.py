"""Results as one self-contained HTML page.

The same record gives the same bytes. Knows the record of results; measures nothing.
"""

from __future__ import annotations

from decoder_client.evaluation.report.about import facts, findings, title
from decoder_client.evaluation.report.answers import answer_section
from decoder_client.evaluation.report.curves import curves
from decoder_client.evaluation.report.method_tables import ablation_section, comparison_section, method_section
from decoder_client.evaluation.report.step_times import step_time_section
from decoder_client.evaluation.results import Results
from dresd.page.document import document
from dresd.page.markup import joined


def render(results: Results) -> str:
    """The page's text, without characters that UTF-8 cannot hold."""
    return document(
        title(results),
        joined(facts(results), findings(results)),
        method_section(results),
        *curves(results),
        step_time_section(results),
        answer_section(results),
        comparison_section(results),
        ablation_section(results),
    )
