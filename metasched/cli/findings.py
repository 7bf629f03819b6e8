"""Findings of checks as a table, for `doctor`, `serve --check` and `reload`."""

from collections.abc import Mapping, Sequence
from typing import Any

from metasched.cli.show import print_table


def print_findings(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of `doctor --json`: the subject, the severity, the problem and its fix."""
    print_table(
        ("CHECK", "RESULT", "NOTE"),
        (
            (
                row["check"],
                row["severity"],
                row["text"] + (f"; {row['mend']}" if row["mend"] else ""),
            )
            for row in rows
        ),
    )
