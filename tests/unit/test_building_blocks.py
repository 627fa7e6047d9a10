"""Committed blocks: whole or found out, whichever byte differs, and never of two writers at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever_service.building import blocks
from retriever_service.building.blocks import DamagedBlockError

SECTIONS = (b"first", b"", b"the third" * 20)


@pytest.mark.parametrize("sections", [(), (b"",), (b"one",), SECTIONS])
def test_every_section_comes_back(sections: tuple[bytes, ...], tmp_path: Path) -> None:
    path = tmp_path / "a.block"
    blocks.commit(path, *sections)
    assert blocks.is_whole(path)
    assert tuple(blocks.load(path, number) for number in range(len(sections))) == sections
    assert [each.name for each in tmp_path.iterdir()] == ["a.block"]


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.block"
    blocks.commit(path, *SECTIONS)
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert not blocks.is_whole(path), at


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_reader_of_a_damaged_section_is_told(part: int, tmp_path: Path) -> None:
    path = tmp_path / "a.block"
    blocks.commit(path, b"one", b"two", b"three")
    content = path.read_bytes()
    at = content.index((b"one", b"two", b"three")[part])
    path.write_bytes(content[:at] + b"X" + content[at + 1 :])
    for section in range(3):
        if section == part:
            with pytest.raises(DamagedBlockError, match="run the same command again"):
                blocks.load(path, section)
        else:
            blocks.load(path, section)


@given(kept=st.integers(0, 400), more=st.binary(max_size=9))
def test_what_is_cut_off_or_longer_is_found(kept: int, more: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("blocks") / "a.block"
    blocks.commit(path, *SECTIONS)
    content = path.read_bytes()
    changed = content[:kept] + more
    path.write_bytes(changed)
    assert blocks.is_whole(path) == (changed == content)


def test_damaged_blocks_and_left_overs_are_removed(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.block" for number in range(4)]
    for path in paths[:3]:
        blocks.commit(path, b"content")
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    (tmp_path / ".0.block.abc.partial").write_bytes(b"con")
    assert blocks.drop_damaged(paths) == 1
    blocks.remove_partial(tmp_path)
    assert sorted(tmp_path.iterdir()) == [paths[0], paths[2]]


def test_a_write_that_fails_leaves_the_block_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.block"
    blocks.commit(path, b"old")
    with pytest.raises(TypeError):
        blocks.commit(path, b"new", None)  # type: ignore[arg-type]
    assert blocks.load(path) == b"old"
    assert list(tmp_path.iterdir()) == [path]
