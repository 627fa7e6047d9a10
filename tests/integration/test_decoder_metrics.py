"""A decoder's numbers in a registry, compared with what it did."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from decoder_client import metrics
from decoder_client.engines.transformers_generate import dresd_generate
from decoder_client.generation import SpeculativeDecoder
from decoder_client.target_model import TargetModel
from tests.support.retriever import client_of
from tests.support.serving import ServerThread, local_config, servable_datastore, serving

PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def server(target: TargetModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    built = servable_datastore(tmp_path_factory.mktemp("metrics") / "store", model=target.identity())
    with serving(local_config(built.path)) as running:
        yield running


def values_in(registry: CollectorRegistry) -> dict[str, float]:
    """What a scrape would read, by name with labels."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        sample.name + "".join(f"[{label}]" for label in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_the_numbers_are_those_of_all_answers(target: TargetModel, server: ServerThread):
    registry = CollectorRegistry()
    with client_of(server.address) as client:
        decoders = [
            SpeculativeDecoder.from_pretrained(target, client, nodes=16, context=False),
            SpeculativeDecoder.from_pretrained(target, client, nodes=16, context=False),
        ]
        metrics.register(registry, *decoders)
        assert values_in(registry)["dresd_decoder_tokens_total"] == 0.0
        first, second = (decoder.generate(PROMPT, max_new_tokens=20).stats for decoder in decoders)
        batch = decoders[0].generate_batch([PROMPT, PROMPT[:2]], max_new_tokens=10)
        total = first + second + batch[0].stats + batch[1].stats
        values, stats = values_in(registry), client.stats
    assert values["dresd_decoder_tokens_total"] == total.tokens
    assert values["dresd_decoder_steps_total"] == total.steps
    assert values["dresd_decoder_drafts_total"] == total.steps_with_draft > 0
    assert values["dresd_decoder_draft_tokens_total"] == total.drafted > 0
    assert values["dresd_decoder_accepted_tokens_total"] == total.accepted
    assert values["dresd_decoder_forward_seconds_total"] == pytest.approx(total.forward_s)
    assert values["dresd_decoder_retrievals_total[answered]"] == stats.answered > 0, "a client of two counts once"
    assert values[f"dresd_decoder_replica_state[{server.address}]"] == 1.0
    assert values["dresd_decoder_retrievals_total[late]"] == stats.late == 0
    assert values["dresd_decoder_retrieval_duration_seconds_count"] == stats.answered
    assert values["dresd_decoder_retrieval_duration_seconds_bucket[+Inf]"] == stats.answered
    assert values["dresd_decoder_retrieval_duration_seconds_sum"] == pytest.approx(stats.total_ms / 1e3)


def test_decoding_inside_generate_counts_too(target: TargetModel, server: ServerThread):
    registry = CollectorRegistry()
    with client_of(server.address) as client:
        drafted = dresd_generate(client, nodes=8, context=False)
        metrics.register(registry, drafted)
        options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
        for _ in range(2):
            target.model.generate(torch.tensor([PROMPT]), custom_generate=drafted, **options)
        values = values_in(registry)
    assert values["dresd_decoder_tokens_total"] == drafted.totals.tokens == 2 * drafted.stats[0].tokens
    assert values["dresd_decoder_retrievals_total[answered]"] == client.stats.answered > 0


def test_a_registry_shows_decoders_once_and_keeps_none(target: TargetModel):
    registry = CollectorRegistry()
    decoder = SpeculativeDecoder(target)
    decoder.generate(PROMPT, max_new_tokens=3)
    metrics.register(registry, decoder)
    assert values_in(registry)["dresd_decoder_tokens_total"] == 3
    with pytest.raises(ValueError, match="dresd_decoder"):
        metrics.register(registry, decoder)
    del decoder
    gc.collect()
    assert values_in(registry)["dresd_decoder_tokens_total"] == 0
