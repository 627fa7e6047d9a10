"""What a build tells its user when it cannot go on."""

from __future__ import annotations

import errno

_ADVICE = {
    errno.ENOENT: "Is the name right?",
    errno.EACCES: "Change its permissions, or name another place.",
    errno.EPERM: "Change its permissions, or name another place.",
    errno.EROFS: "Name a place that can be written to.",
    errno.EEXIST: "Choose another name.",
    errno.ENOTDIR: "A part of the name is a file; choose another.",
    errno.EISDIR: "Name a file.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ELOOP: "Its symbolic links lead in a circle; name a place without them.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
    errno.ENFILE: "Close other programs; the machine has too many files open.",
    errno.EBUSY: "Another program uses it; end that one, or choose another name.",
    errno.EFBIG: "Raise the limit of a file's size (ulimit -f), or use a disk whose files may be larger.",
    errno.ENOMEM: "Use fewer --workers, or a machine with more memory.",
}


RAY_ENDED = "Ray, which shares the work out, was killed or ended on this machine."


class BuildError(Exception):
    """A build cannot go on: one sentence and a hint."""


class RayLostError(BuildError):
    """Ray itself is gone, with all its workers: what was seen of that, and what is done."""

    def __init__(self, sentence: str, done: str) -> None:
        super().__init__(f"{sentence} Run the same command again: it goes on with {done}.")


def os_error_sentence(error: OSError) -> str:
    """One sentence for a failure of the operating system, and a hint."""
    name = f" {str(error.filename)!r}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"No space left on the disk while writing{name}. Free some space, or choose --out on another disk."
    advice = _ADVICE.get(error.errno or 0, "Try again; if it stays, look at the disk and at the system's log.")
    return f"{(error.strerror or str(error)).rstrip('.')}:{name or ' (no file named)'}. {advice}"


def first_line(error: BaseException) -> str:
    """The first line of an error's text that is not empty, or the error's kind."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
