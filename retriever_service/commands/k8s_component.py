"""The files of a kustomize component that fits `k8s/base` to a datastore: sizes, numbers, and who may be evicted.

Knows the names that `k8s/base` gives its parts; a test renders both together.
"""

from __future__ import annotations

from retriever_service.datastore.sizing import GIB, MIB, Sizes, needs

_HEAD = (
    "# Written by `dresd-retriever k8s-values`: {entries:,} entries, {partitions} partitions, {replicas} replicas.\n"
)
_KUSTOMIZATION = """---
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
{resources}patches:
  - path: retriever.yaml
  # Where the overlay scales the service, between these numbers.
  - target:
      kind: ScaledObject
      name: dresd-retriever
    patch: |-
      - op: replace
        path: /spec/minReplicaCount
        value: {servers}
      - op: replace
        path: /spec/maxReplicaCount
        value: {most}
"""
_RETRIEVER = """---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: dresd-retriever
spec:
  replicas: {servers}
  template:
    spec:
      containers:
        - name: retriever
          resources:
            requests:
              cpu: "{cpus}"
              memory: {request}Mi
              ephemeral-storage: 256Mi
            limits:
              cpu: "{cpus}"
              memory: {limit}Mi
              ephemeral-storage: 1Gi
  volumeClaimTemplates:
    - apiVersion: v1
      kind: PersistentVolumeClaim
      metadata:
        name: data
      spec:
        accessModes: [ReadWriteOnce]
        resources:
          requests:
            storage: {disk}Gi
"""
_BUDGET = """---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: dresd-retriever-partition-{partition}
spec:
  # A number, and of pods that stay: of a part of a StatefulSet's pods no other kind of budget is counted right.
  minAvailable: {stay}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      app.kubernetes.io/name: dresd-retriever
    matchExpressions:
      - key: apps.kubernetes.io/pod-index
        operator: In
        values: [{ordinals}]
"""


def component(sizes: Sizes, *, replicas: int, most_replicas: int, cpus: int) -> dict[str, str]:
    """Texts by file name.

    Args:
        sizes: of the datastore.
        replicas: servers for each partition; with a single one no budget is made, since it would forbid every drain.
        most_replicas: those that a budget knows, and autoscaling starts.
        cpus: cores of a server.
    """
    of = needs(sizes, replicas)
    partitions, most = sizes.partitions, sizes.partitions * most_replicas
    head = _HEAD.format(entries=sizes.entries, partitions=partitions, replicas=replicas)
    retriever = _RETRIEVER.format(
        servers=of.servers, cpus=cpus, request=of.memory_request // MIB, limit=of.memory_limit // MIB,
        disk=of.disk // GIB,
    )  # fmt: skip
    budgets = [
        _BUDGET.format(
            partition=partition,
            stay=replicas - 1,
            ordinals=", ".join(f'"{ordinal}"' for ordinal in range(partition, most, partitions)),
        )
        for partition in range(partitions if replicas > 1 else 0)
    ]
    files = {
        "kustomization.yaml": _KUSTOMIZATION.format(
            resources="resources:\n  - budgets.yaml\n" if budgets else "", servers=of.servers, most=most
        ),
        "retriever.yaml": retriever,
    }
    if budgets:
        files["budgets.yaml"] = "".join(budgets)
    return {name: head + text for name, text in files.items()}
