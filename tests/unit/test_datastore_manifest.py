"""The manifest: whatever stands in it, it is refused by name or it does not matter; never crashed on."""

from __future__ import annotations

import copy as copying
import json
import shutil
from collections.abc import Iterator

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import save

from retriever_service.cli import main
from retriever_service.datastore import (
    Datastore,
    DatastoreError,
    FileRecord,
    inspect,
    read_manifest,
    verify,
    write_manifest,
)
from tests.support.datastore import build_datastore, edit_manifest, random_entries


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    path = tmp_path_factory.mktemp("intact") / "store"
    return build_datastore(path, random_entries(60), num_partitions=2, codec="sq8")


@pytest.fixture
def copy(intact, tmp_path):
    return shutil.copytree(intact.path, tmp_path / "copy")


def test_a_folder_without_a_manifest_is_an_interrupted_build(copy):
    (copy / "manifest.json").unlink()
    with pytest.raises(DatastoreError, match=r"no manifest\.json.*interrupted"):
        Datastore.open(copy)


def test_what_is_not_a_folder_is_said_so(tmp_path):
    with pytest.raises(DatastoreError, match="nowhere is not a folder"):
        Datastore.open(tmp_path / "nowhere")


def test_a_newer_format_is_refused_whatever_else_it_has(copy):
    def newer(manifest):
        manifest["format_version"] = 2
        manifest["something_new"] = {"unheard": "of"}
        del manifest["partitions"]

    edit_manifest(copy, newer)
    with pytest.raises(DatastoreError, match=r"format 2.*up to 1"):
        Datastore.open(copy)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"format_version": "1"}',
        b"[" * 100_000,
        b'{"format_version": ' + b"1" * 5_000 + b"}",
    ],
)
def test_a_manifest_that_is_none_is_named(copy, content):
    (copy / "manifest.json").write_bytes(content)
    with pytest.raises(DatastoreError, match=r"manifest\.json"):
        Datastore.open(copy)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda manifest: manifest.pop("build_id"), "build_id"),
        (lambda manifest: manifest.update(surprise=1), "surprise"),
        (lambda manifest: manifest.update(codec="zip"), "codec"),
        (lambda manifest: manifest.update(num_entries=3), "num_entries"),
        (lambda manifest: manifest.update({"token_dtype": "uint32"}), "token_dtype"),
        (lambda manifest: manifest.update(partitions=[]), "partitions"),
        (lambda manifest: manifest["partitions"].reverse(), "partitions"),
        (lambda manifest: manifest["files"].pop("reducer.safetensors"), "files"),
        (lambda manifest: manifest["model"].pop("vocab_size"), "vocab_size"),
        (
            lambda manifest: manifest["partitions"][0]["segments"][0].update(directory="../elsewhere"),
            "directory: .*plain file name",
        ),
        (
            lambda manifest: manifest["partitions"][0]["segments"][0].update(directory="/etc"),
            "directory: .*plain file name",
        ),
        (
            lambda manifest: manifest["partitions"][0]["segments"][0].update(directory=".."),
            "directory: .*plain file name",
        ),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused_by_field(copy, change, field):
    edit_manifest(copy, change)
    with pytest.raises(DatastoreError, match=field):
        Datastore.open(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["key_recipe"].update(dims=10),
        lambda manifest: manifest.update(codec="sq4"),
        lambda manifest: manifest.update(codec="flat"),
        lambda manifest: manifest.update(continuation_length=7),
        lambda manifest: manifest.update(left_context_length=4),
        lambda manifest: manifest["partitions"][1]["segments"][0]["files"].pop("index.faiss"),
    ],
)
def test_files_other_than_the_manifest_describes_are_refused(copy, change):
    edit_manifest(copy, change)
    with pytest.raises(DatastoreError, match=r"partition-0000|reducer\.safetensors"):
        Datastore.open(copy)


def test_a_manifest_is_read_as_written(intact, tmp_path):
    write_manifest(tmp_path, intact.manifest)
    assert read_manifest(tmp_path) == intact.manifest == read_manifest(intact.path)
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]


def test_an_edit_without_the_checksum_is_refused(copy):
    file = copy / "manifest.json"
    file.write_text(file.read_text().replace('"command": "tests"', '"command": "guests"'))
    for read in (read_manifest, Datastore.open, inspect, verify):
        with pytest.raises(DatastoreError, match=r"manifest\.json is not as it was written"):
            read(copy)


def test_a_manifest_without_a_checksum_is_refused(copy):
    content = json.loads((copy / "manifest.json").read_text())
    del content["checksum"]
    (copy / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(DatastoreError, match="checksum"):
        read_manifest(copy)


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_is_refused_or_changes_nothing(intact, copy, bit):
    file = copy / "manifest.json"
    content = file.read_bytes()
    refused = 0
    for at in range(len(content)):
        broken = bytearray(content)
        broken[at] ^= 1 << bit
        file.write_bytes(broken)
        try:
            assert read_manifest(copy) == intact.manifest
        except DatastoreError:
            refused += 1
    assert refused > len(content) // 2


def leaves(content, path=()) -> Iterator[tuple]:
    """The place of every number and string."""
    if isinstance(content, (dict, list)):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from leaves(value, (*path, key))
    else:
        yield path


def replaced(content, path, value):
    changed = copying.deepcopy(content)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


NUMBERS = [-1, 0, 2**31, 2**63, 2**64, 0.5, 1e300, float("nan"), float("inf"), True, None]
STRINGS = ["", "x", "\udcff", "\ud800x", "\0", "\x1b[31m\n", "x" * 100_000, "../x", "é", 7, None, [], {}]
FREE = {"build_id", "corpus", "versions", "command", "created"}
"""Nothing is read or searched differently for these; neither is it for some parts of the others."""
FREE_PARTS = {"name", "revision", "layer", "norm", "weights_fingerprint", "tokenizer_hash", "recall"}


@pytest.mark.parametrize("values", [NUMBERS, STRINGS], ids=["numbers", "strings"])
def test_any_value_in_any_place_is_refused_or_does_not_matter(intact, copy, capsys, values):
    content = intact.manifest.model_dump(mode="json")
    keys = np.eye(8, dtype=np.float32)
    expected = intact.open().draft(keys, np.arange(8), neighbors=20, max_nodes=20)
    for path in leaves(content):
        for value in values:
            changed = replaced(content, path, value)
            edit_manifest(copy, lambda manifest, changed=changed: (manifest.clear(), manifest.update(changed)))
            store, refusal = opened(copy)
            if store is None:
                assert refusal.isprintable(), path
                assert len(refusal) < 2_000, path
                assert main(["inspect", str(copy)]) == main(["verify", str(copy)]) == 1
                continue
            if value != content_at(content, path):
                assert path[0] in FREE or path[-1] in {*FREE_PARTS, "nprobe", "sha256"}, (path, value)
            draft = store.draft(keys, np.arange(8), neighbors=20, max_nodes=20)
            assert [tree.tokens.tolist() for tree in draft.trees] == [tree.tokens.tolist() for tree in expected.trees]
            assert main(["inspect", str(copy)]) == main(["inspect", "--json", str(copy)]) == 0
            assert main(["verify", "--sample", "3", str(copy)]) == (path[-1] == "sha256" and path[0] != "corpus")
            capsys.readouterr()


def opened(path):
    """The datastore, or what is said in its place."""
    try:
        return Datastore.open(path, verify_checksums=False), ""
    except DatastoreError as error:
        return None, str(error)


def content_at(content, path):
    for key in path:
        content = content[key]
    return content


def test_text_that_is_none_in_utf8_is_kept_for_people(intact, tmp_path):
    """Such are the names of files and folders whose bytes are no text."""
    odd = intact.manifest.model_copy(update={"command": "build --out caf\udce9"})
    odd = type(odd).model_validate(odd.model_dump())
    write_manifest(tmp_path, odd)
    assert read_manifest(tmp_path).command == "build --out caf\\udce9"


TEXTS = {
    "build_id": lambda manifest, text: manifest.update(build_id=text),
    "command": lambda manifest, text: manifest.update(command=text),
    "created": lambda manifest, text: manifest.update(created=text),
    "name": lambda manifest, text: manifest["model"].update(name=text),
    "revision": lambda manifest, text: manifest["model"].update(revision=text),
    "tokenizer_hash": lambda manifest, text: manifest["model"].update(tokenizer_hash=text),
    "weights_fingerprint": lambda manifest, text: manifest["model"].update(weights_fingerprint=text),
    "layer": lambda manifest, text: manifest["key_recipe"].update(layer=text),
    "norm": lambda manifest, text: manifest["key_recipe"].update(norm=text),
    "reducer_hash": lambda manifest, text: manifest["key_recipe"].update(reducer_hash=text),
    "files": lambda manifest, text: manifest["corpus"]["files"].append(
        {"name": text, "size": 1, "sha256": "0" * 64, "documents": 1}
    ),
    "versions": lambda manifest, text: manifest["versions"].update({text: "1"}),
    "versions.x": lambda manifest, text: manifest["versions"].update(x=text),
}


@pytest.mark.parametrize("field", TEXTS)
@pytest.mark.parametrize("text", ["a\nb", "a\rb", "\x1b[31m", "\0", "a\u2028b", "a\x85b", "a\n"])
def test_control_characters_are_neither_read_nor_written(intact, copy, field, text):
    edit_manifest(copy, lambda manifest: TEXTS[field](manifest, text))
    for read in (read_manifest, Datastore.open, inspect, verify):
        with pytest.raises(DatastoreError, match=rf"{field}.*(control characters|sha256|pattern)"):
            read(copy)
    content = intact.manifest.model_dump(mode="json")
    TEXTS[field](content, text)
    with pytest.raises(ValidationError):
        type(intact.manifest).model_validate(content)


@pytest.mark.parametrize("text", ["caf\u00e9", "a\u00a0b", "\u4e16\u754c\u3000", "\U0001f469\u200d\U0001f4bb"])
def test_names_in_any_language_are_read(copy, text):
    edit_manifest(copy, lambda manifest: manifest["model"].update(name=text))
    assert read_manifest(copy).model.name == text


def of(weight, bias=None, **more):
    return save({"weight": weight, "bias": np.zeros(len(weight), np.float32) if bias is None else bias, **more})


@pytest.mark.parametrize(
    "reducer",
    [
        b"",
        b"\xff" * 100,
        save({"weight": np.zeros((8, 12), np.float32)}),
        save({"bias": np.zeros(8, np.float32)}),
        of(np.zeros((12, 8), np.float32)),
        of(np.zeros((7, 12), np.float32)),
        of(np.zeros((8, 13), np.float32)),
        of(np.zeros((8, 12), np.float64)),
        of(np.zeros((8, 12), np.float32), np.zeros(7, np.float32)),
        of(np.zeros((8, 12), np.float32), np.zeros((8, 1), np.float32)),
        of(np.full((8, 12), np.nan, np.float32)),
        of(np.zeros((8, 12), np.float32), np.full(8, np.inf, np.float32)),
    ],
)
def test_a_reducer_that_does_not_make_these_keys_is_refused(copy, reducer):
    (copy / "reducer.safetensors").write_bytes(reducer)
    record = FileRecord.of(copy / "reducer.safetensors")

    def agree(manifest):
        manifest["files"]["reducer.safetensors"] = record.model_dump()
        manifest["key_recipe"]["reducer_hash"] = record.sha256

    edit_manifest(copy, agree)
    for read in (Datastore.open, inspect, verify):
        with pytest.raises(DatastoreError, match=r"reducer\.safetensors"):
            read(copy)


def test_a_reducer_hash_of_another_file_is_refused(copy):
    edit_manifest(copy, lambda manifest: manifest["key_recipe"].update(reducer_hash="0" * 64))
    for read in (Datastore.open, inspect, verify):
        with pytest.raises(DatastoreError, match="reducer_hash"):
            read(copy)


def test_a_flipped_bit_of_the_reducer_is_found_even_without_checksums(copy):
    file = copy / "reducer.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DatastoreError, match=r"reducer\.safetensors is corrupt"):
        Datastore.open(copy, verify_checksums=False)


@pytest.mark.parametrize("name", ["x" * 300, "/".join(["y" * 200] * 50), "\0", "no\nfolder", "\udcff"])
def test_a_folder_that_cannot_be_is_a_sentence(tmp_path, name):
    for read in (Datastore.open, inspect, verify):
        with pytest.raises(DatastoreError) as refused:
            read(tmp_path / name)
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 1_000
