"""What the harnesses of real managers and servers share: booted in a folder, waited for, gone."""

from __future__ import annotations

import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.reaper import Guardian, dying_with

_AS_USER = ("--user", "--map-current-user", "--keep-caps")  # not root's: it needs its groups
NAMESPACE = ("unshare", *(() if os.geteuid() == 0 else _AS_USER), "--net", "--")
_BEGIN_SECONDS = 30.0


class BootError(Exception):
    """A daemon or a command of a harness failed; the text holds what it said."""


class Booted(ABC):
    """Daemons in a folder of their own that live as long as the `with` block.

    All are started by a guardian, which kills what is left of them; `before` are the words that
    replace themselves with it, such as `NAMESPACE`.
    """

    def __init__(self, folder: Path, before: Sequence[str] = ()) -> None:
        self.folder, self._before = folder, before
        self._running: Guardian | None = None

    @abstractmethod
    def _boot(self) -> None:
        """Start everything and wait until it answers; folder and guardian are there."""

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "guardian.log"
        try:
            self._running = Guardian(log, self._before)
            wait_until(lambda: self._guardian.begun, _BEGIN_SECONDS, "the guardian", log.read_text)
            self._boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process, jobs included. Idempotent."""
        guardian, self._running = self._running, None
        if guardian is not None:
            guardian.close()

    @property
    def _guardian(self) -> Guardian:
        if self._running is None:
            raise BootError(f"nothing runs in {self.folder}")
        return self._running

    @property
    def inside(self) -> tuple[str, ...]:
        """The words to put before a command that must reach the daemons."""
        if not self._before:
            return ()
        user = () if os.geteuid() == 0 else ("--preserve-credentials", "--user")
        return ("nsenter", *user, "--net", "--target", str(self._guardian.pid), "--")


def no_namespace() -> str | None:
    """Why there can be no network namespace here, or None if there can."""
    tried = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"no network namespace: {tried.stderr.strip()}"


def told_by(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    stdin: str = "",
    seconds: float = 20.0,
) -> str:
    """The standard output of a client command. BootError if it fails or is too slow."""
    shown = " ".join(command)
    try:
        done = subprocess.run(
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
    if done.returncode != 0:
        said = f"{done.stdout}{done.stderr}".strip()
        raise BootError(f"{shown}: exit {done.returncode}: {said}")
    return done.stdout


def wait_until(
    met: Callable[[], bool], seconds: float, what: str, story: Callable[[], str]
) -> None:
    """BootError with the `story`, if it is not so within `seconds`."""
    end = time.monotonic() + seconds
    while not met():
        if time.monotonic() > end:
            raise BootError(f"{what}: not so within {seconds:g} s\n{story()}")
        time.sleep(0.02)
