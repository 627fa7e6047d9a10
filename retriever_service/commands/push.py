"""dresd-retriever push: copies a build to object storage, from where servers fetch it, and publishes it there."""

from __future__ import annotations

import argparse

from dresd.argument_types import non_empty, some_path
from retriever_service.commands.output import CommandError
from retriever_service.echo import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("build", type=some_path, metavar="BUILD", help="the folder of a build")
    parser.add_argument(
        "url", type=non_empty, metavar="URL",
        help="of the root that it goes to under its folder's name: s3://, gs://, abfs://, hdfs:// or a folder",
    )  # fmt: skip
    parser.add_argument("--no-publish", action="store_true", help="only copy; what is current there stays")
    parser.add_argument(
        "--allow-other-model", action="store_true", help="publish a build of another model than the current one's"
    )


def run(arguments: argparse.Namespace) -> int:
    """Copies, compares every file with its checksum, and publishes."""
    from retriever_service.datastore import DatastoreError
    from retriever_service.datastore.pushing import push

    build, url = arguments.build, arguments.url
    published = not arguments.no_publish
    try:
        manifest = push(build, url, publish=published, allow_other_model=arguments.allow_other_model)
    except DatastoreError as error:
        raise CommandError(str(error)) from error
    said = "is current" if published else "is there, and not published"
    print(f"{printable(url)}/{printable(build.absolute().name)} {said}: build {manifest.build_id}")
    return 0
