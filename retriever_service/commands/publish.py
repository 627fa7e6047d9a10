"""dresd-retriever publish: makes a build the one that servers of a root serve."""

from __future__ import annotations

import argparse

from dresd.argument_types import some_path
from retriever_service.commands.output import CommandError
from retriever_service.echo import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("root", type=some_path, metavar="ROOT", help="a folder of builds beside each other")
    parser.add_argument("build", type=some_path, metavar="BUILD", help="the folder of one of them: ROOT/NAME")
    parser.add_argument(
        "--allow-other-model", action="store_true", help="publish a build of another model than the current one's"
    )


def run(arguments: argparse.Namespace) -> int:
    """Checks the build and publishes it."""
    from retriever_service.datastore import CURRENT_FILE, DatastoreError, publish

    root, build = arguments.root, arguments.build
    try:
        manifest = publish(root, build, allow_other_model=arguments.allow_other_model)
    except DatastoreError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(
            f"{root / CURRENT_FILE} cannot be written: {error.strerror}. What was published before still is."
        ) from error
    print(
        f"{printable(str(root / CURRENT_FILE))} names {printable(build.name)}: "
        f"build {manifest.build_id}, {manifest.num_entries:,} entries"
    )
    return 0
