"""The versions of vLLM that the hook was tested with; it reaches into vLLM's inside, so another one is refused.

Knows version numbers only.
"""

from __future__ import annotations

from decoder_client.errors import DecoderError

TESTED = ("0.32.0",)


class EngineVersionError(DecoderError):
    """This vLLM is another one than those tested."""


def check_version(version: str) -> None:
    """Raises `EngineVersionError` unless `version` ("0.32.0", perhaps with a build's suffix, "+cpu") is tested."""
    if version.split("+")[0] not in TESTED:
        raise EngineVersionError(
            f"vLLM {version} is not a version that dresd was tested with ({', '.join(TESTED)}). Install one of these, "
            "or go without dresd's drafts and keys."
        )
