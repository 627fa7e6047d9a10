"""What a server has learned: searched as exactly as what is on disk, kept whatever happens, bounded."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from retriever_service.datastore import Datastore, EntryBatch, split_entries
from retriever_service.learning import Answer, LearnedStore, LearningError, LearningLimits
from tests.support.datastore import build_datastore, random_entries
from tests.support.learning import random_answer
from tests.support.serving import PATIENCE_S

DIMS, VOCAB, DEEP, LEFT = 8, 50, 6, 5


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return build_datastore(tmp_path_factory.mktemp("base") / "store", num_partitions=3)


@pytest.fixture
def learned(base, tmp_path):
    store = LearnedStore(tmp_path / "learned", base.open(), LearningLimits())
    yield store
    store.close()


def learn(store: LearnedStore, *answers: Answer) -> int:
    return store.append(answers).result(PATIENCE_S)


def everything(base, answers) -> EntryBatch:
    return EntryBatch.concatenate([base.entries, *(answer.entries(DEEP, LEFT) for answer in answers)])


def check_searches(store: Datastore, entries: EntryBatch) -> None:
    """Dense and sparse neighbours are the best of all entries."""
    random = np.random.default_rng(5)
    rows = random.integers(len(entries), size=40)
    keys, tokens = entries.keys[rows], entries.next_tokens[rows]
    found = store.search(keys, tokens, neighbors=20)
    for query in range(len(rows)):
        group = entries.keys[entries.next_tokens == tokens[query]] @ keys[query]
        expected = np.sort(group)[::-1][:20]
        assert found.counts[query] == len(expected)
        assert found.similarities[query, : len(expected)] == pytest.approx(expected, abs=1e-3)
        stored = store.entries(found.ids[query, : len(expected)])
        assert (stored.next_tokens == tokens[query]).all()
    batch = store.draft(
        keys, tokens, neighbors=5, max_nodes=8, left_contexts=entries.left_contexts[rows], sparse_neighbors=3
    )
    lengths = np.count_nonzero(entries.left_contexts[rows] >= 0, axis=1)
    assert batch.longest_matches.tolist() == lengths.tolist()


def test_what_is_learned_is_searched_with_the_rest_once_it_is_acknowledged(base, learned):
    answers = [random_answer(seed, tokens=5 + seed % 20) for seed in range(60)]
    for number, answer in enumerate(answers):
        assert learn(learned, answer) == len(answer.positions)
        if number in (0, 1, 7, 59):
            check_searches(learned.base, everything(base, answers[: number + 1]))


def test_tokens_that_the_datastore_has_no_entries_of_are_learned_too(tmp_path):
    entries = random_entries(30, vocab_size=VOCAB)
    entries = entries.select(entries.next_tokens < 3)
    built = build_datastore(tmp_path / "store", entries, num_partitions=2)
    store = LearnedStore(tmp_path / "learned", built.open(), LearningLimits())
    answers = [random_answer(seed) for seed in range(20)]
    learn(store, *answers)
    check_searches(store.base, everything(built, answers))
    store.close()


def test_an_answer_that_is_sent_again_is_learned_once(base, learned):
    answer = random_answer(1)
    assert learn(learned, answer, answer) == len(answer.positions)
    assert learn(learned, answer) == 0
    assert (learned.appended, learned.known) == (len(answer.positions), 2)
    check_searches(learned.base, everything(base, [answer]))


@pytest.mark.parametrize("max_entries", [100_000, 300])
def test_a_store_opened_again_has_what_it_had(base, tmp_path, max_entries):
    limits = LearningLimits(max_entries=max_entries)
    store = LearnedStore(tmp_path / "learned", base.open(), limits)
    answers = [random_answer(seed) for seed in range(30)]
    for answer in answers:
        learn(store, answer)
    entries = store.num_entries
    store.close()
    again = LearnedStore(tmp_path / "learned", base.open(), limits)
    assert (again.recovered.answers, again.recovered.entries) == (30, entries)
    assert learn(again, answers[3]) == 0
    check_searches(again.base, everything(base, answers))
    again.close()


def test_the_oldest_go_when_there_are_too_many(base, tmp_path):
    store = LearnedStore(tmp_path / "learned", base.open(), LearningLimits(max_entries=200))
    answers = [random_answer(seed, tokens=12) for seed in range(100)]  # of 9 entries each
    for answer in answers:
        learn(store, answer)
        assert store.num_entries <= 200 + 200 // 8 + 9
    kept = store.num_entries // 9
    check_searches(store.base, everything(base, answers[-kept:]))
    assert kept > 150 // 9
    assert len(list((tmp_path / "learned").glob("*.log"))) <= 10
    store.close()


def test_servers_of_parts_share_an_answer_out(base, tmp_path):
    answers = [random_answer(seed, tokens=40) for seed in range(10)]
    stores = [LearnedStore(tmp_path / str(part), base.open(partitions=[part]), LearningLimits()) for part in range(3)]
    for store in stores:
        learn(store, *answers)
    assert sum(store.num_entries for store in stores) == 10 * 37
    for part, store in enumerate(stores):
        for token in np.flatnonzero(store.base.entries_by_token()).tolist():
            assert part in store.base.routing.partitions_of(token)
        store.close()


def test_another_build_with_the_same_reducer_is_learned_for_from_then_on(base, learned, tmp_path):
    answers = [random_answer(seed) for seed in range(20)]
    learn(learned, *answers[:10])
    other = build_datastore(tmp_path / "other", random_entries(seed=3), num_partitions=2)
    old, new = learned.base, other.open()
    learned.rebase(new)
    learn(learned, *answers[10:])
    assert learned.base is new
    check_searches(new, everything(other, answers))
    check_searches(old, everything(base, answers[:10]))


@pytest.mark.usefixtures("learned")
def test_a_folder_is_one_servers(base, tmp_path):
    with pytest.raises(LearningError, match="another server's"):
        LearnedStore(tmp_path / "learned", base.open(), LearningLimits())


@pytest.mark.parametrize("where", ["store", "store/learned", "link/learned"])
def test_nothing_is_learned_into_a_datastore(base, tmp_path, where):
    shutil.copytree(base.path, tmp_path / "store")
    (tmp_path / "link").symlink_to(tmp_path / "store")
    before = sorted((tmp_path / "store").rglob("*"))
    # As a server names it: by collection and reducer.
    with pytest.raises(LearningError, match="lies in the datastore"):
        LearnedStore(tmp_path / where / "default" / "0123", base.open(), LearningLimits())
    assert sorted((tmp_path / "store").rglob("*")) == before


def _with(answer: Answer, **changes: object) -> Answer:
    fields = {name: getattr(answer, name) for name in ("id", "created_us", "tokens", "positions", "keys")}
    return Answer(**{**fields, **changes})


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda keys: keys * np.float16(2.0), "keys"),
        (lambda keys: keys * np.float16(0.0), "keys"),
        (lambda keys: np.where(np.arange(keys.shape[1]) == 1, np.float16(np.nan), keys), "keys"),
        (lambda keys: np.where(np.arange(keys.shape[1]) == 1, np.float16(np.inf), keys), "keys"),
        (lambda keys: keys[:, :4], "keys"),
    ],
)
def test_keys_that_no_model_makes_are_refused_whole(learned, spoil, named):
    good, other = random_answer(1), random_answer(2)
    with pytest.raises(ValueError, match=named):
        learned.append([good, _with(other, keys=spoil(other.keys))])
    assert learned.num_entries == 0
    assert learn(learned, good) == len(good.positions)


def test_tokens_beyond_the_vocabulary_are_refused(learned):
    answer = random_answer(1)
    with pytest.raises(ValueError, match="vocabulary"):
        learned.append([_with(answer, tokens=np.where(answer.tokens == answer.tokens[4], VOCAB, answer.tokens))])


def test_a_torn_and_damaged_log_is_opened_with_what_is_whole(base, tmp_path):
    store = LearnedStore(tmp_path / "learned", base.open(), LearningLimits())
    answers = [random_answer(seed) for seed in range(4)]
    for answer in answers:
        learn(store, answer)
    store.close()
    (log,) = (tmp_path / "learned").glob("*.log")
    content = bytearray(log.read_bytes())
    content[16 + 8 + 100] ^= 1  # in the first record
    log.write_bytes(bytes(content[:-3]))
    again = LearnedStore(tmp_path / "learned", base.open(), LearningLimits())
    assert again.recovered.answers == 2
    assert again.recovered.torn > 0
    assert again.recovered.damaged > 0
    learn(again, answers[0], answers[3])
    check_searches(again.base, everything(base, answers))
    again.close()
    third = LearnedStore(tmp_path / "learned", base.open(), LearningLimits())
    assert (third.recovered.answers, third.recovered.torn) == (4, 0)
    third.close()


def test_splitting_is_the_same_whatever_partitions_a_server_has(base):
    routing = base.open().routing
    tokens = np.zeros(100, np.int64)
    assert len(np.unique(split_entries(routing, tokens, np.arange(100)))) == len(routing.partitions_of(0))
