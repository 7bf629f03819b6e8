"""One Slurm cluster: what is asked of it is decided here, how it is asked by its access.

A task is one Slurm job; its comment (or name) carries the tag. Native arrays are not used:
Slurm 22.05 forgets tasks of an array that are cancelled while pending, at once and without a
record, and a listing could then no longer prove that a tag never arrived.

What has been found out about Slurm, and rests on its word only, is tested in tests/real.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from metasched.adapters import slurm_text as text
from metasched.adapters.base import (
    Adapter,
    Capabilities,
    Order,
    Refused,
    Unreachable,
    Withdrawal,
)
from metasched.adapters.slurm_access import Access, SlurmOptions
from metasched.adapters.slurm_pyslurm import choose
from metasched.adapters.slurm_reach import Reach
from metasched.model import Cluster, Facts, Job, Listing

__all__ = ["Slurm", "SlurmOptions"]


class Slurm(Adapter):
    """One Slurm cluster, spoken to by the means of its own release."""

    Options: ClassVar[type[Any]] = SlurmOptions
    # pyslurm reads scripts in the encoding of the locale
    environment: ClassVar[Mapping[str, str]] = {"PYTHONUTF8": "1"}
    capabilities: ClassVar[Capabilities] = Capabilities(
        gres=True, memory=True, suspends=True, limit_granularity=60.0
    )

    def __init__(
        self, cluster: Cluster, options: SlurmOptions, instance: str, folder: Path
    ) -> None:
        super().__init__(cluster, options, instance, folder)
        self._settings = options
        self._facts: Facts | None = None  # of the last poll
        self._reach = Reach()
        self._chosen: Access | None = None

    @property
    def access(self) -> str:
        return self._chosen.name if self._chosen else ""

    @property
    def _access(self) -> Access:
        """The way to the cluster, chosen at the first call. Unreachable if it cannot be had."""
        if self._chosen is None:
            self._chosen = choose(self._settings, self.cluster.name)
        return self._chosen

    def submit(self, order: Order) -> dict[int, str]:
        """Queue each task as a job of its own, in the order of the indices.

        A refusal after some were taken is Unreachable: these are found by the tag, the others
        proved absent.
        """
        self._check_size(order.job)
        natives: dict[int, str] = {}
        for index in order.indices:
            try:
                natives[index] = self._access.submit(order, index)
            except Refused as refusal:
                if not natives:
                    raise
                taken = f"{len(natives)} of {len(order.indices)} tasks were taken"
                raise Unreachable(f"{taken}, then: {refusal.reason}") from None
        return natives

    def _check_size(self, job: Job) -> None:
        """Slurm itself takes what can never start, and lets it wait for ever."""
        partition = self._facts.partition(job.partition) if self._facts else None
        if partition is None:
            return
        most = sum(nodes.count * nodes.cpus for nodes in partition.nodes)
        if job.cpus > most:
            raise Refused(f"partition {partition.name} has {most} processors, not {job.cpus}")

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """End tasks, chosen by their tag in a listing of this moment, never by native id alone.

        `scancel --state=PENDING` looks and then kills, so that a job may begin in between.
        Hence for `unstarted`: hold, look again, and cancel what is pending and held, since that
        cannot begin any more.
        """
        live = self._find(withdrawal)
        if not withdrawal.unstarted:
            self._access.cancel([line.id for line in live])
            return
        pending = {line.id for line in live if line.state == "PENDING" and line.restarts == "0"}
        if not pending:
            return
        complaint = self._access.hold(pending)
        after = [line for line in self._find(withdrawal) if line.id in pending]
        held = [line.id for line in after if line.state == "PENDING" and line.priority == "0"]
        self._access.cancel(held)
        # Slurm "holds" what runs, too: if the user lets it requeue, it must not stay held.
        begun = [line.id for line in after if line.state != "PENDING"]
        self._access.release(begun)
        if len(held) + len(begun) < len(after):
            raise Unreachable(f"hold: {complaint or 'not held'}")

    def _find(self, withdrawal: Withdrawal) -> list[text.QueueLine]:
        """Our jobs that carry this tag, have not ended, and are asked for."""
        wanted = {text.mark(withdrawal.tag, index) for index in withdrawal.natives}
        user = os.geteuid()
        ids = [native for native in withdrawal.natives.values() if native]
        lines = self._access.jobs(ids=ids if len(ids) == len(wanted) else (), user=user)
        return [
            line
            for line in lines
            if line.tag in wanted and line.user == str(user) and text.lives(line)
        ]

    def poll(self) -> Listing:
        """Three calls, whatever the number of jobs.

        The boot time is read after the listing: were the controller restarted in between, the
        listing would prove less than it does, never more.
        """
        taken = time.time()
        jobs = self._access.jobs()
        listed = time.monotonic()
        places = self._access.nodes()
        config = self._access.controller()
        now = time.monotonic()
        since, up = self._reach.look(config, listed, now)
        wall = time.time() - now  # what turns our monotonic times into those of day
        try:
            rows = text.rows(jobs, self.instance, os.geteuid())
            facts = text.facts(jobs, places, taken, {row.native_id for row in rows})
        except ValueError as error:
            raise Unreachable(f"the listing cannot be read: {error}") from None
        self._facts = facts
        return Listing(
            taken=taken,
            since=wall + since,
            until=taken - self._settings.settle,
            rows=tuple(rows),
            facts=facts,
            up_since=wall + up,
        )
