"""The dashboard's queries, as Grafana would send them, and what they ask for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from k8s.checks.rendering import K8S

DASHBOARD = K8S / "components" / "monitoring" / "dashboard.json"


@dataclass(frozen=True)
class Query:
    """One query of one panel."""

    panel: str
    text: str


def queries(*, namespace: str, rate_interval: str) -> Iterator[Query]:
    """All of them, with Grafana's variables filled in."""
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"].replace("$namespace", namespace).replace("$__rate_interval", rate_interval)
            yield Query(panel["title"], text)


def problems() -> Iterator[str]:
    """Queries that do not parse, a line each."""
    import promql_parser

    def problem(query: Query) -> str | None:
        try:
            promql_parser.parse(query.text)
        except ValueError as error:
            return f"panel {query.panel}: {query.text}: {error}"
        return None

    yield from filter(None, map(problem, queries(namespace="dresd", rate_interval="1m")))
