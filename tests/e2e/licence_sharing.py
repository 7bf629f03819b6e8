"""One licence shared by two real Slurm clusters and a real Grid Engine cell.

Each job records when it starts and stops using its tokens. The token use is computed from these
records alone, not from the state of the daemon or the managers.
"""

from __future__ import annotations

import itertools
import random
import signal
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from tests.e2e.conftest import Site
from tests.harness.gridengine import Cell
from tests.harness.slurm import SlurmSite

TOTAL = 4
LICENCE = f'[[licence]]\nname = "solver"\ntotal = {TOTAL}\n'  # no manager counts it
WANTS = (1, 2, 3) * 8
POLL = 0.5  # seconds


@dataclass(frozen=True)
class Use:
    """Token use of the 24 jobs.

    `most` is the largest number of tokens in use at once. `share` is the used part of the
    token-seconds between the first start and the last dispatch. `seconds` is the time from the
    first start to the last end.
    """

    most: int
    share: float
    seconds: float
    completed: int
    begun: int
    clusters: frozenset[str]


class Sharing:
    """A running site whose three clusters share the licence."""

    def __init__(self, site: Site, slurm: SlurmSite, cell: Cell) -> None:
        self.site = site
        self._samples = site.folder / "samples"
        for manager in (*slurm, cell):
            manager.empty()
        python = cell.python(site.folder / "python")
        polled = f"poll_interval = {POLL}\n"
        tables = [c.table(polled) for c in slurm]
        site.configure("".join(tables) + cell.table(python, f"{polled}settle = 1\n"), LICENCE)
        site.start()

    def run(self, seconds: float, kills: int, only: Sequence[str] = ("",)) -> Use:
        """Run a job of `seconds` for each of `WANTS`; kill the daemon `kills` times meanwhile.

        Jobs are bound to the clusters of `only` in turn; "" means any cluster.
        """
        drawn = random.Random(5)
        sizes = drawn.sample(WANTS, len(WANTS))
        for tokens, cluster in zip(sizes, itertools.cycle(only), strict=False):
            self.site.submit(
                *(("--cluster", cluster) if cluster else ()),
                *("-L", f"solver:{tokens}", "-t", "2", "-o", "/dev/null", "--wrap"),
                f"echo $(date +%s.%N) {tokens} >> {self._samples}; sleep {seconds:g}; "
                f"echo $(date +%s.%N) -{tokens} >> {self._samples}",
            )
        for kill in range(1, kills + 1):
            begun = kill * (len(sizes) - 2) // kills
            self.site.until(lambda least=begun: self._begun() >= least, 300)  # type: ignore[misc]
            self.site.stop(signal.SIGKILL)
            self.site.start()
        rows = self.site.until_ended(patience=300)
        return self._use(rows)

    def _begun(self) -> int:
        return sum(change > 0 for _, change in self._changes())

    def _changes(self) -> list[tuple[float, int]]:
        """Return (time, change of tokens in use), sorted; at equal times ends come first."""
        if not self._samples.exists():
            return []
        lines = [line.split() for line in self._samples.read_text().splitlines()]
        return sorted((float(moment), int(change)) for moment, change in lines)

    def _use(self, rows: list[dict[str, object]]) -> Use:
        with closing(sqlite3.connect(self.site.database)) as reading:
            (last,) = reading.execute("SELECT max(dispatched) FROM attempt").fetchone()
        changes = self._changes()
        first, used, most, area, before = changes[0][0], 0, 0, 0.0, changes[0][0]
        for moment, change in changes:
            area += used * max(min(moment, last) - before, 0.0)
            before = max(before, min(moment, last))
            used += change
            most = max(most, used)
        return Use(
            most=most,
            share=area / (TOTAL * (last - first)),
            seconds=changes[-1][0] - first,
            completed=sum(row["state"] == "completed" for row in rows),
            begun=self._begun(),
            clusters=frozenset(str(row["cluster"]) for row in rows),
        )
