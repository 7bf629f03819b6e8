"""Opening of files whose paths others chose: only regular files are opened."""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False  # as that of typing, which is slow to load
if TYPE_CHECKING:
    from typing import BinaryIO


class NotRegularError(OSError):
    """The path leads to a directory, a FIFO, a device or a socket."""


def open_regular(path: str) -> BinaryIO:
    """Open a regular file for reading. NotRegularError, an OSError, for other files.

    The owner of a job chose the path, and another may look: to open a FIFO would block, and to open
    a device would have effects. So the file is opened once it is known to be neither.
    """
    descriptor = os.open(path, os.O_PATH)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotRegularError(errno.EINVAL, "not a regular file", path)
        return open(f"/proc/self/fd/{descriptor}", "rb")
    finally:
        os.close(descriptor)
