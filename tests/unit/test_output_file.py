"""What a user names for results is replaced as a whole where it is a file, and only written to where it is none."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from dresd.output_file import write_output
from retriever_service.cli import main
from tests.support.serving import servable_datastore


def read_in_thread(pipe: Path) -> tuple[threading.Thread, list[str]]:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(pipe.read_text("utf-8")), daemon=True)
    thread.start()
    return thread, found


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_written_to_and_stays_one(linked: bool, tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    thread, found = read_in_thread(pipe)
    write_output(link if linked else pipe, "größe")
    thread.join(60)
    assert found == ["größe"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()


def test_a_link_stays_one_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    file, link = tmp_path / "folder" / "file", tmp_path / "link"
    link.symlink_to(file)
    for text in ("first", "second"):
        write_output(link, text)
        assert link.is_symlink()
        assert file.read_text() == text
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder", "link"]


def test_what_was_there_stays_where_writing_fails(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write_output(file, "half of a pair: \ud800")
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_inspect_writes_its_page_to_a_pipe(tmp_path: Path) -> None:
    servable_datastore(tmp_path / "store")
    os.mkfifo(tmp_path / "page")
    thread, found = read_in_thread(tmp_path / "page")
    assert main(["inspect", str(tmp_path / "store"), "--html", str(tmp_path / "page")]) == 0
    thread.join(60)
    assert found[0].endswith("</html>\n")
    assert stat.S_ISFIFO((tmp_path / "page").stat().st_mode)
