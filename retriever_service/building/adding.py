"""New documents for a datastore: embedded with its own reducer, then put beside what it has.

The documents are built into a datastore of their own first, whose keys are coded without loss; from there they go into
further segments of the old one's partitions. So an interrupted addition goes on like any build, and what the old
datastore consists of is neither read by the model again nor written again.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from retriever_service.building.config import BuildConfig
from retriever_service.building.errors import BuildError, os_error_sentence
from retriever_service.building.job import build
from retriever_service.building.progress import Progress
from retriever_service.building.workspace import open_workspace
from retriever_service.datastore import DatastoreError, Manifest, current_build, read_manifest
from retriever_service.datastore.files import sha256_of
from retriever_service.evolving import Extended, extend


@dataclass(frozen=True, slots=True)
class Added:
    """What came of it: the old datastore, the new documents' own one as it was, and the one that has both."""

    before: Manifest
    addition: Manifest
    extended: Extended


def add(config: BuildConfig, progress: Progress) -> Added:
    """Writes to `config.out` a datastore of all entries of `config.reducer_of` and those of a corpus.

    `dims`, `continuation_length`, `codec` and `partitions` are the old datastore's, whatever the options say.

    Raises:
        BuildError: with one sentence for anything a user can act on.
    """
    try:
        return _add(config, progress)
    except DatastoreError as error:
        raise BuildError(str(error)) from error
    except OSError as error:
        raise BuildError(os_error_sentence(error)) from error


def _add(config: BuildConfig, progress: Progress) -> Added:
    if config.reducer_of is None:
        raise ValueError("there is no datastore to add to")
    base = current_build(config.reducer_of)
    before = read_manifest(base)
    place = Path(config.out).absolute()
    # Beside the result, so that it is on the same disk, and found again by the same command.
    aside = place.parent / f".{place.name}.addition"
    alone = replace(
        _new_files(config, before, progress),
        out=aside,
        reducer_of=base,
        dims=before.key_recipe.dims,
        continuation_length=before.continuation_length,
        # Coded once, as the old keys are, and spread once, when they join them.
        codec="flat",
        partitions=1,
    )
    with open_workspace(config.out) as workspace:
        shutil.rmtree(aside, ignore_errors=True)
        addition = build(alone, progress)
        total = addition.num_entries
        with progress.stage("Adding", total, "entries", lambda: total):
            directory = workspace.empty_folder()
            extended = extend(base, aside, directory, seed=config.seed, command=config.command)
        workspace.publish(directory)
        shutil.rmtree(aside, ignore_errors=True)
    return Added(before, addition, extended)


def _new_files(config: BuildConfig, base: Manifest, progress: Progress) -> BuildConfig:
    """The same without files that the datastore was made from: their documents need no model to be known again."""
    if config.respond:
        return config  # other answers are other documents
    known = {file.sha256 for file in base.corpus.files}
    old = [name for name in config.corpus if Path(name).is_file() and sha256_of(Path(name)) in known]
    if len(old) == len(config.corpus):
        raise BuildError("The datastore was built from every file of the corpus already. Name a new one.")
    for name in old:
        progress.say(f"{name}: left out, the datastore was built from it")
    return replace(config, corpus=tuple(name for name in config.corpus if name not in old))
