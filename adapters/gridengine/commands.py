"""Runs Grid Engine's commands for a cell, with a time limit, and parses their answers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from metasched.adapters.gridengine import listing
from metasched.adapters.gridengine.cell_files import qmaster_address
from metasched.adapters.launcher_client import LauncherClient, remaining_seconds
from metasched.model.adapter_errors import Unreachable
from metasched.processes.commands import CommandResult, run_command

IDS_PER_COMMAND = 500  # job or reservation ids in the arguments of a command

_QPING_SECONDS = 3.0  # a qmaster answers at once: its other threads may be busy

T = TypeVar("T")

_COMMANDS = {
    "cancel": ("qdel",),
    "hold": ("qhold", "-h", "u"),
    "release": ("qrls", "-h", "u"),
}


class CellCommands:
    """Runs commands as this account, or through the launcher as the owner of jobs."""

    def __init__(
        self, bin_dir: str | None, timeout: float, launcher: LauncherClient | None
    ) -> None:
        self._bin_dir, self._timeout, self._launcher = bin_dir, timeout, launcher
        self._environment = {
            **{name: value for name, value in os.environ.items() if name.startswith("SGE_")},
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
        }

    def run(self, program: str, *arguments: str, at_most: float = math.inf) -> CommandResult:
        """Run a command as this account, for `at_most` seconds if that is less than the limit."""
        path = os.path.join(self._bin_dir, program) if self._bin_dir else program
        timeout = min(remaining_seconds(self._timeout), at_most)
        return run_command([path, *arguments], self._environment, timeout)

    def run_as_owner(self, user: str, verb: str, ids: str) -> CommandResult:
        """Run a command that changes jobs, as their owner in site mode."""
        if self._launcher is None:
            return self.run(*_COMMANDS[verb], ids)
        return self._launcher.run(user, verb, (ids,), self._timeout)

    def query(
        self, parse: Callable[[str], T], program: str, *arguments: str, partial: bool = False
    ) -> T:
        """Run a command and parse its answer; `partial` accepts one with a non-zero exit code.

        Raises Unreachable if the command fails or its answer cannot be parsed.
        """
        answer = self.run(program, *arguments)
        if answer.exit_code != 0 and not (partial and answer.stdout):
            raise Unreachable(f"{program}: {answer.error_message}")
        try:
            return parse(answer.stdout)
        except (ValueError, KeyError, OverflowError) as error:
            raise Unreachable(f"{program}: the answer cannot be read: {error}") from None

    def qmaster_times(self) -> tuple[float, float] | None:
        """Return the qmaster's start and time, in whole epoch seconds of its own clock.

        None if it does not tell: a cell may lack qping, which asks for ever where it may not ask.
        """
        if (address := qmaster_address(os.environ)) is None:
            return None
        try:
            answer = self.run("qping", "-info", *address, "qmaster", "1", at_most=_QPING_SECONDS)
            return listing.parse_qmaster_times(answer.stdout)
        except (Unreachable, ValueError):
            return None

    def list_jobs(self, user: str) -> listing.QstatListing:
        """List the jobs of a user, or of all users for `*`."""
        return self.query(listing.parse_jobs, "qstat", "-xml", "-r", "-u", user)

    def submissions(self, ids: Sequence[str]) -> dict[str, float]:
        """Return the times of submission of jobs by their ids, as far as the jobs exist."""
        times: dict[str, float] = {}
        for id_list in id_lists(ids):
            # an unknown id changes the form of the answer
            with suppress(Unreachable):
                times |= self.query(listing.parse_submissions, "qstat", "-xml", "-j", id_list)
        return times

    def list_hosts(self) -> list[listing.ExecutionHost]:
        """List the execution hosts with their queues and free consumables."""
        return self.query(listing.parse_hosts, "qhost", "-xml", "-q", "-F")


def id_lists(ids: Sequence[str]) -> list[str]:
    """Return the ids as comma-separated lists, none too long for a command line."""
    starts = range(0, len(ids), IDS_PER_COMMAND)
    return [",".join(ids[first : first + IDS_PER_COMMAND]) for first in starts]


def one_line(message: str) -> str:
    """Join the lines of a command's message."""
    return "; ".join(line.strip() for line in message.splitlines() if line.strip())[:500]
