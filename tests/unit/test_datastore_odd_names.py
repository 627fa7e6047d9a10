"""Folders whose names are not what FAISS, which takes UTF-8 only, could be told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from retriever_service.datastore import Datastore, DatastoreError, inspect, verify
from tests.support.datastore import build_datastore, random_entries

NAMES = [b"a b", "é世界".encode(), b"\xff\xfe", b"caf\xe9", b"line\nbreak", b"-"]

SCRIPT = """
import sys
from pathlib import Path
from retriever_service.datastore import verify
from tests.support.datastore import build_datastore, random_entries

store = Path(sys.argv[1])
build_datastore(store, random_entries(60), num_partitions=2)
print(verify(store).entries)
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_datastore_may_have_any_name(tmp_path, name):
    store = tmp_path / os.fsdecode(name)
    built = build_datastore(store, random_entries(60), num_partitions=2, codec="sq8")
    assert inspect(store).num_entries == verify(store).entries == 60
    assert built.open().search(built.entries.keys[:1], built.entries.next_tokens[:1], neighbors=1).counts.tolist() == [
        1
    ]
    (store / "partition-00000-segment-000/index.faiss").write_bytes(b"x")
    with pytest.raises(DatastoreError):
        Datastore.open(store)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_whatever_the_locale_is(tmp_path, name, locale):
    command = [sys.executable, "-c", SCRIPT, os.fsencode(tmp_path) + b"/" + name]
    folder = Path(__file__).parents[2]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **locale}, cwd=folder, timeout=120
    )
    assert (result.returncode, result.stdout) == (0, "60\n"), result.stderr
