"""The commands of dresd-retriever, one module each: `add_arguments(parser)` and `run(arguments) -> exit code`.

A command's module imports what is heavy inside `run`: `--help` is quick, and a server never loads torch or Ray.
"""
