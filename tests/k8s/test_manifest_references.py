"""What one manifest says of another is so: ports, selectors, secrets, keys, volumes, names."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest

from k8s.checks.rendering import K8S, OVERLAYS, Manifest, manifests, pods
from tests.support.manifests import containers, every, matches, names, one

CERTIFICATE_KEYS = {"ca.crt", "tls.crt", "tls.key"}
"""What cert-manager puts into a certificate's Secret."""


@pytest.fixture(scope="module", params=OVERLAYS)
def documents(request: pytest.FixtureRequest) -> list[Manifest]:
    return manifests(request.param)


def secrets(documents: list[Manifest]) -> dict[str, set[str]]:
    """Keys by Secret: of certificates, and of those that the runbook says how to make."""
    found = {
        each["spec"]["secretName"]: CERTIFICATE_KEYS for each in documents if each["kind"] == "Certificate"
    }  # fmt: skip
    runbook = (K8S / "README.md").read_text("utf-8").replace("\\\n", " ")
    for name, keys in re.findall(r"create secret generic (\S+)((?:\s+--from-file=\S+)+)", runbook):
        found[name] = set(re.findall(r"--from-file=([\w.-]+)=", keys))
    return found


def test_selectors_find_pods(documents: list[Manifest]):
    labels = [pod.labels for pod in pods(documents)]
    # Ray's operator labels the pods of its clusters.
    labels += [
        {**each, "ray.io/is-ray-node": "yes"} for each in labels if each.get("app.kubernetes.io/name") == "dresd-build"
    ]
    wanted = [
        each["spec"]["selector"]
        for each in documents
        if each["kind"] in {"Service", "PodDisruptionBudget", "PodMonitor"}
    ]
    wanted += [selector for selector in every(documents, "podSelector") if selector]
    wanted += list(every(documents, "labelSelector"))
    for selector in wanted:
        if "dresd-client" in selector.get("matchLabels", {}):
            continue  # of decoders that others bring
        assert any(matches(selector, each) for each in labels), selector
    for workload in (each for each in documents if each["kind"] in {"StatefulSet", "Deployment"}):
        assert matches(workload["spec"]["selector"], workload["spec"]["template"]["metadata"]["labels"])


def test_decoders_bear_the_label_that_lets_them_in(documents: list[Manifest]):
    decoders = [pod for pod in pods(documents) if pod.labels.get("app.kubernetes.io/name") == "dresd-decoder"]
    policy = one(documents, "NetworkPolicy", "dresd-retriever")
    admitted = [each["podSelector"] for each in policy["spec"]["ingress"][0]["from"]]
    for pod in decoders:
        assert any(matches(selector, pod.labels) for selector in admitted)


def test_ports_that_are_referred_to_exist(documents: list[Manifest]):
    everything = list(pods(documents))
    for service in (each for each in documents if each["kind"] == "Service"):
        for port in service["spec"]["ports"]:
            selected = [pod for pod in everything if matches(service["spec"]["selector"], pod.labels)]
            assert all(port["targetPort"] in port_names(pod.containers) for pod in selected)
    for policy in (each for each in documents if each["kind"] == "NetworkPolicy"):
        selected = [pod for pod in everything if matches(policy["spec"]["podSelector"], pod.labels)]
        for rule in policy["spec"].get("ingress", []):
            named = [port["port"] for port in rule.get("ports", []) if isinstance(port["port"], str)]
            assert all(name in port_names(pod.containers) for pod in selected for name in named)
    for monitor in (each for each in documents if each["kind"] == "ServiceMonitor"):
        services = [
            each for each in documents
            if each["kind"] == "Service" and matches(monitor["spec"]["selector"], each["metadata"].get("labels", {}))
        ]  # fmt: skip
        offered = {port["name"] for service in services for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= offered
    for monitor in (each for each in documents if each["kind"] == "PodMonitor"):
        (pod,) = [each for each in everything if matches(monitor["spec"]["selector"], each.labels)]
        assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= port_names(pod.containers)
    for container in containers(documents):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            for kind, what in container.spec.get(probe, {}).items():
                if kind in {"grpc", "httpGet"}:
                    assert what["port"] in port_names([container.spec]) | port_numbers([container.spec])


def port_names(specs: list[Manifest]) -> set[str]:
    return {port["name"] for spec in specs for port in spec.get("ports", [])}


def port_numbers(specs: list[Manifest]) -> set[int]:
    return {port["containerPort"] for spec in specs for port in spec.get("ports", [])}


def test_volumes_secrets_and_claims_exist(documents: list[Manifest]):
    known, claims, maps = secrets(documents), names(documents, "PersistentVolumeClaim"), names(documents, "ConfigMap")
    for pod in pods(documents):
        volumes = {volume["name"] for volume in pod.spec.get("volumes", [])}
        volumes |= {claim["metadata"]["name"] for claim in pod.owner["spec"].get("volumeClaimTemplates", [])}
        mounted = {mount["name"] for spec in pod.containers for mount in spec.get("volumeMounts", [])}
        assert mounted == volumes, pod.name
        for volume in pod.spec.get("volumes", []):
            if "secret" in volume:
                keys = {item["key"] for item in volume["secret"].get("items", [])}
                assert keys <= known[volume["secret"]["secretName"]]
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims


def test_files_that_are_named_are_mounted(documents: list[Manifest]):
    known = secrets(documents)
    for container in containers(documents):
        volumes = {volume["name"]: volume for volume in container.pod.spec.get("volumes", [])}
        mounts = {mount["mountPath"]: mount for mount in container.spec.get("volumeMounts", [])}
        for name, value in container.environment().items():
            if not value.startswith("/"):
                continue
            path = PurePosixPath(value)
            (mount, *_) = [mounts[str(parent)] for parent in (path, *path.parents) if str(parent) in mounts] or [None]
            assert mount is not None, (container.name, name, value)
            secret = volumes.get(mount["name"], {}).get("secret")
            if secret is not None:
                kept = {item["path"] for item in secret["items"]} if "items" in secret else known[secret["secretName"]]
                assert path.name in kept, (container.name, name)


def test_names_that_are_referred_to_exist(documents: list[Manifest]):
    assert set(every(documents, "serviceAccountName")) <= names(documents, "ServiceAccount")
    assert set(every(documents, "priorityClassName")) <= names(documents, "PriorityClass")
    for workload in (each for each in documents if each["kind"] == "StatefulSet"):
        assert one(documents, "Service", workload["spec"]["serviceName"])["spec"]["clusterIP"] == "None"
    for scaled in (each for each in documents if each["kind"] == "ScaledObject"):
        target = scaled["spec"]["scaleTargetRef"]
        assert target["name"] in names(documents, target["kind"])
    for issuer in every(documents, "issuerRef"):
        assert issuer["name"] in names(documents, issuer["kind"])
    for issuer in (each for each in documents if each["kind"] == "Issuer"):
        if "ca" in issuer["spec"]:
            assert issuer["spec"]["ca"]["secretName"] in secrets(documents)
    namespaced = [each for each in documents if each["kind"] not in {"Namespace", "PriorityClass"}]
    assert {each["metadata"].get("namespace") for each in namespaced} == names(documents, "Namespace")


def test_a_build_on_ray_is_called_like_its_job(documents: list[Manifest]):
    for container in containers(documents):
        if container.pod.owner["kind"] == "RayJob" and "BUILD_NAME" in container.environment():
            assert container.environment()["BUILD_NAME"] == container.pod.owner["metadata"]["name"]


def test_addresses_are_those_of_services(documents: list[Manifest]):
    services = {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "Service"}
    text = " ".join([*map(str, every(documents, "args")), *map(str, every(documents, "data"))])
    found = re.findall(r"dns:///([\w.-]+):(\d+)", text)
    assert found
    for host, port in found:
        assert services[host]["clusterIP"] == "None"  # an address for each pod, or there is but one to find
        assert int(port) in {each["port"] for each in services[host]["ports"]}


def test_certificates_bear_the_names_that_callers_expect(documents: list[Manifest]):
    certificates = [
        each["spec"]["dnsNames"] for each in documents if each["kind"] == "Certificate" and "dnsNames" in each["spec"]
    ]
    expected = {container.environment().get("DRESD_RETRIEVER_SERVER_NAME") for container in containers(documents)} - {
        None
    }
    assert bool(expected) == bool(certificates)
    for certificate in certificates:
        assert expected <= set(certificate)
        assert names(documents, "Service") - {"dresd-decoder"} <= set(certificate)
