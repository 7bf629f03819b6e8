"""Room for answers in temporary files until their clients have read them. Thread-safe.

An account may take as much as remains for all others (Choudhury and Hahne, Dynamic Queue Length
Thresholds, 1998). So an account alone has half of the room, each of nine a tenth, and a newcomer
always finds some. The files take at most half of what their file system has free.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable

from metasched.errors import ApiError


def free_bytes() -> int:
    """Return the bytes that are free where temporary files are."""
    return shutil.disk_usage(tempfile.gettempdir()).free


class AnswerRoom:
    """Bytes of the files of all accounts."""

    def __init__(self, limit: int, find_free: Callable[[], int] = free_bytes) -> None:
        """`limit` bytes in all; `find_free` returns the free bytes of the file system."""
        self._limit, self._find_free = limit, find_free
        self._used: Counter[str] = Counter()  # bytes by account
        self._lock = threading.Lock()

    def take(self, user: str, size: int) -> None:
        """Take `size` bytes for a file of an account. ApiError if too few are left."""
        free = self._find_free()
        with self._lock:
            total = self._used.total()
            remaining = min(self._limit, total + free // 2) - total - size
            if self._used[user] + size > remaining:
                raise ApiError(
                    503,
                    "no room for the answer beside those that are still read, "
                    f"{tempfile.gettempdir()}; request pages by limit and cursor, or try later",
                )
            self._used[user] += size

    def give_back(self, user: str, size: int) -> None:
        """Give back bytes of a file that is closed."""
        with self._lock:
            self._used[user] -= size
            if self._used[user] <= 0:
                del self._used[user]
