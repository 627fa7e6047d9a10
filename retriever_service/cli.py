"""dresd-retriever: the service's commands on a terminal.

Knows commands by name only; what they need (Ray, torch, FAISS) is imported when one runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dresd.command_line import Command, run_command
from retriever_service.commands import (
    add,
    build,
    fetch,
    inspect,
    k8s_values,
    merge,
    prune,
    publish,
    push,
    reload,
    serve,
    status,
    tune,
    verify,
)
from retriever_service.commands.output import CommandError

_GOES_ON = "The same command goes on where this one was."

COMMANDS = {
    "build": Command("build a datastore from a corpus and a model", build.add_arguments, build.run, _GOES_ON),
    "add": Command("add new documents to a datastore, as a new build", add.add_arguments, add.run, _GOES_ON),
    "merge": Command("join datastores of one key recipe into one", merge.add_arguments, merge.run),
    "prune": Command("make a smaller datastore of what is needed most", prune.add_arguments, prune.run),
    "serve": Command("serve a datastore over gRPC", serve.add_arguments, serve.run),
    "tune": Command("choose how many lists a search reads, by measured recall", tune.add_arguments, tune.run),
    "publish": Command(
        "make a build the one that a root's servers serve",
        publish.add_arguments,
        publish.run,
        "What was published before still is.",
    ),
    "push": Command("copy a build to object storage and publish it there", push.add_arguments, push.run, _GOES_ON),
    "fetch": Command(
        "bring what is published in object storage to this machine", fetch.add_arguments, fetch.run, _GOES_ON
    ),
    "reload": Command(
        "make a running server take up the published build",
        reload.add_arguments,
        reload.run,
        "The server goes on loading; ask `dresd-retriever status` what came of it.",
    ),
    "status": Command("show what a running server serves", status.add_arguments, status.run),
    "inspect": Command("show what a datastore consists of", inspect.add_arguments, inspect.run),
    "k8s-values": Command("what a datastore needs on Kubernetes", k8s_values.add_arguments, k8s_values.run),
    "verify": Command("check every byte and count of a datastore", verify.add_arguments, verify.run),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    description = "Build and serve a datastore of drafts."
    return run_command("dresd-retriever", description, COMMANDS, CommandError, arguments)


if __name__ == "__main__":
    sys.exit(main())
