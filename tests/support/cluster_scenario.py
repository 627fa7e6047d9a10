"""What happens to a cluster in miniature while a decoder decodes: rolled, killed, published to, rolled back.

Runs as a process with namespaces of its own and ends with exit code 0 if all was as the runbook says. Its arguments are
an overlay and a folder to work in.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from decoder_client.generation import SpeculativeDecoder
from k8s.checks.rendering import K8S, Manifest, documents_of, manifests, render
from retriever_service.cli import main as retriever
from retriever_service.datastore import ROUTING_FILE
from retriever_service.datastore.routing import load_routing
from tests.support.certificates import authority, issued_by
from tests.support.decoding_pod import NEW_TOKENS, PROMPT, small_target
from tests.support.manifests import one
from tests.support.miniature import RETRIEVER, DecoderPod, Miniature, RetrieverPod, empty_hosts, run_in_job
from tests.support.pods import copy_of_project, prepare_node
from tests.support.serving import servable_datastore

PARTITIONS, REPLICAS = 2, 2
USER = 10001


def run(*arguments: str) -> None:
    """A command that the runbook tells people to give."""
    assert retriever(arguments) == 0, arguments


class Overlay:
    """A copy of k8s/ whose production overlay was made one's own, as the runbook says."""

    def __init__(self, folder: Path, datastore: Path) -> None:
        shutil.copytree(K8S, folder)
        self._overlay = folder / "overlays" / "production"
        run(
            "k8s-values", str(datastore), "--replicas", str(REPLICAS), "--cpus", "1",
            "--out", str(self._overlay / "values"),
        )  # fmt: skip
        self._literals = {"DATASTORE_URL": "file:///bucket/drafts", "LOOK_EVERY_S": "0.2"}
        self._file = self._overlay / "kustomization.yaml"
        self._original = self._file.read_text()

    def documents(self, **changes: str) -> list[Manifest]:
        """What it renders to, with entries of the ConfigMap changed."""
        self._literals |= changes
        marked = "      - DATASTORE_URL=s3://your-bucket/drafts\n"
        assert marked in self._original
        lines = "".join(f"      - {name}={value}\n" for name, value in self._literals.items())
        self._file.write_text(self._original.replace(marked, lines))
        return documents_of(render(self._overlay))


def secrets(folder: Path, documents: list[Manifest]) -> dict[str, Path]:
    """What cert-manager and the runbook's `kubectl create secret` make, as the kubelet mounts it, by volume."""
    names: Sequence[str] = one(documents, "Certificate", RETRIEVER)["spec"]["dnsNames"]
    root = authority()
    certificate = issued_by(root, names[0], dns_names=names)
    contents = {
        "tls": {"tls.crt": certificate.pem, "tls.key": certificate.key_pem, "ca.crt": root.pem},
        "tokens": {"tokens": b"r" * 64 + b"\n" + b"d" * 64 + b"\n"},
        "authority": {"ca.crt": root.pem},
        "token": {"token": b"d" * 64 + b"\n"},
    }
    for volume, files in contents.items():
        (folder / volume).mkdir(parents=True)
        for name, content in files.items():
            path = folder / volume / name
            path.write_bytes(content)
            shutil.chown(path, 0, USER)
            path.chmod(0o440)
    return {volume: folder / volume for volume in contents}


def local(folder: Path) -> None:
    """The overlay for one node: a retriever waits for a datastore, which is copied to a claim and pushed there."""
    documents = manifests("local")
    datastores = folder / "datastores"
    outside = {"datastores": datastores, "project": copy_of_project(folder / "project", USER)}
    servable_datastore(datastores / "my-datastore", build_id="mine")
    for path in (datastores, *datastores.rglob("*")):
        os.chown(path, USER, USER)
    pod = RetrieverPod(0, folder / "pod", empty_hosts(folder), outside)
    assert not pod.start(documents), "there is nothing to serve yet"
    command = [sys.executable, "-m", "retriever_service.cli", "push", "/datastores/my-datastore", "/datastores/drafts"]
    run_in_job(documents, "dresd-fill", command, folder / "fill", outside)
    assert pod.start(documents), pod.log("fetch")
    pod.wait_until_ready()
    assert pod.build() == "mine"
    pod.stop()


def production(folder: Path) -> None:
    """The overlay for three zones, with two partitions, under a decoder's eyes."""
    target = small_target()
    plain = list(SpeculativeDecoder(target).generate(PROMPT, max_new_tokens=NEW_TOKENS).tokens)
    stores = {
        name: servable_datastore(
            folder / "builds" / name, build_id=name, seed=seed, model=target.identity(), num_partitions=PARTITIONS
        ).path
        for seed, name in enumerate(("first", "second"))
    }
    overlay = Overlay(folder / "k8s", stores["first"])
    documents = overlay.documents()
    outside = secrets(folder / "secrets", documents)
    for name in ("bucket", "scratch-of-decoder"):
        (folder / name).mkdir()
        (folder / name).chmod(0o777)
    bucket = str(folder / "bucket" / "drafts")
    run("push", str(stores["first"]), bucket)
    outside |= {"bucket": folder / "bucket", "project": copy_of_project(folder / "project", USER)}
    cluster = Miniature(folder / "pods", outside)
    cluster.apply(documents)
    assert len(cluster.pods) == PARTITIONS * REPLICAS
    decoder = DecoderPod(
        documents, folder / "decoder", cluster.hosts, {**outside, "scratch": folder / "scratch-of-decoder"}
    )

    def decodes(*, fully: bool = True) -> None:
        """An answer begun from now on is the target's own, and every partition answers, or not."""
        said = decoder.fresh()
        assert said["tokens"] == plain, said
        assert (said["answered"] == said["asked"]) == fully, said
        assert said["retrievals_answered"] == said["retrievals"] > 0, said

    assert decoder.heard()["tokens"] == plain
    decodes()
    assert decoder.fresh()["drafted"] > 0
    assert "first" in cluster.pods[0].execute("status", "127.0.0.1:50052")
    print("applied", flush=True)

    changed = overlay.documents(QUEUE_SIZE="128")
    assert names_of_maps(changed) != names_of_maps(documents), "a change of configuration rolls the pods"
    cluster.roll(changed, decodes)
    decodes()
    print("rolled", flush=True)

    # Both replicas of the partition that most of the answer's tokens are in.
    routing = load_routing(stores["first"] / ROUTING_FILE)
    (partition, _), *_ = Counter(
        one_of for token in plain for one_of in routing.partitions_of(token).tolist()
    ).most_common()
    victims = range(partition, PARTITIONS * REPLICAS, PARTITIONS)
    cluster.pods[victims[0]].kill()
    decodes()
    cluster.pods[victims[1]].kill()
    cluster.publish_addresses()
    decodes(fully=False)
    for ordinal in victims:
        cluster.pods[ordinal].run("retriever")
        cluster.pods[ordinal].wait_until_ready()
    cluster.publish_addresses()
    eventually_whole(decoder, plain)
    print("killed", flush=True)

    for name in ("second", "first"):
        run("push", str(stores[name]), bucket)
        while cluster.builds() != {name}:
            decodes()
        decodes()
        print(f"published {name}", flush=True)
    for pod in cluster.pods.values():
        pod.stop()


def main() -> None:
    scenario, folder = sys.argv[1:]
    prepare_node()
    {"local": local, "production": production}[scenario](Path(folder))


def names_of_maps(documents: list[Manifest]) -> set[str]:
    return {each["metadata"]["name"] for each in documents if each["kind"] == "ConfigMap"}


def eventually_whole(decoder: DecoderPod, plain: list[int]) -> None:
    """Servers that had gone are asked again after a pause of the decoder's."""
    while True:
        said = decoder.fresh()
        assert said["tokens"] == plain, said
        if said["answered"] == said["asked"] > 0:
            return


if __name__ == "__main__":
    main()
