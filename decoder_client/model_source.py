"""Where a model comes from and how fetching it fails: folders, the Hugging Face hub and its local cache.

Knows names and errors; what a model is, and whether it can be a target, is `target_model`'s business.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError's home changes with the hub's version
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    StrictDataclassError,
)

_CONFIG = "config.json"
_NAME_IT = "Name a folder saved by transformers, or a decoder-only model of the Hugging Face hub"


class SourceError(Exception):
    """There is no model of this name: one sentence and a hint."""


def is_folder(name: str) -> bool:
    """Whether there is a folder `name`; False for what cannot even be a path."""
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):
        return False


def local_only(name: str) -> bool:
    """Whether `name` must be loaded without asking the hub: it is a folder, or the hub has nothing for us but the
    local cache has.

    The hub is asked once, for as long as HF_HUB_ETAG_TIMEOUT says (and not at all with HF_HUB_OFFLINE), where
    transformers would try again for half a minute.

    Raises:
        SourceError: neither a folder, nor on the hub, nor in the cache.
    """
    if is_folder(name):
        if not (Path(name) / _CONFIG).is_file():
            raise SourceError(f"Folder {name!r} has no {_CONFIG}. Name a folder saved by transformers.")
        return True
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        # A hub name has one slash at most; asking the hub for a mistyped path would only hide the mistake.
        raise SourceError(f"There is no model folder {name!r}. Name a folder saved by transformers.")
    try:
        get_hf_file_metadata(hf_hub_url(name, _CONFIG))
    except HFValidationError as error:
        raise SourceError(f"{name!r} is neither a folder nor a name of the Hugging Face hub. {_NAME_IT}.") from error
    except (HTTPError, OSError) as error:
        if isinstance(try_to_load_from_cache(name, _CONFIG), str):
            return True
        if isinstance(error, HfHubHTTPError):
            raise SourceError(
                f"The Hugging Face hub has no model {name!r} for you, and there is no such folder. {_NAME_IT}; "
                "log in with `hf auth login` if it is private or gated."
            ) from error
        raise SourceError(
            f"There is no folder {name!r}, and neither does the Hugging Face hub answer ({reason_of(error)}) nor does "
            f"its local cache hold this model. {_NAME_IT} once the network is up."
        ) from error
    return False


def reason_of(error: Exception) -> str:
    """What an error's message says first, as one line without a full stop."""
    lines = str(error).strip().splitlines() or ["no reason given"]
    # The validator's name stands in the first line, and what it complains of in the next ones.
    text = " ".join(lines) if isinstance(error, StrictDataclassError) else lines[0]
    sentence = " ".join(text.split()).split(". ")[0].rstrip(".")
    # Python's own messages mean little without their kind: KeyError says 'name'.
    own = isinstance(error, (TypeError, LookupError, AttributeError, ArithmeticError))
    return f"{type(error).__name__}: {sentence}" if own else sentence
