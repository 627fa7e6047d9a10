"""The benchmark of the service, at a size that says nothing about times."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.queries import NEIGHBORS, queries_for
from benchmarks.stores import Spec, write
from benchmarks.stores import main as build
from benchmarks.synthetic import BLOCK, DIMS, Generator
from benchmarks.truth import Identifier, Truth
from retriever_service.datastore import CODECS, Datastore, EntryBatch, verify


def test_the_program_measures_everything_and_writes_it(tmp_path, capsys):
    options = ["--entries", "1500", "--calls", "40", "--streams", "2", "--partitions", "2", "--seconds", "0.1"]
    # Built here, where everything is imported; the one in two partitions is left to a process of its own.
    for codec in CODECS:
        build([str(tmp_path / "stores"), "1500", codec, "1", "0"])
    files = ["--json", str(tmp_path / "out.json"), "--html", str(tmp_path / "out.html")]
    assert main([*options, *files, "--folder", str(tmp_path / "stores")]) == 0
    results = json.loads((tmp_path / "out.json").read_text())
    (size,) = results["sizes"]
    assert size["entries"] == 1500
    assert size["recall"] > 0.95
    assert 0 < size["latency"]["times"]["FAISS"]["lower"] <= size["latency"]["times"]["FAISS"]["upper"]
    assert {each["codec"]: each["recall"] for each in results["codecs"]}["flat"] == 1.0
    ours = results["peers"][0]
    assert ours["useful"] <= ours["found"] <= NEIGHBORS
    assert results["peers"][1]["recall"] < ours["recall"]
    assert results["loads"][0]["queries_per_s"] > 0
    for load in ("load", "without_pauses"):
        assert results["partitions"][0][load]["server_us"] > 0
        assert results["partitions"][0][load]["sender_us"] > 0
    for batch, shares in ((each["batch"], each["offered"]) for each in results["overloads"]):
        assert batch in (1, 32)
        for one in shares:
            assert one["accepted"] + one["refused"] + one["withheld"] <= one["due"]
        assert shares[0]["accepted"] > 0
    shown, page = capsys.readouterr().out, (tmp_path / "out.html").read_text()
    for caption in ("Latency", "Growth", "Codecs", "Peers", "Throughput", "Partitions", "Overload"):
        assert caption in shown
        assert caption in page
    assert page.count("<rect") == len(results["peers"])


@pytest.mark.parametrize("options", [["--parts", "nothing"], ["--entries", "0"], ["--streams", "x"]])
def test_options_that_make_no_sense_are_wrong_usage(options):
    with pytest.raises(SystemExit) as refused:
        main(options)
    assert refused.value.code == 2


def test_entries_are_the_same_every_time_however_many_are_wanted():
    few, many = list(Generator(3).entries(100)), list(Generator(3).entries(BLOCK + 5))
    assert [len(batch) for batch in many] == [BLOCK, 5]
    for name in ("keys", "next_tokens", "continuations", "left_contexts"):
        assert np.array_equal(getattr(few[0], name), getattr(many[0], name)[:100])
    other = next(Generator(4).entries(100))
    assert not np.array_equal(few[0].keys, other.keys)
    for batch in many:
        batch.check_values(Generator(3).vocab_size)
    queries = Generator(3).queries(50)
    assert not np.isin(queries.keys[:, 0], many[0].keys[:, 0]).any()
    # Real keys: of the nearest of all tokens, fewer than half have the query's next token, but far more than by chance.
    nearest = np.argsort(-(queries.keys @ many[0].keys.T), axis=1)[:, :50]
    assert 0.2 < (many[0].next_tokens[nearest] == queries.next_tokens[:, None]).mean() < 0.6


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_synthetic_datastore_is_one_like_any_other(tmp_path, partitions):
    spec = Spec(4000, "flat", partitions, seed=1)
    write(tmp_path / "store", spec)
    assert verify(tmp_path / "store", sample=50).self_recall == 1.0
    store = Datastore.open(tmp_path / "store")
    assert store.manifest.build_id == spec.name
    assert store.num_entries == 4000
    # Ids lead back to the entries, and the search is exact.
    queries = queries_for(store, 30, seed=1)
    batches = list(Generator(1).entries(4000))
    truth = Truth.of(batches, queries, 20)
    near = store.search(queries.keys, queries.next_tokens, neighbors=20)
    numbers = [Identifier(batches).numbers(store, ids[ids >= 0]) for ids in near.ids]
    assert truth.found(numbers) == truth.total > 100
    everything = EntryBatch.concatenate(batches)
    for query, found in enumerate(numbers):
        assert (everything.next_tokens[found] == queries.next_tokens[query]).all()
    assert queries.keys.shape == (30, DIMS)
