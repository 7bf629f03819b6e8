"""Fair share over two real Slurm clusters in site mode: a backlog of two users, and what started.

`python -m tests.e2e.fair_share 540` runs the long form as root, and prints its figures as JSON.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.e2e.multi_user_site import MultiUserSite, running_site, slurm_tables
from tests.harness.accounts import A, B
from tests.harness.slurm import ClusterSpec, SlurmCluster, SlurmSite

HALF_LIFE = 600.0  # seconds
WEIGHTS = {A: 2, B: 1}
QUEUE_DEPTH = 24  # tasks of both users that wait on a cluster
MULTIFACTOR = (
    "PriorityType=priority/multifactor",
    "PriorityWeightAge=1000",
    "PriorityMaxAge=0-00:10",
    "PriorityWeightFairshare=10",
    "PriorityDecayHalfLife=0-00:10",
    "PriorityCalcPeriod=1",
)
SPECS = (
    ClusterSpec("alpha", "a", nodes=2, cpus=4, settings=MULTIFACTOR),
    ClusterSpec("beta", "b", nodes=1, cpus=8, settings=MULTIFACTOR),
)
ESTIMATE = 5  # seconds that each task may take, and is charged until it ends
FAIR_SHARE = f'[fair_share]\nhalf_life = {HALF_LIFE:.0f}\ninterval = 1\nshares_from = "alpha"\n'


@dataclass
class SharedSite:
    """A running site over two Slurm clusters that report to one slurmdbd."""

    site: MultiUserSite
    slurm: SlurmSite

    def submit_backlog(self, tasks: int, seconds: int = 1) -> dict[str, int]:
        """Submit an array for each user while nothing is dispatched; return the jobs.

        Each of the `tasks` of an array runs for `seconds`.
        """
        for cluster in self.slurm:
            self.site.run("cluster", "drain", cluster.name)
        jobs = {
            user: self.site.by(user).submit(
                *("--array", f"1-{tasks}", "-t", f"0:{ESTIMATE:02}", "-o", "/dev/null"),
                *("--wrap", f"sleep {seconds}"),
            )
            for user in WEIGHTS
        }
        for cluster in self.slurm:
            self.site.run("cluster", "resume", cluster.name)
        return jobs

    def _select(self, query: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(f"file:{self.site.database}?mode=ro", uri=True)) as database:
            return database.execute(query, values).fetchall()

    def _count(self, jobs: Mapping[str, int], condition: str, values: int = 1) -> dict[str, float]:
        """Return a count or sum over the attempts of each user's job, in one transaction."""
        query = f"SELECT job, {condition} FROM attempt WHERE job IN (?, ?) GROUP BY job"
        users = {job: user for user, job in jobs.items()}
        rows = self._select(query, *list(users) * values)
        return dict.fromkeys(jobs, 0.0) | {users[job]: value or 0.0 for job, value in rows}

    def started(self, jobs: Mapping[str, int]) -> dict[str, float]:
        """Return the number of tasks that have started."""
        return self._count(jobs, "count(started)")

    def dispatched(self, jobs: Mapping[str, int]) -> dict[str, float]:
        """Return the number of tasks whose dispatch has been decided."""
        return self._count(jobs, "count(*)")

    def dispatched_first(self, jobs: Mapping[str, int]) -> dict[str, float]:
        """Return the number of tasks that the first step dispatched: all on one cluster."""
        first = "SELECT min(dispatched) FROM attempt WHERE job IN (?, ?)"
        return self._count(jobs, f"sum(dispatched = ({first}))", values=2)

    def work(self, jobs: Mapping[str, int]) -> dict[str, float]:
        """Return the processor-seconds of tasks that have ended."""
        return self._count(jobs, "total(ended - started)")

    def await_sum(
        self,
        count: Callable[[Mapping[str, int]], dict[str, float]],
        jobs: Mapping[str, int],
        number: int,
    ) -> dict[str, float]:
        """Wait until `count` of the jobs has this sum; return the first such counts."""

        def enough() -> dict[str, float] | None:
            counts = count(jobs)
            return counts if sum(counts.values()) >= number else None

        counts: dict[str, float] = self.site.until(enough, patience=60.0 + number)
        return counts

    def cancel(self, jobs: Mapping[str, int]) -> None:
        """Cancel what is left of the jobs, and wait until it has ended."""
        self.site.run("cancel", *map(str, jobs.values()))
        self.site.until_ended(*jobs.values())

    def has_shares(self) -> bool:
        """Return whether the tree of shares has been read from slurmdbd."""
        return bool(self._select("SELECT 1 FROM share_tree"))

    def counted_use(self, user: str) -> float:
        """Return the stored use of a user in processor-seconds."""
        [[used]] = self._select("SELECT total(used) FROM share_use WHERE user = ?", user)
        return float(used)

    def run_native(self, user: str, processor_seconds: float) -> None:
        """Let jobs that metasched did not send run until so much of their use is counted.

        One runs on all processors of each cluster, so that this takes half as long.
        """
        before = self.counted_use(user)
        command = ("sbatch", f"--uid={user}", "-n8", "-o", "/dev/null", "-D", "/")
        for cluster in self.slurm:
            cluster.run(*command, "--wrap", "sleep 600")
        self.site.until(lambda: self.counted_use(user) >= before + processor_seconds)
        for cluster in self.slurm:
            cluster.run("scancel", "--user", user)
            self.site.until(partial(_is_empty, cluster))


def _is_empty(cluster: SlurmCluster) -> bool:
    return cluster.run("squeue", "-h", "-o", "%i").strip() == ""


@contextmanager
def shared_site(folder: Path) -> Iterator[SharedSite]:
    """Boot both clusters with slurmdbd, and run a site over them."""
    with SlurmSite(folder / "slurm", SPECS, accounting=True) as slurm:
        slurm["alpha"].run("sacctmgr", "-i", "add", "account", "project")
        for user, weight in WEIGHTS.items():
            share = ("account=project", f"share={weight}")
            slurm["alpha"].run("sacctmgr", "-i", "add", "user", user, *share)
        options = f'settle = 0.5\nqueue_depth = {QUEUE_DEPTH}\nmap.account = {{ "*" = "*" }}\n'
        tables = [slurm_tables(cluster, options) for cluster in slurm]
        clusters = "".join(table for table, _ in tables) + FAIR_SHARE
        programs = "".join(program for _, program in tables)
        inside = slurm["alpha"].inside
        with running_site(folder / "site", clusters, programs, inside=inside) as site:
            shared = SharedSite(site, slurm)
            site.until(shared.has_shares)
            yield shared


def measure(starts: int) -> dict[str, object]:
    """Run a backlog until `starts` tasks have started; return the figures."""
    with tempfile.TemporaryDirectory(prefix="metasched-") as name:
        Path(name).chmod(0o755)
        with shared_site(Path(name)) as shared:
            jobs = shared.submit_backlog(starts, seconds=3)
            began = time.monotonic()
            counts = shared.await_sum(shared.started, jobs, starts)
            seconds, work = time.monotonic() - began, shared.work(jobs)
            shared.cancel(jobs)
            shared.site.stop()
            shared.site.replayed()
    entitled = WEIGHTS[A] / sum(WEIGHTS.values())
    return {
        "half_life_seconds": HALF_LIFE,
        "started": {user: int(count) for user, count in counts.items()},
        "processor_seconds": {user: round(used, 1) for user, used in work.items()},
        "share_of_starts": round(counts[A] / sum(counts.values()), 4),
        "share_of_work": round(work[A] / sum(work.values()), 4),
        "entitled": round(entitled, 4),
        "seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 540), indent=1))
