"""Tables for people: by Rich on a terminal, plain and uncut in a pipe."""

import sys
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
_FOLDED = ("NAME", "NATIVE_ID", "REASON", "NOTE")  # may take several lines on a narrow terminal


def clean(value: object) -> str:
    """A value as text that cannot move the cursor: managers and other users wrote it."""
    text = "" if value is None else str(value)
    return "".join(c if c.isprintable() else "?" for c in text)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their columns."""
    cells = [[clean(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _pretty(columns, cells)
        return
    lines = [list(columns), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        print("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())


def _pretty(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Only the columns that hold something: a terminal is narrow."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, header_style="bold", pad_edge=False)
    filled = [i for i in range(len(columns)) if not cells or any(row[i] for row in cells)]
    for i in filled:
        shown.add_column(columns[i], overflow="fold", no_wrap=columns[i] not in _FOLDED)
    for row in cells:
        shown.add_row(*(Text(row[i], style=_STYLES.get(row[i], "")) for i in filled))
    Console().print(shown)


def moment(iso: object) -> str:
    """A time of the API: in a pipe as it is, on a terminal short and local."""
    if not isinstance(iso, str) or not sys.stdout.isatty():
        return clean(iso)
    from datetime import datetime

    local = datetime.fromisoformat(iso).astimezone()
    today = local.date() == datetime.now().astimezone().date()
    return local.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M")
