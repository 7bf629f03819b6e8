"""Samples of memory, files and sizes of a running daemon, its workers and its database."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from tests.load.site import LoadedSite

MIB = 2**20  # bytes


class Sample(msgspec.Struct, frozen=True):
    """What the daemon and its workers use at a moment."""

    seconds: float  # since the begin of the load
    daemon_memory: float  # MiB of PSS
    worker_memory: float  # MiB of PSS, of the largest worker
    daemon_files: int  # open files
    worker_files: int  # open files, of the worker with most
    database: float  # MiB
    wal: float  # MiB of the write-ahead log
    processor: float  # seconds of CPU of the daemon process since its start
    started: int  # payloads that have begun


def memory_of(pid: int) -> int:
    """Return bytes of PSS: shared pages are divided among the processes that share them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def files_of(pid: int) -> int:
    """Return the number of open files of a process."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


@dataclass
class Monitor:
    """Takes samples of a site."""

    loaded: LoadedSite
    begun: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Seconds since the begin of the load."""
        return time.monotonic() - self.begun

    @contextlib.contextmanager
    def sampling(self, interval: float) -> Iterator[None]:
        """Take a sample every `interval` seconds, also while faults strike and are repaired."""
        over = threading.Event()

        def sample() -> None:
            while True:
                self.take()
                if over.wait(interval):
                    return

        thread = threading.Thread(target=sample, name="samples", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def take(self) -> None:
        """Take a sample; none while the daemon is dead."""
        site = self.loaded.site
        with contextlib.suppress(psutil.Error, OSError, StopIteration):
            workers = [worker.pid for worker in site.workers]
            times = psutil.Process(site.pid).cpu_times()
            self.samples.append(
                Sample(
                    seconds=round(self.seconds, 1),
                    daemon_memory=_mebibytes(memory_of(site.pid)),
                    worker_memory=_mebibytes(max(map(memory_of, workers), default=0)),
                    daemon_files=files_of(site.pid),
                    worker_files=max(map(files_of, workers), default=0),
                    database=_mebibytes(site.database.stat().st_size),
                    wal=_mebibytes(Path(f"{site.database}-wal").stat().st_size),
                    processor=round(times.user + times.system, 2),
                    started=_lines(self.loaded.run_log),
                )
            )


def _mebibytes(size: int) -> float:
    return round(size / MIB, 2)


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(MIB), b""))
