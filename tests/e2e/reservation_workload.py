"""Reservations among batch jobs on real clusters while daemon and controller are killed.

The results are read from the listings and accounting of the managers, not from metasched.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec import to_builtins

from metasched.client.client import Client
from metasched.client.connection import PermissionDenied
from metasched.client.schemas import JobRequest, SubmitRequest
from metasched.client.site_answers import ReservationRow
from metasched.model.host_lists import expand_hosts
from tests.e2e.conftest import ENDED, Site
from tests.e2e.reservable_clusters import cores
from tests.harness.daemons import BootError
from tests.harness.gridengine import Cell
from tests.harness.slurm import SlurmCluster, SlurmSite

ENVIRONMENT = dict(os.environ)
SCRIPTS = {"inside": "#!/bin/sh\nsleep 5\n", "batch": "#!/bin/sh\nsleep 2\n"}
LOOK_EVERY = 2.0  # seconds between two listings of each Slurm cluster


@dataclass(frozen=True)
class Stay:
    """Nodes or cores of a job in a Slurm cluster from `start` to `end` (epoch seconds)."""

    resources: frozenset[str]
    start: float
    end: float


@dataclass(frozen=True)
class WorkloadResult:
    """Results of the workload.

    `late` has the seconds from each window's start to its job's start. `strangers` has the pairs
    (reservation, job) that shared a node or core. `moved` has the reservations whose node was
    drained. `left` has the reservations that a manager still listed at the end. A killed controller
    forgets its last starts and ends: it reports `batch_lost` batch jobs as timed out or cancelled.
    """

    promised: int
    refused: int
    late: dict[int, float]
    strangers: list[tuple[int, str]]
    moved: dict[int, bool]
    leftover: list[str]
    batch_completed: int
    batch_lost: int


class Promises:
    """A running site over Slurm clusters and, optionally, a Grid Engine cell.

    Slurm clusters in `by_processor` reserve processors, the others reserve nodes.
    """

    def __init__(
        self,
        site: Site,
        slurm: SlurmSite,
        cell: Cell | None = None,
        by_processor: Collection[str] = (),
    ) -> None:
        self.site, self.slurm, self.cell, self._by_processor = site, slurm, cell, by_processor
        # Claims prove that an uncertain attempt never began. A killed controller forgets its last
        # jobs, and the accounting of a new cell proves nothing before its first record.
        claims = site.folder / "claims"
        claims.mkdir(mode=0o700)
        tables = [
            c.table(
                f'poll_interval = 1\nsettle = 1\nfence_dir = "{claims}"\n'
                f'reservation_unit = "{"processor" if c.name in by_processor else "node"}"\n'
            )
            for c in slurm
        ]
        if cell is not None:
            python = cell.python(site.folder / "python")
            claimed = f'fence_dir = "{claims}"\n'
            tables.append(cell.table(python, f"poll_interval = 1\nsettle = 1\n{claimed}"))
        site.configure("".join(tables))
        begun = time.monotonic()
        site.start()
        self.start_seconds = time.monotonic() - begun  # of the daemon: how busy the host is
        self.client = Client(site.folder / "ms.sock", timeout=120)
        self.stays: dict[tuple[str, str], Stay] = {}
        self._over = threading.Event()
        self._killed: SlurmCluster | None = None

    def run(
        self, requests: Sequence[tuple[str, int, float]], lasts: float, batch: int
    ) -> WorkloadResult:
        """Reserve each (cluster, units, seconds from now) for `lasts` seconds; submit `batch` jobs.

        Before the first start, the first reservation is cancelled, and a node of the last
        reservation on the first Slurm cluster is drained. A controller and the daemon are killed.
        """
        now = time.time()
        watch = threading.Thread(target=self._watch)
        watch.start()
        try:
            promised, refused = {}, 0
            for cluster, units, start in requests:
                row = self._reserve(cluster, units, now + start, lasts)
                refused += row is None
                if row is not None:
                    promised[row["reservation"]] = row
            batches = [self._submit(5, cpus=1 + n % 4) for n in range(batch // 5)]
            inside = {
                id: self._submit(
                    1, reservation=id, cpus=1, tasks=row["size"], script="inside", limit=None
                )[0]
                for id, row in promised.items()
            }
            cancelled = min(promised)
            self.client.cancel_reservation(cancelled)
            drained = self._drain_one(promised)
            self._kill_both()
            moved = {drained[0]: self._is_moved(*drained)}
            jobs = [job for id, job in inside.items() if id != cancelled]
            rows = {r["job"]: r for r in self.site.until_ended(*jobs, patience=600)}
            self.site.until(lambda: self._settled([j for jobs in batches for j in jobs]), 120.0)
        finally:
            self._over.set()
            watch.join()
        self.site.run("cancel", str(inside[cancelled]))
        for id in promised:
            self.client.cancel_reservation(id)
        late, strangers = {}, []
        for id, row in promised.items():
            if id != cancelled and (actual := self._began(row["cluster"], rows[inside[id]])):
                begun, neighbours = actual
                late[id] = begun - datetime.fromisoformat(row["start"]).timestamp()
                strangers += [(id, other) for other in neighbours]
        ended = [row for jobs in batches for row in self.site.rows(*jobs)]
        completed = sum(row["state"] == "completed" for row in ended)
        killed = list(self.slurm)[-1].name
        lost = sum(r["state"] != "completed" and r["cluster"] == killed for r in ended)
        self.site.until(lambda: not self._leftover())
        return WorkloadResult(
            len(promised) - 1, refused, late, strangers, moved, self._leftover(), completed, lost
        )

    def _submit(
        self,
        count: int,
        *,
        script: str = "batch",
        cpus: int,
        tasks: int = 1,
        limit: float | None = 60.0,
        reservation: int | None = None,
    ) -> list[int]:
        request = JobRequest(
            script=script,
            environment="e",
            directory=str(self.site.folder),
            output="/dev/null",
            time_limit=limit,
            tasks=tasks,
            cpus_per_task=cpus,
            reservation=reservation,
        )
        submission = SubmitRequest(
            jobs=(request,) * count,
            scripts={script: SCRIPTS[script]},
            environments={"e": ENVIRONMENT},
        )
        answers = self.client.submit(to_builtins(submission))
        return [answer["job"] for answer in answers if answer["job"] is not None]

    def _reserve(
        self, cluster: str, units: int, start: float, lasts: float
    ) -> ReservationRow | None:
        request = {
            "least": units,
            "most": units,
            "shortest": lasts,
            "longest": lasts,
            "ready": start,
            "deadline": start + lasts,
            "clusters": [cluster],
            "by_node": cluster not in {self.cell and self.cell.name, *self._by_processor},
        }
        try:
            return self.client.reserve(request)
        except PermissionDenied:
            return None

    def _settled(self, jobs: Sequence[int]) -> bool:
        """Return whether all jobs have ended, or are unknown where the controller was killed."""
        forgetful = list(self.slurm)[-1].name
        return all(
            row["state"] in ENDED or (row["state"] == "unknown" and row["cluster"] == forgetful)
            for row in self.site.rows(*jobs)
        )

    # Faults during the run

    def _drain_one(self, promised: dict[int, ReservationRow]) -> tuple[int, SlurmCluster, str]:
        first = next(iter(self.slurm))
        id = max(id for id, row in promised.items() if row["cluster"] == first.name)
        [row] = [r for r in self.client.reservations() if r["reservation"] == id]
        node = row["nodes"][0]
        first.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
        return id, first, node

    def _kill_both(self) -> None:
        last = list(self.slurm)[-1]
        jobs, now = last.folder / "state" / "job_state", time.time()
        self.site.until(lambda: jobs.exists() and jobs.stat().st_mtime > now)
        last.kill_controller()
        self.site.stop(signal.SIGKILL)
        last.start_controller(wait=False)
        self._killed = last
        self.site.start()

    def _is_moved(self, id: int, cluster: SlurmCluster, node: str) -> bool:
        """Wait until the manager has other nodes for the reservation; resume the node."""

        def elsewhere() -> bool:
            output = cluster.run("scontrol", "--oneliner", "show", "reservation")
            match = re.search(rf"ReservationName=\S+-r{id} .*? Nodes=(\S+)", output)
            return match is not None and node not in expand_hosts(match[1])

        self.site.until(elsewhere)
        cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        return True

    # Data of the managers

    def _watch(self) -> None:
        while not self._over.wait(LOOK_EVERY):
            self._look()
        self._look()

    def _look(self) -> None:
        if self._killed is not None:
            self._put_back(self._killed)
        for cluster in self.slurm:
            observe = self._on_cores if cluster.name in self._by_processor else self._on_nodes
            try:
                stays = observe(cluster)
            except BootError:  # it has just been killed
                continue
            self.stays |= {(cluster.name, id): stay for id, stay in stays.items()}

    @staticmethod
    def _put_back(cluster: SlurmCluster) -> None:
        """Resume nodes that were drained for a duplicate job id, as an admin does.

        A restarted controller starts unsaved jobs again and drains nodes where they still run.
        """
        with contextlib.suppress(BootError):
            for line in cluster.run("sinfo", "-h", "-N", "-o", "%N %E").splitlines():
                node, _, reason = line.partition(" ")
                if "Duplicate jobid" in reason:
                    cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def _on_nodes(self, cluster: SlurmCluster) -> dict[str, Stay]:
        uses = {}
        output = cluster.run("squeue", "-h", "--states=all", "-o", "%i %N %S %e")
        for line in output.splitlines():
            fields = line.split()
            if len(fields) == 4 and fields[2] != "N/A":
                start, end = (datetime.fromisoformat(w).timestamp() for w in fields[2:])
                uses[fields[0]] = Stay(frozenset(expand_hosts(fields[1])), start, end)
        return uses

    def _on_cores(self, cluster: SlurmCluster) -> dict[str, Stay]:
        uses = {}
        output = cluster.run("scontrol", "-d", "-o", "show", "job", SLURM_TIME_FORMAT="%s")
        for line in output.splitlines():
            resources = {f"{node}/{n}" for node, numbers in cores(line).items() for n in numbers}
            values = dict(re.findall(r"\b(JobId|StartTime|EndTime)=(\d+)", line))
            if resources and len(values) == 3:
                window = float(values["StartTime"]), float(values["EndTime"])
                uses[values["JobId"]] = Stay(frozenset(resources), *window)
        return uses

    def _began(self, cluster: str, row: dict[str, Any]) -> tuple[float, list[str]] | None:
        """Return a job's start and the other jobs on its nodes; None if it never started."""
        native = str(row["native_id"])
        if self.cell is not None and cluster == self.cell.name:
            output = self.cell.run("qacct", "-j", native)
            assert re.search(r"^arid +[1-9]", output, re.MULTILINE), output
            return datetime.fromisoformat(row["started"]).timestamp(), []
        stay = self.stays.get((cluster, native))
        if stay is None:
            return None
        neighbours = [
            id
            for (name, id), other in self.stays.items()
            if (name, id) != (cluster, native)
            and name == cluster
            and other.resources & stay.resources
            and other.start < stay.end
            and stay.start < other.end
        ]
        return stay.start, neighbours

    def _leftover(self) -> list[str]:
        names = []
        for cluster in self.slurm:
            output = cluster.run("scontrol", "--oneliner", "show", "reservation")
            names += re.findall(r"ReservationName=(\S+)", output)
        if self.cell is not None:
            output = self.cell.run("qrstat", "-xml", "-u", "*")
            names += re.findall(r"<name>(ms-[^<]*)</name>", output)
        return names
