"""What a datastore needs, by arithmetic on its manifest's sizes; and the component written of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from retriever_service.cli import main
from retriever_service.datastore.sizing import BASE_BYTES, MOST_MEMORY, Sizes, needs
from tests.support.datastore import BuiltDatastore
from tests.support.serving import servable_datastore


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltDatastore:
    return servable_datastore(tmp_path_factory.mktemp("values") / "store", num_partitions=3)


def test_sizes_are_those_of_the_largest_partition_on_disk(built: BuiltDatastore):
    sizes = Sizes.of(built.manifest)
    stores = [built.open(partitions=[number]) for number in range(3)]
    assert sizes.mapped == max(store.mapped_bytes for store in stores)
    folders = [path for path in built.path.iterdir() if path.is_dir()]
    own = sum(path.stat().st_size for path in built.path.glob("*.safetensors"))
    whole = max(sum(path.stat().st_size for path in folder.iterdir()) for folder in folders)
    assert sizes.fetched == own + whole
    assert sizes.read == sizes.fetched - sizes.mapped


@given(
    st.integers(1, 10**12), st.integers(1, 400), st.integers(0, 10**8), st.integers(1, 10**12), st.integers(1, 64)
)  # fmt: skip
def test_what_is_needed_holds_what_is_there(entries: int, per_entry: int, read: int, wanted: int, replicas: int):
    sizes = Sizes(entries, 1, entries * per_entry, read, entries * per_entry + read)
    scaled = sizes.scaled(wanted)
    of = needs(scaled, replicas)
    assert of.memory_request >= BASE_BYTES + scaled.mapped + 2 * scaled.read
    assert of.memory_limit >= of.memory_request
    assert of.memory_limit <= MOST_MEMORY + (1 << 20)
    assert of.disk > 3 * scaled.fetched
    assert of.servers == scaled.partitions * replicas
    assert scaled.partitions * scaled.mapped >= wanted * per_entry - 1
    if scaled.partitions > 1:  # as few as fit
        fewer = needs(sizes.scaled(wanted, scaled.partitions - 1), replicas)
        assert fewer.memory_limit > MOST_MEMORY - (1 << 20)


def test_a_component_says_it_in_kubernetes_words(built: BuiltDatastore, tmp_path: Path):
    out = tmp_path / "values"
    assert main(["k8s-values", str(built.path), "--replicas", "2", "--cpus", "3", "--out", str(out)]) == 0
    retriever = yaml.safe_load((out / "retriever.yaml").read_text())
    of = needs(Sizes.of(built.manifest), 2)
    assert retriever["spec"]["replicas"] == of.servers == 6
    resources = retriever["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert resources["requests"]["memory"] == f"{of.memory_request >> 20}Mi"
    assert resources["limits"] == {"cpu": "3", "memory": f"{of.memory_limit >> 20}Mi", "ephemeral-storage": "1Gi"}
    budgets = list(yaml.safe_load_all((out / "budgets.yaml").read_text()))
    groups = [budget["spec"]["selector"]["matchExpressions"][0]["values"] for budget in budgets]
    assert groups == [[str(partition + 3 * replica) for replica in range(4)] for partition in range(3)]
    assert {budget["spec"]["minAvailable"] for budget in budgets} == {1}


def test_a_single_replica_may_be_evicted(built: BuiltDatastore, tmp_path: Path):
    assert main(["k8s-values", str(built.path), "--replicas", "1", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "budgets.yaml").exists()
    assert "resources" not in yaml.safe_load((tmp_path / "kustomization.yaml").read_text())


def test_several_numbers_of_entries_make_a_table(built: BuiltDatastore, capsys: pytest.CaptureFixture[str]):
    assert main(["k8s-values", str(built.path), "--entries", "1000,2000000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert {line.count("|") for line in lines} == {9}


@pytest.mark.parametrize(
    "arguments", [["--out", "x", "--entries", "1,2"], ["--replicas", "3", "--most-replicas", "2"]]
)  # fmt: skip
def test_what_contradicts_itself_is_wrong_usage(built: BuiltDatastore, arguments: list[str]):
    assert main(["k8s-values", str(built.path), *arguments]) == 2
