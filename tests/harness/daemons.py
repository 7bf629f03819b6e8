"""Base class of the harnesses that boot real managers and servers in a folder."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.looks import looks
from tests.harness.reaper import Reaper, dying_with

_AS_USER = ("--user", "--map-current-user", "--keep-caps")  # not for root, which needs its groups
NAMESPACE = ("unshare", *(() if os.geteuid() == 0 else _AS_USER), "--net", "--")
HOST = ("unshare", "--net", "--mount", "--")  # with mounts of its own; for root
_BEGIN_SECONDS = 30.0


class BootError(Exception):
    """A daemon or a command of a harness failed; the text holds its output."""


class DaemonGroup(ABC):
    """Daemons in a folder of their own that live as long as the `with` block.

    A reaper starts all of them and kills those that are left. `prefix` is a command that replaces
    itself with the reaper, such as `NAMESPACE`.
    """

    def __init__(self, folder: Path, prefix: Sequence[str] = ()) -> None:
        self.folder, self._prefix = folder, prefix
        self._reaper_or_none: Reaper | None = None

    @abstractmethod
    def _boot(self) -> None:
        """Start everything and wait until it answers; folder and reaper exist."""

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "reaper.log"
        try:
            self._reaper_or_none = Reaper(log, self._prefix)
            wait_until(lambda: self._reaper.started, _BEGIN_SECONDS, "the reaper", log.read_text)
            self._boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process, jobs included. Idempotent."""
        reaper, self._reaper_or_none = self._reaper_or_none, None
        if reaper is not None:
            reaper.close()

    @property
    def _reaper(self) -> Reaper:
        if self._reaper_or_none is None:
            raise BootError(f"nothing runs in {self.folder}")
        return self._reaper_or_none

    def show(self, folder: Path, content: Path | None = None) -> None:
        """Show the folder `content`, or an empty one, in the place of another.

        Only for these daemons, which need mounts of their own: see `HOST`.
        """
        mount = ("-t", "tmpfs", "none") if content is None else ("--bind", str(content))
        enter = ("nsenter", "--mount", "--target", str(self._reaper.pid), "--")
        output_of([*enter, "mount", *mount, str(folder)], {"PATH": "/usr/bin:/bin"}, self.folder)

    @property
    def inside(self) -> tuple[str, ...]:
        """Prefix of a command that must reach the daemons."""
        if not self._prefix:
            return ()
        user = () if os.geteuid() == 0 else ("--preserve-credentials", "--user")
        return ("nsenter", *user, "--net", "--target", str(self._reaper.pid), "--")


def no_namespace() -> str | None:
    """Return why this host allows no network namespace, or None if it allows one."""
    completed = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    return (
        None if completed.returncode == 0 else f"no network namespace: {completed.stderr.strip()}"
    )


def output_of(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    stdin: str = "",
    seconds: float = 20.0,
) -> str:
    """Return the standard output of a command. Raises BootError if it fails or is too slow."""
    shown = " ".join(command)
    try:
        completed = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            preexec_fn=dying_with(os.getpid()),
        )
    except subprocess.TimeoutExpired:
        raise BootError(f"{shown}: no answer in {seconds:g} s") from None
    if completed.returncode != 0:
        output = f"{completed.stdout}{completed.stderr}".strip()
        raise BootError(f"{shown}: exit {completed.returncode}: {output}")
    return completed.stdout


def wait_until(
    condition: Callable[[], bool], seconds: float, subject: str, details: Callable[[], str]
) -> None:
    """Poll `condition`. Raises BootError with `details` if it is not met within `seconds`."""
    if not any(condition() for _ in looks(seconds)):
        raise BootError(f"{subject}: not so within {seconds:g} s\n{details()}")
