"""One Slurm cluster: what is asked of it is decided here, how it is asked by its access.

A task is one Slurm job, or one task of an array where several are sent together; its comment (or
wckey, or name) carries the tag. Slurm 22.05 forgets tasks of an array that are cancelled while
they wait, at once and without a record. What we withdraw we hold before, which gives each task a
record of its own; what others cancel the core infers (`Core._missing`).

What has been found out about Slurm, and rests on its word only, is tested in tests/real.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from msgspec import structs

from metasched.adapters.base import Adapter, Capabilities, Order, Withdrawal
from metasched.adapters.errors import Refused, Unreachable
from metasched.adapters.launcher_client import Launcher, name_of, uid_of
from metasched.adapters.slurm import cluster_info
from metasched.adapters.slurm import listing as text
from metasched.adapters.slurm import submission as batch
from metasched.adapters.slurm.access import Access, SlurmOptions
from metasched.adapters.slurm.access_choice import Choice
from metasched.adapters.slurm.accounting import Accounting
from metasched.adapters.slurm.commands import Commands
from metasched.adapters.slurm.core_reservations import CoreReservations
from metasched.adapters.slurm.listing_horizon import Reach
from metasched.adapters.slurm.node_reservations import Reservations
from metasched.model.cluster import Cluster, Copies, Facts
from metasched.model.job import Job
from metasched.model.listing import Listing, Missing, Trace
from metasched.model.survey import Survey, Window

__all__ = ["Slurm", "SlurmOptions"]

_RESERVES_CORES = ("select/cons_tres", "select/cons_res")
_LICENCES_AGAIN = 60.0  # seconds until a cluster without licences is asked for them again


class Slurm(Adapter):
    """One Slurm cluster, spoken to by the means of its own release."""

    Options: ClassVar[type[Any]] = SlurmOptions
    # pyslurm reads scripts in the encoding of the locale
    environment: ClassVar[Mapping[str, str]] = {"PYTHONUTF8": "1"}
    chunk: ClassVar[int] = 200  # a call as an array; a few seconds where it must be one by one
    capabilities: ClassVar[Capabilities] = Capabilities(
        gres=True,
        memory=True,
        licences=True,
        limit_granularity=60.0,
        estimates=True,
        reservations=True,
        names_nodes=True,
    )

    def __init__(
        self,
        cluster: Cluster,
        options: SlurmOptions,
        instance: str,
        folder: Path,
        launcher: Launcher | None = None,
    ) -> None:
        super().__init__(cluster, options, instance, folder, launcher)
        self._settings = options
        self._facts: Facts | None = None  # of the last poll
        self._reach = Reach()
        self._copies: Mapping[str, Copies] = {}
        self._look_again = 0.0
        self._array_size: int | None = None
        self._choice = Choice(options, cluster.name)
        # whichever way is chosen: there is no other to accounting
        commands = Commands(options, cluster.name)
        self._accounting = Accounting(
            commands, options.tag_field, os.geteuid() if launcher is None else None
        )
        self.capabilities = self.able(options)  # type: ignore[misc]
        by_node = options.reservation_unit == "node"
        self._reservations = (Reservations if by_node else CoreReservations)(commands, instance)

    @classmethod
    def able(cls, options: SlurmOptions) -> Capabilities:
        return replace(cls.capabilities, names_nodes=options.reservation_unit == "node")

    @classmethod
    def doubts(cls, options: SlurmOptions) -> list[tuple[str, str]]:
        if options.reservation_unit == "node":
            return []
        select = Commands(options, "").controller().select
        if select in _RESERVES_CORES:
            return []
        mend = f'write reservation_unit = "node", or have it run {_RESERVES_CORES[0]}'
        return [(f"it runs {select}, which reserves no processors", mend)]

    @property
    def access(self) -> str:
        return self._choice.name

    @property
    def _access(self) -> Access:
        """The way to the cluster for now. Unreachable if it cannot be had."""
        return self._choice.access()

    def submit(self, order: Order) -> dict[int, str]:
        """Queue the tasks: those that can be as one array, each other as a job of its own.

        A refusal after some were taken is Unreachable: these are found by the tag, the others
        proved absent.
        """
        self._check_size(order.job)
        if order.reservation:
            order = structs.replace(order, reservation=self._reservations.find(order.reservation))
        access = self._as(order.job.user)
        array = self._array(order)
        natives: dict[int, str] = {}
        try:
            if array:
                id = access.submit_array(order, array)
                natives = {index: f"{id}_{index}" for index in array}
            for index in order.indices:
                if index not in natives:
                    natives[index] = access.submit(order, index)
        except Refused as refusal:
            if not natives:
                raise
            taken = f"{len(natives)} of {len(order.indices)} tasks were taken"
            raise Unreachable(f"{taken}, then: {refusal.reason}") from None
        return natives

    def _array(self, order: Order) -> list[int]:
        """The tasks to send as an array: those whose indices can be its task ids."""
        if order.job.array is None or len(order.indices) < 2 or not batch.shares(order):
            return []
        if self._array_size is None:
            self._array_size = self._access.controller().array_size
        some = [index for index in order.indices if index < self._array_size]
        return some if len(some) > 1 else []

    def _as(self, user: str) -> Access:
        """What acts on the jobs of a user: in site mode the commands, as that user."""
        if self.launcher is None:
            return self._access
        return Commands(self._settings, self.cluster.name, self.launcher, user)

    def _check_size(self, job: Job) -> None:
        """Slurm itself takes what can never start, and lets it wait for ever."""
        partition = self._facts.partition(job.partition) if self._facts else None
        if partition is None:
            return
        most = sum(nodes.count * nodes.cpus for nodes in partition.nodes)
        if job.cpus > most:
            raise Refused(f"partition {partition.name} has {most} processors, not {job.cpus}")

    def withdraw(self, withdrawal: Withdrawal) -> None:
        self.withdraw_all([withdrawal])

    def withdraw_all(self, withdrawals: Sequence[Withdrawal]) -> None:
        """End tasks, chosen by their tag in a listing of this moment, never by native id alone.

        `scancel --state=PENDING` looks and then kills, so that a job may begin in between.
        Hence for `unstarted`: hold, look again, and cancel what is pending and held, since that
        cannot begin any more.
        """
        live = self._find(withdrawals)
        access = self._as(withdrawals[0].user)
        if not withdrawals[0].unstarted:
            self._hold(
                access, (line.id for line in live if line.state == "PENDING" and "_" in line.id)
            )
            access.cancel([line.id for line in live])
            return
        pending = {line.id for line in live if line.state == "PENDING" and line.restarts == "0"}
        if not pending:
            return
        complaint = self._hold(access, pending)
        after = [line for line in self._find(withdrawals, apart=True) if line.id in pending]
        # Slurm "holds" what runs, too: if the user lets it requeue, it must not stay held.
        begun = {line.id for line in after if line.state != "PENDING" or line.restarts != "0"}
        held = [line.id for line in after if line.id not in begun and line.priority == "0"]
        access.cancel(held)
        access.release(begun)
        if len(held) + len(begun) < len(after):
            raise Unreachable(f"hold: {complaint or 'not held'}")

    def _hold(self, access: Access, ids: Iterable[str]) -> str:
        """Hold jobs, and each task of an array apart; what was said against it."""
        said = [access.hold(some) for some in text.apart(ids) if some]
        return "; ".join(filter(None, said))

    def _find(self, withdrawals: Sequence[Withdrawal], apart: bool = False) -> list[text.QueueLine]:
        """Our tasks that are asked for and have not ended, a line each."""
        wanted = {(one.tag, index) for one in withdrawals for index in one.natives}
        user = os.geteuid() if self.launcher is None else uid_of(withdrawals[0].user)
        ids = [native for one in withdrawals for native in one.natives.values() if native]
        known = ids if len(ids) == len(wanted) else ()
        lines = self._access.jobs(ids=known, user=user, apart=apart)
        return [
            line._replace(id=native)
            for line in lines
            if line.user == str(user) and text.lives(line)
            for key, native in text.read_mark(line.tag, line.id).items()
            if key in wanted
        ]

    def poll(self) -> Listing:
        """Four calls, whatever the number of jobs, and one where Slurm counts licences.

        One more while windows are to come, three while processors are reserved.

        The boot time is read after the listing: were the controller restarted in between, the
        listing would prove less than it does, never more.
        """
        access, taken = self._access, time.time()
        jobs = access.jobs()
        listed = time.monotonic()
        places = access.nodes()
        config = access.controller()
        now = time.monotonic()
        since, up = self._reach.look(config, listed, now)
        wall = time.time() - now  # what turns our monotonic times into those of day
        try:
            user = os.geteuid() if self.launcher is None else None
            rows = text.rows(jobs, self.instance, user)
            if user is None:
                names = {row.owner: name_of(int(row.owner)) for row in rows}
                rows = [structs.replace(row, owner=names[row.owner]) for row in rows]
            ours = {job.id for job in jobs if text.is_ours(job, self.instance, user)}
            free = self._reservations.beside(jobs, places, taken)
            facts = cluster_info.facts(jobs, free, taken, ours)
            coming = self._reservations.coming(jobs, free, taken)
        except ValueError as error:
            raise Unreachable(f"the listing cannot be read: {error}") from None
        records = self._accounting.kind(config, access.name == Commands.name)
        self._facts = structs.replace(
            facts, records=records, licences=self._licences(), coming=coming
        )
        self._array_size = config.array_size
        return Listing(
            taken=taken,
            since=wall + since,
            until=taken - self._settings.settle,
            rows=tuple(rows),
            facts=self._facts,
            up_since=wall + up,
        )

    def _licences(self) -> Mapping[str, Copies]:
        """What Slurm counts of licences; where it counts none it is asked now and then."""
        now = time.monotonic()
        if self._copies or now >= self._look_again:
            self._copies, self._look_again = self._access.licences(), now + _LICENCES_AGAIN
        return self._copies

    def trace(self, missing: Sequence[Missing]) -> Trace:
        return self._accounting.trace(missing)

    def survey(self) -> Survey:
        taken = time.time()
        jobs, places = self._access.jobs(), self._access.nodes()
        try:
            return self._reservations.survey(jobs, places, taken)
        except ValueError as error:
            raise Unreachable(f"the listing cannot be read: {error}") from None

    def reserve(self, window: Window) -> None:
        self._reservations.reserve(window)

    def unreserve(self, name: str) -> None:
        self._reservations.unreserve(name)
