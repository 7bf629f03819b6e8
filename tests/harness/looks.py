"""When a test that waits looks again: often at first, then rarely, since looks load the host."""

from __future__ import annotations

import time
from collections.abc import Iterator


def looks(seconds: float, *, shortest: float = 0.02, longest: float = 0.2) -> Iterator[None]:
    """Yield for each look, at least once, until `seconds` have passed.

    A pause takes a twentieth of the time so far, within `shortest` and `longest` (seconds).
    """
    begun = time.monotonic()
    while True:
        yield
        waited = time.monotonic() - begun
        if waited > seconds:
            return
        time.sleep(min(max(waited / 20, shortest), longest))
