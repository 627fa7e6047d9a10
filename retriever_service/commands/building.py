"""What `build` and `add` share: the options of a corpus and of the work on it, and how a build fails."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dresd.argument_types import any_number, non_empty, some_path, whole_number
from dresd.command_line import UsageError
from retriever_service.building.errors import BuildError
from retriever_service.commands.output import CommandError, recorded_command

if TYPE_CHECKING:
    from retriever_service.building.config import BuildConfig

_ANSWERING = ("max_new_tokens", "answers_per_prompt", "temperature", "answers_out")
_ALWAYS = ("model", "out", "prompt_keys", "skip_bad", "respond", "reducer_of", "engine", "seed", "restart", "workers",
           "threads", "ray_address")  # fmt: skip


def add_corpus_options(
    parser: argparse.ArgumentParser, *, model: str, corpus: str, out: str, place: str = "DIR"
) -> None:
    """Declares what is read and where to write, with the help of three options and what `--out` is called."""
    parser.add_argument("--model", required=True, type=non_empty, metavar="M", help=model)
    parser.add_argument("--corpus", required=True, nargs="+", type=non_empty, metavar="FILE", help=corpus)
    parser.add_argument("--out", required=True, type=some_path, metavar=place, help=out)
    parser.add_argument("--prompt-keys", action="store_true", help="store positions of the prompts too")
    parser.add_argument(
        "--skip-bad", action="store_true", help="leave out records that are malformed, as damaged ones always are"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def add_answer_options(parser: argparse.ArgumentParser) -> None:
    """Declares what is asked of the model where it answers."""
    answers = parser.add_argument_group("answers of the model itself")
    answers.add_argument(
        "--respond", action="store_true", help="let the model answer the prompts, and store its answers"
    )
    # No defaults, so that options without --respond are noticed.
    answers.add_argument("--max-new-tokens", type=whole_number, metavar="N", help="of an answer, at most; default: 128")
    answers.add_argument(
        "--answers-per-prompt", type=whole_number, metavar="N", help="sampled answers to each prompt; default: 1"
    )
    answers.add_argument("--temperature", type=any_number, metavar="T", help="of an answer; default: 0, greedy")
    answers.add_argument(
        "--answers-out", type=some_path, metavar="FILE", help="also write the answers here, as a corpus .jsonl"
    )


def add_work_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Declares how the work is shared out."""
    work = parser.add_argument_group("how the work is done")
    work.add_argument(
        "--engine", default="transformers", metavar="NAME",
        help="transformers or vllm: what computes answers and keys; default: transformers",
    )  # fmt: skip
    work.add_argument("--seed", type=whole_number, default=0, metavar="N", help="of all that is random; default: 0")
    work.add_argument(
        "--workers", type=whole_number, metavar="N", help="copies of the model; default: one a GPU, or one for 4 cores"
    )
    work.add_argument(
        "--threads", type=whole_number, metavar="N", help="cores of each copy; default: all, shared out evenly"
    )
    work.add_argument(
        "--restart", action="store_true", help="throw the work of an interrupted build of DIR away, and begin anew"
    )
    work.add_argument(
        "--ray-address", metavar="ADDRESS", help="of a running Ray cluster (auto: this machine's); default: none"
    )
    return work


@contextmanager
def configured(arguments: argparse.Namespace, *own: str) -> Iterator[BuildConfig]:
    """What the shared options and some of a command's own ask for, by name; in the block, builds fail as commands do.

    Raises:
        UsageError: for options that cannot be.
        CommandError: the block ended with a BuildError.
    """
    given = _answering_options(arguments)
    from retriever_service.building.config import BuildConfig, ConfigError

    try:
        yield BuildConfig(
            corpus=tuple(arguments.corpus),
            command=recorded_command(_paths_of(arguments)),
            **{name: getattr(arguments, name) for name in (*_ALWAYS, *own)},
            **given,
        )
    except ConfigError as error:
        raise UsageError(str(error)) from error
    except BuildError as error:
        raise CommandError(str(error)) from error


def _answering_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Those given of the answers; raises UsageError where the model answers nothing."""
    answering = {name: getattr(arguments, name) for name in _ANSWERING}
    given = {name: value for name, value in answering.items() if value is not None}
    if given and not arguments.respond:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{names}: only where the model answers. Add --respond, or leave it out.")
    return given


def _paths_of(arguments: argparse.Namespace) -> set[Path]:
    """The files and folders among the arguments of a build."""
    paths = {*map(Path, arguments.corpus), arguments.out, arguments.answers_out, arguments.reducer_of}
    return {*paths, Path(arguments.model)} if Path(arguments.model).is_dir() else paths
