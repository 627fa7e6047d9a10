"""Files of a datastore in another one's folder: the same bytes on the disk where it can be, else a copy.

Both are safe because nothing ever writes into a datastore's file: what changes is a new file that is renamed over it.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES}


Link = Callable[[Path, Path], None]


def share_files(source: Path, target: Path, names: Sequence[str], link: Link = os.link) -> int:
    """Makes files of one folder appear in another, made here if need be; returns the bytes that had to be copied.

    Args:
        source: their folder.
        target: the other.
        names: theirs, in both.
        link: makes a file known under a second name.

    Raises:
        OSError: a file cannot be made.
    """
    target.mkdir(exist_ok=True)
    copied = 0
    for name in names:
        # A link to a symbolic link would follow whatever becomes of that.
        place = (source / name).resolve()
        try:
            link(place, target / name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            shutil.copyfile(place, target / name)
            copied += (target / name).stat().st_size
    return copied
