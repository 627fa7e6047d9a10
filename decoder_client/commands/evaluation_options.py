"""What `bench` and `replay` have in common on the command line: methods, what they draft from, and where results go.

Imports nothing heavy, so that `--help` and wrong usage answer at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from decoder_client.commands.options import add_collection, add_deadline, add_other_weights, retriever_address
from decoder_client.errors import DecoderError
from dresd.argument_types import at_least, between, non_empty, numbers_between, some_path
from dresd.command_line import UsageError
from dresd.output_file import write_output

if TYPE_CHECKING:
    from decoder_client.drafting import CostCurve
    from decoder_client.evaluation.methods import Method
    from decoder_client.evaluation.resources import Resources
    from decoder_client.evaluation.results import Results, Setting
    from decoder_client.evaluation.token_records import TokenRecord
    from decoder_client.retriever import RetrieverClient
    from decoder_client.target_model import TargetModel

logger = logging.getLogger(__name__)

MAX_NODES = 1024


class EvaluationError(DecoderError):
    """An evaluation cannot run as asked, or its results cannot be written."""


def add_options(parser: argparse.ArgumentParser, *, methods: str, nodes: str) -> None:
    """Declares the options; `methods` and `nodes` are the defaults of those options."""
    parser.add_argument(
        "--model", required=True, type=non_empty, metavar="M", help="folder or hub name of a transformers model"
    )
    parser.add_argument(
        "--methods", type=_names, default=methods, metavar="A,B", help=f"see docs/bench.md; default: {methods}"
    )
    parser.add_argument(
        "--nodes",
        type=numbers_between(1, MAX_NODES),
        default=nodes,
        metavar="N,M",
        help=f"draft nodes a step that each method is run with; default: {nodes}",
    )
    parser.add_argument(
        "--retriever",
        type=retriever_address,
        metavar="HOST:PORT",
        help="the service that dense and dresd ask; default: they search --datastore in this process",
    )
    add_collection(parser)
    add_deadline(parser)
    add_other_weights(parser)
    parser.add_argument("--datastore", type=some_path, metavar="DIR", help="the store that all methods draft from")
    parser.add_argument(
        "--corpus",
        type=some_path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="the answers in the store, as token ids; default: the files the datastore says it was built from",
    )
    parser.add_argument(
        "--ann",
        choices=["exact", "scann"],
        default="exact",
        help="how dresd-paper searches: exact (the default) or scann, as published",
    )
    parser.add_argument("--limit", type=at_least(int, 1), metavar="N", help="only the first N prompts; default: all")
    parser.add_argument(
        "--threads", type=between(int, 1, 1024), metavar="N", help="of model and search; default: the libraries' own"
    )
    parser.add_argument("--json", type=some_path, metavar="OUT", help="write all results to this file")
    parser.add_argument("--html", type=some_path, metavar="OUT", help="write a report to this file")


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def chosen_methods(arguments: argparse.Namespace) -> list[Method]:
    """The methods asked for, each with every budget that matters to it; UsageError for what cannot be meant."""
    from decoder_client.evaluation.methods import methods, needs_retriever, needs_store
    from decoder_client.evaluation.resources import MethodError

    try:
        chosen = methods(arguments.methods, arguments.nodes)
    except MethodError as error:
        raise UsageError(str(error)) from error
    names = list(dict.fromkeys(method.name for method in chosen))
    if arguments.datastore is None:
        if asking := [name for name in names if needs_store(name)]:
            raise UsageError(f"{', '.join(asking)} needs the datastore itself. Name its folder with --datastore.")
        if not arguments.retriever and (asking := [name for name in names if needs_retriever(name)]):
            raise UsageError(
                f"{', '.join(asking)} needs a retriever. Name a datastore's folder with --datastore, or start "
                "`dresd-retriever serve` and name it with --retriever."
            )
    return chosen


def set_threads(threads: int | None) -> None:
    """Of torch and, where it is installed, of FAISS."""
    if threads is None:
        return
    import torch

    torch.set_num_threads(threads)
    try:
        import faiss
    except ModuleNotFoundError:
        return
    faiss.omp_set_num_threads(threads)


@contextmanager
def opened_resources(
    arguments: argparse.Namespace, target: TargetModel, methods: Sequence[Method], measure: Callable[[], CostCurve]
) -> Iterator[Resources]:
    """What the methods draft from, all of it found usable; a connection to the service ends with the context."""
    from decoder_client.cache_folder import cache_folder
    from decoder_client.evaluation.methods import needs_retriever, new_drafter
    from decoder_client.evaluation.resources import Resources

    client = None
    if arguments.retriever and any(needs_retriever(method.name) for method in methods):
        client = _connected(arguments, target)
    try:
        resources = Resources(
            target.identity(),
            datastore=arguments.datastore,
            corpus=arguments.corpus,
            retriever=client,
            require_same_weights=not arguments.allow_other_weights,
            ann=arguments.ann,
            cache=cache_folder(),
            measure=measure,
        )
        for method in methods:
            # Whatever is missing shows before anything is measured.
            new_drafter(method, resources)
        yield resources
    finally:
        if client is not None:
            client.close()


def _connected(arguments: argparse.Namespace, target: TargetModel) -> RetrieverClient:
    """A client that has shaken hands: an evaluation without its service would measure nothing."""
    from decoder_client.retriever import RetrieverClient, RetrieverConfig

    client = RetrieverClient(
        RetrieverConfig(
            arguments.retriever,
            deadline_ms=arguments.deadline_ms,
            require_same_weights=not arguments.allow_other_weights,
            collection=arguments.collection,
        )
    )
    try:
        client.connect(target.identity())
    except BaseException:
        client.close()
        raise
    return client


def warned_of_known(records: Sequence[TokenRecord], arguments: argparse.Namespace, resources: Resources) -> list[str]:
    """Warns if answers are those that the store was built from; the warning again, for the results."""
    from decoder_client.evaluation.seen_before import seen_before

    datastore = None if arguments.datastore is None else resources.datastore
    warning = seen_before(records, datastore, arguments.corpus, vocab_size=resources.identity.vocab_size)
    if warning is None:
        return []
    logger.warning("%s", warning)
    return [warning]


def settings_of(arguments: argparse.Namespace) -> dict[str, Setting]:
    """All options as parsed, paths as texts."""
    return {name: _setting(value) for name, value in vars(arguments).items() if name != "command"}


def _setting(value: object) -> Setting:
    if isinstance(value, (list, tuple)):
        if all(type(item) is int for item in value):
            return tuple(int(item) for item in value)
        return tuple(str(item) for item in value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)


def check_outputs(arguments: argparse.Namespace) -> None:
    """Refuses result files that could not be written, before an hour of measuring."""
    for out in (arguments.json, arguments.html):
        if out is not None and (out.is_dir() or not os.access(out.parent, os.W_OK)):
            raise EvaluationError(f"Cannot write {str(out)!r}. Name a file in a folder that exists and is writable.")


def write_results(results: Results, arguments: argparse.Namespace) -> None:
    """Writes what was asked for; EvaluationError names the file that cannot be written."""
    if arguments.json is not None:
        _write(arguments.json, results.to_json())
    if arguments.html is not None:
        from decoder_client.evaluation.html_report import render

        _write(arguments.html, render(results))


def _write(out: Path, text: str) -> None:
    try:
        write_output(out, text)
    except OSError as error:
        raise EvaluationError(f"Cannot write {str(out)!r}: {error.strerror}. Name another file.") from error


def print_tables(results: Results) -> None:
    """What was found, for people."""
    from decoder_client.evaluation.tables import comparison_table, method_table

    print(f"\n{method_table(results)}")
    if results.comparisons:
        print(f"\n{comparison_table(results, results.comparisons)}")
    if results.ablations:
        print(f"\nAgainst variants of itself:\n\n{comparison_table(results, results.ablations)}")
    for note in results.notes:
        print(f"\nNote: {note}")


def status_line() -> Callable[[str], None]:
    """Shows what is being done on a terminal, one text over the other; nowhere else."""
    if not sys.stderr.isatty():
        return lambda _text: None

    def show(text: str) -> None:
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    return show
