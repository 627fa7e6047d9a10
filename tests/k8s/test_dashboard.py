"""A real Prometheus scrapes a running service and a decoder: every query of dashboard and scaling finds data, and every
name and label that alerts use is one that the service shows."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from prometheus_client import CollectorRegistry, start_http_server

from decoder_client import metrics
from decoder_client.generation import SpeculativeDecoder
from decoder_client.target_model import TargetModel
from k8s.checks.alerting import RULES
from k8s.checks.queries import DASHBOARD, Query, queries
from k8s.checks.rendering import manifests
from retriever_service.datastore.pushing import push
from tests.support.following import following
from tests.support.models import tiny_model
from tests.support.retriever import client_of
from tests.support.serving import HIDDEN, PATIENCE_S, VOCAB, eventually, local_config, servable_datastore, serving

NAMESPACE = "dresd"
FROM_DISCOVERY = {"namespace", "pod", "job", "instance"}
"""Labels that Prometheus itself adds to what it scrapes."""
_NAME = re.compile(r"\b(dresd_\w+|process_\w+)")


class Prometheus:
    """One that scrapes some ports of this machine."""

    def __init__(self, programs: Path, folder: Path, ports: dict[str, int]) -> None:
        jobs = [
            {
                "job_name": name,
                "static_configs": [
                    {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": NAMESPACE, "pod": f"{name}-0"}}
                ],
            }
            for name, port in ports.items()
        ]
        config = {"global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"}, "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = [
            str(programs / "prometheus"), f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}", "--web.listen-address=127.0.0.1:0",
        ]  # fmt: skip
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        found: list[str] = []

        def listens() -> bool:
            found[:] = re.findall(r'Listening on" address=(\S+)', (folder / "log").read_text())
            assert found or self._process.poll() is None, (folder / "log").read_text()
            return bool(found)

        eventually(listens)
        self._address = found[0]
        eventually(self._is_ready)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=PATIENCE_S):
                return True
        except urllib.error.HTTPError:
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            return json.load(response)["data"]

    def values(self, query: str) -> list[dict[str, Any]]:
        """Series that have a number now."""
        return [each for each in self.ask("query", query=query)["result"] if each["value"][1] not in {"NaN", "+Inf"}]

    def labels(self, name: str) -> set[str]:
        return {label for series in self.ask("series", **{"match[]": name}) for label in series}

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def scraped(prometheus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Of a service, a decoder that has decoded with it, and a fetch that stays."""
    folder = tmp_path_factory.mktemp("prometheus")
    torch.manual_seed(9)
    target = TargetModel(tiny_model("llama", vocab_size=VOCAB, hidden_size=HIDDEN))
    model = replace(target.identity(), name="tiny")  # an empty label is none
    built = servable_datastore(folder / "store", model=model, num_partitions=2)
    registry = CollectorRegistry()
    config = local_config(built.path, metrics_listen="127.0.0.1:0")
    push(built.path, str(folder / "remote"))
    with (
        serving(config) as server,
        client_of(server.address) as client,
        following(str(folder / "remote"), folder / "root") as (_, fetch_port),
    ):
        decoder = SpeculativeDecoder.from_pretrained(target, client, nodes=16, context=False)
        metrics.register(registry, decoder)
        shown, thread = start_http_server(0, "127.0.0.1", registry)
        # Rates need numbers from before, of every series.
        decoder.generate([3, 1, 4, 1, 5], max_new_tokens=5)
        ports = {"retriever": server.server.metrics_port, "decoder": shown.server_port, "fetch": fetch_port}
        found = Prometheus(prometheus, folder, ports)
        try:
            eventually(lambda: len(found.values("count_over_time(up[1m]) >= 2")) == len(ports))
            decoder.generate([3, 1, 4, 1, 5], max_new_tokens=40)
            for counted in ("dresd_decoder_tokens_total", "dresd_retriever_queries_total"):
                eventually(lambda counted=counted: bool(found.values(f"increase({counted}[1m]) > 0")))
            yield found
        finally:
            found.close()
            shown.shutdown()
            shown.server_close()
            thread.join()


def all_queries() -> list[Query]:
    scaled = [each for each in manifests("production") if each["kind"] == "ScaledObject"]
    scaling = [
        Query("autoscaling", trigger["metadata"]["query"]) for each in scaled for trigger in each["spec"]["triggers"]
    ]
    return [*queries(namespace=NAMESPACE, rate_interval="1m"), *scaling]


def alerts() -> list[Query]:
    groups = yaml.safe_load(RULES.read_text())["spec"]["groups"]
    return [Query(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]]


def test_every_query_finds_data(scraped: Prometheus):
    wanted = all_queries()
    assert len(wanted) > 30
    assert [query for query in wanted if not scraped.values(query.text)] == []


def test_every_name_and_label_is_one_that_is_shown(scraped: Prometheus):
    asked = set()
    for query in [*all_queries(), *alerts()]:
        names = set(_NAME.findall(query.text)) - {"dresd_retriever"}
        labels = {name: scraped.labels(name) for name in names}
        assert all(labels.values()), (query, labels)
        used = {
            label.strip()
            for group in re.findall(r"\b(?:by|ignoring) \(([^)]*)\)", query.text)
            for label in group.split(",")
        }
        used |= set(re.findall(r"[{,]\s*(\w+)\s*=", query.text))
        if names:
            assert used <= set().union(*labels.values()) | FROM_DISCOVERY, query
        asked |= names
    assert len(asked) > 25


def test_panels_have_places_and_numbers_of_their_own():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24


def test_legends_name_labels_that_their_queries_keep():
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            kept = {
                label.strip() for group in re.findall(r"\bby \(([^)]*)\)", target["expr"]) for label in group.split(",")
            }
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            aggregated = re.match(r"(sum|count|histogram_quantile)\b", target["expr"]) is not None
            assert named <= (kept if aggregated else kept | FROM_DISCOVERY), panel["title"]
