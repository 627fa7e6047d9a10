"""What transformers shows of its own while a command loads a model."""

from __future__ import annotations

import sys

_PATIENCE_S = 3.0


def show_what_takes_long() -> None:
    """Lets transformers draw a bar on a terminal for what takes seconds, and take it away again; else none."""
    from transformers.utils import logging

    if sys.stderr.isatty():
        logging.set_tqdm_hook(lambda bar, args, kwargs: bar(*args, **{**kwargs, "delay": _PATIENCE_S, "leave": False}))
    else:
        logging.disable_progress_bar()
