"""vLLM's settings come from the environment and from its configuration, which counts more; nonsense is named."""

from __future__ import annotations

import pytest

from decoder_client.engines.vllm.settings import ProposerSettings
from decoder_client.engines.vllm.versions import TESTED, EngineVersionError, check_version
from decoder_client.errors import SettingError


def test_without_a_word_drafts_come_from_the_text() -> None:
    settings = ProposerSettings.read({}, {})
    assert settings == ProposerSettings()
    assert not settings.asks


def test_the_configuration_counts_more_than_the_environment() -> None:
    environment = {"DRESD_RETRIEVER": "host:1", "DRESD_DEADLINE_MS": "7", "DRESD_ADAPTIVE": "0"}
    settings = ProposerSettings.read(environment, {"dresd": {"deadline_ms": 9.5, "neighbors": 5, "adaptive": True}})
    assert settings == ProposerSettings(retriever="host:1", deadline_ms=9.5, neighbors=5)
    assert settings.asks
    assert settings.retriever_config().deadline_ms == 9.5


def test_a_service_that_is_asked_for_nothing_is_not_asked() -> None:
    assert not ProposerSettings(retriever="host:1", neighbors=0, sparse_neighbors=0).asks


@pytest.mark.parametrize(
    ("environment", "additional", "named"),
    [
        ({"DRESD_DEADLINE_MS": "soon"}, {}, "DRESD_DEADLINE_MS"),
        ({"DRESD_DEADLINE_MS": "0"}, {}, "deadline_ms"),
        ({"DRESD_DEADLINE_MS": "nan"}, {}, "deadline_ms"),
        ({"DRESD_NEIGHBORS": "1.5"}, {}, "DRESD_NEIGHBORS"),
        ({"DRESD_NEIGHBORS": "-1"}, {}, "neighbors"),
        ({"DRESD_ADAPTIVE": "maybe"}, {}, "DRESD_ADAPTIVE"),
        ({"DRESD_METRICS_PORT": "70000"}, {}, "metrics_port"),
        ({"DRESD_RETRIEVER": "nonsense"}, {}, "nonsense"),
        ({}, {"dresd": {"deadlines": 1}}, "dresd.deadlines"),
        ({}, {"dresd": 5}, "additional_config"),
        ({}, {"dresd": {"sparse_neighbors": True}}, "dresd.sparse_neighbors"),
    ],
)
def test_nonsense_is_named(environment: dict[str, str], additional: dict[str, object], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        ProposerSettings.read(environment, additional)


@pytest.mark.parametrize("suffix", ["", "+cpu", "+cu129"])
def test_tested_versions_are_taken(suffix: str) -> None:
    for version in TESTED:
        check_version(version + suffix)


@pytest.mark.parametrize("version", ["0.31.0", "0.32.1", "0.33.0", "1.0.0", "0.32.0rc1"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(EngineVersionError, match=version):
        check_version(version)
