"""The commands of dresd-decoder, one module each: `add_arguments(parser)` and `run(arguments) -> exit code`.

A command's module imports what is heavy inside `run`, so that `--help` is quick.
"""
