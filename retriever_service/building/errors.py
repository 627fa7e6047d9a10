"""What a build tells its user when it cannot go on."""

from __future__ import annotations

import errno


class BuildError(Exception):
    """A build cannot go on: one sentence and a hint."""


def os_error_sentence(error: OSError) -> str:
    """One sentence for a failure of the operating system; a full disk gets a hint."""
    name = f" {str(error.filename)!r}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"No space left on the disk while writing{name}. Free some space, or choose --out on another disk."
    return f"{(error.strerror or str(error)).rstrip('.')}:{name or ' (no file named)'}."
