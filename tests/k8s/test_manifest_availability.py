"""However pods go, one at a time as a rollout takes them or as budgets let them be evicted, each partition is there."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s.checks.rendering import Manifest, manifests
from tests.support.manifests import containers, one

REPLICATED = ("production", "gpu")


def partitions_of(documents: list[Manifest]) -> int:
    (number,) = {
        int(environment["PARTITIONS"])
        for environment in (container.environment() for container in containers(documents))
        if "PARTITIONS" in environment
    }
    return number


@pytest.mark.parametrize("overlay", REPLICATED)
def test_a_rollout_leaves_each_partition_a_replica(overlay: str):
    documents = manifests(overlay)
    spec = one(documents, "StatefulSet", "dresd-retriever")["spec"]
    partitions, replicas = partitions_of(documents), spec["replicas"]
    rolling = spec["updateStrategy"].get("rollingUpdate", {})
    at_once = rolling.get("maxUnavailable", 1)
    at_once = math.ceil(replicas * int(at_once[:-1]) / 100) if isinstance(at_once, str) else at_once
    assert rolling.get("partition", 0) == 0
    assert replicas % partitions == 0
    assert replicas >= 2 * partitions
    order = list(reversed(range(replicas)))
    for first in range(0, replicas, at_once):
        down = set(order[first : first + at_once])
        ready = {ordinal % partitions for ordinal in range(replicas) if ordinal not in down}
        assert ready == set(range(partitions)), f"without {down}"


@pytest.mark.parametrize("overlay", REPLICATED)
@given(data=st.data())
def test_evictions_that_budgets_allow_leave_each_partition_a_replica(overlay: str, data: st.DataObject):
    documents = manifests(overlay)
    spec = one(documents, "StatefulSet", "dresd-retriever")["spec"]
    scaling = one(documents, "ScaledObject", "dresd-retriever")["spec"]
    assert scaling["minReplicaCount"] == spec["replicas"]
    replicas = data.draw(st.integers(scaling["minReplicaCount"], scaling["maxReplicaCount"]))
    partitions = partitions_of(documents)
    budgets = [each["spec"] for each in documents if each["kind"] == "PodDisruptionBudget"]
    there = set(range(replicas))
    for ordinal in data.draw(st.permutations(range(replicas))):
        covering = [each for each in budgets if str(ordinal) in each["selector"]["matchExpressions"][0]["values"]]
        assert len(covering) == 1, "a pod with two budgets can never be evicted; one with none always"
        group = {int(value) for value in covering[0]["selector"]["matchExpressions"][0]["values"]} & there
        if len(group) - 1 >= covering[0]["minAvailable"]:
            there.remove(ordinal)
    assert {ordinal % partitions for ordinal in there} == set(range(partitions))
