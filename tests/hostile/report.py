"""Rows of the contests: stored as JSON, and rendered into docs/reliability.md.

`python -m tests.hostile.report` renders the page from the stored rows.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.hostile.attacks import attacks_on
from tests.hostile.contest import MAX_RATIO, RANDOM, STARTS, Result
from tests.hostile.sites import SITES

DOCS = Path(__file__).parents[2] / "docs"
PAGE, STORE = DOCS / "reliability.md", DOCS / "reliability-attacks.json"
TITLE = "## Attacks"
_TITLES = {"local": "local clusters", "slurm": "Slurm", "gridengine": "Grid Engine"}
_ABOUT = f"""\
Account b submits short jobs in site mode, ten at a time, while account a attacks (`tests/hostile`).
In the control a loads the bare manager as often: a could always do that. A delay is the time from a
submission of b to the first line of its payload, for at least {STARTS} starts. Neither the median
nor the worst delay may be more than {MAX_RATIO:g} times that of the control.

Most delays are below a second, so a pause of the host can exceed that ratio by chance. A row that
exceeds it is played again with twice as many starts, and the second play counts. No absolute
difference is tolerated. *Lost* counts jobs of b that were lost, failed or started twice, and
requests that failed, in all plays. *Load* is that of the host at the end of the row. Above its
number of cores other programs ran: all delays are longer then, which hides smaller effects.
`make chaos` repeats the table, and fails if a row violates it.
"""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """An attack on a kind of site; pairs are those of the attack and of its control."""

    kind: str  # a key of SITES
    attack: str
    seed: str
    starts: int  # of jobs of b, in the attack
    strikes: tuple[int, int]
    median: tuple[float, float]  # seconds from submission to start
    worst: tuple[float, float]  # seconds from submission to start
    harm: list[str]
    plays: int = 1
    load: float = 0.0  # mean number of runnable processes in the last minute
    date: str = ""  # ISO, UTC

    @classmethod
    def of(cls, result: Result, plays: int, harm: list[str]) -> Row:
        attacked, control = result.attacked, result.control
        return cls(
            kind=result.site_name,
            attack=result.attack,
            seed=result.seed,
            starts=len(attacked.delays),
            strikes=(attacked.strikes, control.strikes),
            median=(round(attacked.median, 3), round(control.median, 3)),
            worst=(round(attacked.worst, 3), round(control.worst, 3)),
            harm=harm,
            plays=plays,
            load=round(os.getloadavg()[0], 1),
            date=time.strftime("%Y-%m-%d", time.gmtime()),
        )


def stored_rows() -> list[Row]:
    """Return the stored rows, by site and attack."""
    rows = msgspec.json.decode(STORE.read_bytes(), type=list[Row]) if STORE.exists() else []
    order = [(kind, name) for kind in SITES for name in attack_names(kind)]
    return sorted(
        (row for row in rows if (row.kind, row.attack) in order),
        key=lambda row: order.index((row.kind, row.attack)),
    )


def attack_names(kind: str) -> list[str]:
    """Return the names of the rows of a kind of site."""
    return [*(attack.name for attack in attacks_on(kind)), RANDOM]


def store(row: Row) -> None:
    """Store a row, in the place of an earlier one, and render the page."""
    other_rows = [old for old in stored_rows() if (old.kind, old.attack) != (row.kind, row.attack)]
    STORE.write_bytes(
        msgspec.json.format(msgspec.json.encode([*other_rows, row]), indent=1) + b"\n"
    )
    PAGE.write_text(page_with_attacks(PAGE.read_text()))


def page_with_attacks(page: str) -> str:
    """Return the page with its section of attacks replaced, or added before the track record."""
    section = "\n".join([TITLE, "", _ABOUT, *_table()])
    rest = re.sub(rf"^{TITLE}\n.*?(?=^## |\Z)", "", page, flags=re.MULTILINE | re.DOTALL)
    before, heading, after = rest.partition("\n## ")
    return f"{before.rstrip()}\n\n{section}\n{heading}{after}"


def _table() -> Iterator[str]:
    yield (
        "| site | attack | strikes | starts | median: attacked, control | worst: attacked, control "
        "| ratios | lost | load |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|"
    for row in stored_rows():
        again = f" (play {row.plays})" if row.plays > 1 else ""
        yield (
            f"| {_TITLES[row.kind]} | {row.attack} | {row.strikes[0]} | {row.starts}{again} "
            f"| {row.median[0]:.2f} s, {row.median[1]:.2f} s "
            f"| {row.worst[0]:.2f} s, {row.worst[1]:.2f} s "
            f"| {row.median[0] / row.median[1]:.2f}, {row.worst[0] / row.worst[1]:.2f} "
            f"| {len(row.harm)} | {row.load:g} |"
        )


if __name__ == "__main__":
    PAGE.write_text(page_with_attacks(PAGE.read_text()))
