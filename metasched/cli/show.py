"""Tables and times for users: by Rich on a terminal, plain and complete in a pipe."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_STYLES = {
    "running": "green",
    "completed": "dim",
    "failed": "red",
    "timeout": "red",
    "rejected": "red",
    "unknown": "yellow",
    "held": "yellow",
}
# columns that may wrap on a narrow terminal
_WRAPPING_COLUMNS = ("NAME", "NATIVE_ID", "REASON", "NOTE", "CLUSTER (REASON)")


def printable(value: object) -> str:
    """Replace control characters: values come from managers and other users."""
    text = "" if value is None else str(value)
    return "".join(character if character.isprintable() else "?" for character in text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their columns."""
    cells = [[printable(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich_table(columns, cells)
        return
    lines = [list(columns), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def _print_rich_table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print a table without its empty columns: a terminal is narrow."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rich_table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    used_columns = [i for i in range(len(columns)) if not cells or any(row[i] for row in cells)]
    for i in used_columns:
        rich_table.add_column(
            columns[i], overflow="fold", no_wrap=columns[i] not in _WRAPPING_COLUMNS
        )
    for row in cells:
        rich_table.add_row(*(Text(row[i], style=_STYLES.get(row[i], "")) for i in used_columns))
    Console().print(rich_table)


def format_time(timestamp: object) -> str:
    """Format a time of the API: unchanged in a pipe, short and local on a terminal."""
    if not isinstance(timestamp, str) or not sys.stdout.isatty():
        return printable(timestamp)
    from datetime import datetime

    local = datetime.fromisoformat(timestamp).astimezone()
    today = local.date() == datetime.now().astimezone().date()
    return local.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M")


def format_memory(mebibytes: int | None) -> str:
    """Format an amount of memory in MiB, with a unit; "" if it is unknown."""
    if mebibytes is None:
        return ""
    return f"{mebibytes}M" if mebibytes < 10240 else f"{mebibytes / 1024:.1f}G"
