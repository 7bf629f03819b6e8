"""Runs what asks a licence server: with a time limit, and no more output than makes sense."""

from __future__ import annotations

import os
from collections.abc import Sequence

from metasched.adapters.commands import Answer, run
from metasched.adapters.errors import Refused, Unreachable
from metasched.licence_servers.base import ProbeError

MOST = 2**23  # bytes; lmstat tells of ten thousand checkouts in one of them


def answer_of(command: Sequence[str], timeout: float) -> Answer:
    """The answer of a command, whatever its exit code; ProbeError if it gave none in time."""
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    try:
        return run(command, environment, timeout, most=MOST)
    except (Refused, Unreachable) as error:
        raise ProbeError(error.reason) from None
