"""The page that `inspect --html` writes: whole, the same each time, and safe whatever a datastore's names are."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from retriever_service.cli import main
from retriever_service.commands.inspection_page import inspection_page
from retriever_service.datastore import inspect, read_manifest
from tests.support.datastore import build_datastore, edit_manifest, random_entries
from tests.support.serving import fitted_reducer, servable_datastore


def page_of(path: Path) -> tuple[str, ElementTree.Element]:
    """The page, and as XML: what is well-formed in both ways no browser reads in another way."""
    page = inspection_page(inspect(path), read_manifest(path))
    return page, ElementTree.fromstring(page.removeprefix("<!doctype html>\n"))  # noqa: S314 (our own page)


def words(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def test_the_page_shows_sizes_skew_recall_and_origin(tmp_path):
    path = servable_datastore(tmp_path / "store", num_partitions=3).path
    page, root = page_of(path)
    inspection = inspect(path)
    shown = words(root)
    assert f"{inspection.num_entries:,}" in shown
    assert f"{fitted_reducer().explained_variance:.1%} of the variance" in shown
    for heading in (
        "Entries by next token",
        "Recall",
        "Size by partition",
        "Size by file",
        "Corpus",
        "How it was made",
    ):
        assert heading in [words(one) for one in root.iter("h2")]
    tables = {words(one.find("caption")): one for one in root.iter("table")}
    sizes = [words(row[2]) for row in tables["Partitions, the largest first"].find("tbody")]
    assert sizes == sorted((f"{part.num_entries:,}" for part in inspection.partitions), key=int, reverse=True)
    assert len(tables["Of all partitions"].find("tbody")) == len(inspection.bytes_by_file)
    # A marker a rank, each with its numbers.
    chart = next(one for one in root.iter("svg") if one.get("class") == "chart")
    assert len(list(chart.iter("title"))) == len(inspection.tokens.ranks)
    assert page == page_of(path)[0]


def test_ranks_fall_and_end_with_everything(tmp_path):
    ranks = inspect(build_datastore(tmp_path / "store").path).tokens.ranks
    assert ranks[0].rank == 1
    assert ranks[-1].share == pytest.approx(1.0)
    assert [one.entries for one in ranks] == sorted((one.entries for one in ranks), reverse=True)
    assert [one.share for one in ranks] == sorted(one.share for one in ranks)


@pytest.mark.parametrize(
    "name", ["</style><script>alert(1)</script>", "a\u202eb", '"><img src=x>', "\ud800", "é" * 300]
)
def test_names_are_text(tmp_path, name):
    path = build_datastore(tmp_path / "store").path
    edit_manifest(path, lambda manifest: manifest["model"].update(name=name))
    edit_manifest(path, lambda manifest: manifest["corpus"]["files"][0].update(name=name))
    page, root = page_of(path)
    page.encode("utf-8")
    assert [one.tag for one in root.iter() if one.tag in ("script", "img")] == []


def test_a_datastore_of_very_many_parts_stays_readable(tmp_path):
    path = build_datastore(tmp_path / "store", random_entries(300), num_partitions=100).path
    edit_manifest(path, lambda manifest: manifest["corpus"].update(files=manifest["corpus"]["files"] * 200))
    shown = words(page_of(path)[1])
    assert "36 more have" in shown
    assert "The first 64 of 200 files" in shown


def test_a_datastore_without_entries_has_a_page(tmp_path):
    path = build_datastore(tmp_path / "store", random_entries(0)).path
    assert "there are no entries" in words(page_of(path)[1])


def test_the_command_writes_it_beside_what_it_prints(tmp_path, capsys):
    path = build_datastore(tmp_path / "store").path
    assert main(["inspect", str(path), "--json", "--html", str(tmp_path / "page.html")]) == 0
    assert json.loads(capsys.readouterr().out)["num_entries"] == 500
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page_of(path)[0]
    assert main(["inspect", str(path), "--html", str(tmp_path / "none" / "page.html")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be written" in line
    assert "--html" in line
