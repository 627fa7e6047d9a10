"""Logs of answers: what was acknowledged comes back as it was, whatever a crash or a disk does to the file."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dresd.draft_tree import PAD
from retriever_service.learning import Answer, LearningError
from retriever_service.learning.answers import MAGIC
from retriever_service.learning.crc32c import crc32c
from retriever_service.learning.log import HEAD, LogWriter, create_log, read_log
from tests.support.learning import no_file_grows_beyond, random_answer


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    create_log(path)
    return path


def records(number: int) -> list[bytes]:
    return [random_answer(seed, tokens=3 + seed % 5, dims=4).encoded() for seed in range(number)]


def write(path, *groups: list[bytes]) -> None:
    writer = LogWriter(path, read_log(path, MAGIC).end)
    for group in groups:
        writer.append(group)
    writer.close()


@pytest.mark.parametrize(
    ("content", "checksum"), [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)]
)
def test_the_checksum_is_that_of_the_published_examples(content, checksum):
    assert crc32c(content) == checksum


@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.integers(0, 30), st.integers(1, 5))
def test_an_answer_comes_back_as_it_was(seed, tokens, first, dims):
    answer = random_answer(seed, tokens=tokens, first=min(first, tokens - 1), dims=dims)
    back = Answer.decoded(answer.encoded())
    assert back.id == answer.id
    assert back.created_us == answer.created_us
    for name in ("tokens", "positions", "keys"):
        assert np.array_equal(getattr(back, name), getattr(answer, name))


@pytest.mark.parametrize(("continuation", "left"), [(1, 1), (4, 2), (3, 16), (40, 5)])
def test_entries_of_an_answer_are_its_text_around_each_position(continuation, left):
    answer = random_answer(1, tokens=20, first=3)
    text = answer.tokens.tolist()
    entries = answer.entries(continuation, left)
    for row, at in enumerate(answer.positions.tolist()):
        behind = text[at + 2 : at + 2 + continuation]
        before = text[max(0, at - left + 1) : at + 1][::-1]
        assert entries.next_tokens[row] == text[at + 1]
        assert entries.continuations[row].tolist() == behind + [PAD] * (continuation - len(behind))
        assert entries.left_contexts[row].tolist() == before + [PAD] * (left - len(before))


def test_a_log_cut_anywhere_holds_the_records_before_the_cut_and_can_be_written_on(log):
    written = records(4)
    write(log, written[:2], written[2:])
    content = log.read_bytes()
    ends = [len(HEAD)]
    for record in written:
        ends.append(ends[-1] + 8 + len(record))
    for cut in range(len(HEAD), len(content) + 1):
        log.write_bytes(content[:cut])
        whole = sum(end <= cut for end in ends) - 1
        found = read_log(log, MAGIC)
        assert found.records == written[:whole]
        assert (found.end, found.torn, found.damaged) == (ends[whole], cut - ends[whole], 0)
        if cut % 7 == 0:
            write(log, [written[0]])
            assert read_log(log, MAGIC).records == [*written[:whole], written[0]]


def test_any_flipped_byte_costs_its_own_record_only(log):
    written = records(4)
    write(log, written)
    content = log.read_bytes()
    for at in range(len(HEAD), len(content)):
        log.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        found = read_log(log, MAGIC)
        missing = [record for record in written if record not in found.records]
        assert len(missing) == 1
        assert found.records == [record for record in written if record != missing[0]]
        assert found.torn + found.damaged == 8 + len(missing[0])


@settings(max_examples=50)
@given(st.binary(max_size=80))
def test_garbage_behind_the_records_is_never_a_record(tmp_path_factory, garbage):
    log = tmp_path_factory.mktemp("log") / "log"
    create_log(log)
    written = records(2)
    write(log, written)
    with log.open("ab") as file:
        file.write(garbage)
    assert read_log(log, MAGIC).records == written


@pytest.mark.parametrize("content", [b"", b"DRESD", b"something else entirely", b"DRESDLOG\x02" + bytes(7)])
def test_what_is_no_log_is_refused_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(LearningError, match="no log of this version"):
        read_log(path, MAGIC)
    assert path.read_bytes() == content


def test_what_a_full_disk_refused_is_not_there_and_the_rest_is(log):
    before, refused, after = records(3)
    write(log, [before])
    writer = LogWriter(log, read_log(log, MAGIC).end)
    with no_file_grows_beyond(log.stat().st_size + 20):
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            writer.append([refused])
        assert read_log(log, MAGIC).torn == 0
    writer.append([after])
    writer.close()
    assert read_log(log, MAGIC).records == [before, after]
