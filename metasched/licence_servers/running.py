"""Runs what asks a licence server: with a time limit, and no more output than makes sense."""

from __future__ import annotations

import os
from collections.abc import Sequence

from metasched.adapters.commands import CommandResult, run_command
from metasched.adapters.errors import Refused, Unreachable
from metasched.licence_servers.base import LicenceServerError

MAX_OUTPUT_BYTES = 2**23  # bytes; lmstat tells of ten thousand checkouts in one of them


def query_command(command: Sequence[str], timeout: float) -> CommandResult:
    """The answer of a command, whatever its exit code; ProbeError if it gave none in time."""
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    try:
        return run_command(command, environment, timeout, max_output=MAX_OUTPUT_BYTES)
    except (Refused, Unreachable) as error:
        raise LicenceServerError(error.reason) from None
