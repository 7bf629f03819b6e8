"""A progress bar for long commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class ProgressCallback(Protocol):
    def __call__(self, steps: int, /) -> None: ...


@contextmanager
def progress_bar(label: str, total: int, every: int = 1) -> Iterator[ProgressCallback | None]:
    """Show a progress bar on a terminal, nothing in a pipe; redraw it after `every` steps."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    with Progress(
        *Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True)
    ) as progress:
        task = progress.add_task(label, total=total)
        pending = 0

        def advance(steps: int) -> None:
            nonlocal pending
            pending += steps
            if pending >= every:
                progress.advance(task, pending)
                pending = 0

        yield advance
        progress.advance(task, pending)
