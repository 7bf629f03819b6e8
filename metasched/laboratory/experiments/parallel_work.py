"""Several pieces of work at a time, each in a process of its own that ends with its parent."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from metasched.errors import UserError

Progress = Callable[[int], None]
Work = Callable[[Progress], Any]
STEPS = 1000  # of a message


class WorkFailed(UserError):
    """A piece of work ended without a result."""

    exit_code = 1


def run_at_once(works: Sequence[Work], progress: Progress | None = None) -> list[Any]:
    """Run the works and return their results, which pass through pipes.

    Each is called with a function to report steps. A UserError in a process is raised here, any
    other error as WorkFailed. Whatever is raised here (^C), no process stays.
    """
    # forked: the processes share the data that the parent has read
    context = get_context("fork")
    readers: list[Connection] = []
    processes = []
    results: list[Any] = [None] * len(works)
    try:
        for work in works:
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(work, writer), daemon=True)
            process.start()
            writer.close()
            readers.append(reader)
            processes.append(process)
        pending = list(readers)
        while pending:
            for ready in wait(pending):
                assert isinstance(ready, Connection)
                try:
                    kind, value = ready.recv()
                except EOFError:
                    raise WorkFailed(
                        "a process ended without a result; see whether memory was short, and take "
                        "a shorter period"
                    ) from None
                if kind == "error":
                    raise value
                if kind == "steps":
                    if progress is not None:
                        progress(value)
                    continue
                results[readers.index(ready)] = value
                pending.remove(ready)
    finally:
        for process in processes:
            process.terminate()
            process.join()
        for reader in readers:
            reader.close()
    return results


def _run(work: Work, writer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C also reaches this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that it removes what it has made
    gc.disable()  # no cycles are created; collection would take a third of the time
    steps = 0

    def report(count: int) -> None:
        nonlocal steps
        steps += count
        if steps >= STEPS:
            writer.send(("steps", steps))
            steps = 0

    try:
        message: tuple[str, Any] = ("result", work(report))
    except UserError as error:
        message = ("error", WorkFailed(str(error)))
    except Exception as error:
        message = ("error", WorkFailed(f"{type(error).__name__}: {error}; please report it"))
    if steps:
        writer.send(("steps", steps))
    writer.send(message)
