"""A restored core against a core that never stopped: equal in all parts and decisions.

The model of `test_core` is extended by reservations, licences that managers count, and policies
and pools that change at a restart. All events are stored in a real database, from which every
restart restores the core. A second core receives the stored events and is never restarted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from random import Random
from typing import Any, Literal
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from msgspec import structs
from sqlalchemy import create_engine, insert, select
from sqlalchemy.pool import StaticPool

from metasched.core.dependency_status import TargetSummary
from metasched.core.events import CoreEvent, DaemonStarted, JobSubmitted, Outcome, UseReported
from metasched.core.recovered_state import RecoveredState
from metasched.core.reservations.events import (
    ReservationBound,
    ReservationCancelled,
    ReservationRejected,
    ReservationReleased,
    ReservationRequested,
    SurveyReceived,
)
from metasched.core.scheduler import Core
from metasched.db import ledger as ledgers
from metasched.db.ledger import Ledger, StoredJob
from metasched.db.schema import checkpoint, epoch, metadata
from metasched.model.cluster import ManagerLicences
from metasched.model.dependencies import parse_dependency
from metasched.model.fair_share import FairShareSettings, ForeignUse, ShareTree
from metasched.model.job import Job, Payload
from metasched.model.licence import LicencePool, LicenceStatus
from metasched.model.reservation import OPEN_STATES, manager_name
from metasched.model.reservation_request import ReservationRequest
from metasched.model.survey import ManagerReservation, NodeUsage, Survey
from tests.harness.examples import examples
from tests.property.core_model import INSTANCE, POOLS, SIZES
from tests.property.core_rules import BEGINNING
from tests.property.test_core import World

NODES = {"left": ("l1", "l2", "l3"), "right": ("r1", "r2")}
PAYLOAD = Payload(script="", output="/o")
FAIR_SHARE = FairShareSettings(half_life=60.0, tree=ShareTree(users={"ada": 2.0}))
FEWER = tuple(pool for pool in POOLS if pool.name != "a")
OTHERS = (replace(POOLS[0], total=3, linger=0.0), *POOLS[1:])
# fields in which two cores may differ: internal counters, and values that are computed from
# others on demand
OWN = {
    *("version", "_serial", "serial", "head_cache_key", "head_reservation", "slots_cache_key"),
    *("slots", "margin_jobs", "head_key", "head_ranking"),
    *("_checked_version", "_checked_at", "_next_change"),
}


class Restored(World):
    """Every restart restores from a database, while a second core continues."""

    by_share = False  # whether fair share is configured
    reserving_user = "ada"

    @initialize(
        **BEGINNING,
        binds_late=st.booleans(),
        together=st.sampled_from([1, 3, 8]),
        by_share=st.booleans(),
    )
    def boot(
        self,
        pull: bool,
        load: str,
        send: str,
        sizes: list[int],
        fences: list[str],
        binds_late: bool,
        together: int,
        by_share: bool,
    ) -> None:
        self.binds_late, self.together, self.by_share = binds_late, together, by_share
        engine = create_engine("sqlite://", poolclass=StaticPool)
        metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(insert(epoch).values(number=0, holder=""))
        self.ledger = Ledger(engine)
        self.engine = engine
        self.steps: list[tuple[CoreEvent, Outcome]] = []
        self.stored: list[StoredJob] = []
        self.life, self.replayed_events = 1, 0  # its first event; its events sent to `other`
        self.other = self.new_core()
        self.ledger.restore(Core(), 100)
        super().boot(pull, load, send, sizes, fences)

    def booted(self, max_priority: int = 10) -> DaemonStarted:
        started = super().booted(max_priority)
        return structs.replace(started, fair_share=FAIR_SHARE) if self.by_share else started

    def decide(self, event: CoreEvent) -> Outcome:
        out = super().decide(event)
        self.steps.append((event, out))
        return out

    def step(self, event: CoreEvent) -> None:
        if isinstance(event, JobSubmitted):
            self.stored.append(
                StoredJob(job=event.job, script="s", environment="e", payload=PAYLOAD)
            )
        super().step(event)
        if len(self.steps) >= self.together:
            self.store()

    def store(self) -> None:
        """Store a batch of steps in one transaction, as the daemon does."""
        if self.steps:
            self.ledger.record(self.steps, self.stored, {"s": "#!/bin/sh\n", "e": "{}"})
            self.steps, self.stored = [], []

    def fates_of(self, job: Job) -> tuple[TargetSummary, ...]:
        self.store()
        targets = parse_dependency(job.dependency or "").targets
        return tuple(self.ledger.target_summaries(targets).values())

    def priority(self, job: int) -> int:
        self.store()
        return self.ledger.current_job(job)[1]

    # Restarts

    def check_restart(self) -> None:
        super().check_restart()
        self.store()
        self.catch_up()
        mismatches = list(differences(self.other, self.core, "core"))
        assert not mismatches, mismatches[:5]

    @rule(
        described=st.sampled_from([POOLS, FEWER, OTHERS]),
        window=st.sampled_from([1, 2, 100]),
        patience=st.sampled_from([0.0, 60.0]),
        send=st.sampled_from(["at_once", "late"]),
        reserve=st.sampled_from(["earliest", "first"]),
        seconds=st.floats(-1000, 1000),
        by_share=st.booleans(),
    )
    def reconfigure(
        self,
        described: tuple[LicencePool, ...],
        window: int,
        patience: float,
        send: Literal["at_once", "late"],
        reserve: Literal["earliest", "first"],
        seconds: float,
        by_share: bool,
    ) -> None:
        """Restart with another configuration; the clock may be set while no daemon runs."""
        self.described, self.by_share = described, by_share
        self.policy = replace(
            self.policy, window=window, patience=patience, send=send, reserve=reserve
        )
        self.now += seconds
        self.crash(False, False, self.configured, 10)

    def restored(self) -> Core:
        self.store()
        self.catch_up()
        core = self.new_core()
        with patch.object(ledgers, "CHECKPOINT_AFTER", 0):
            self.ledger.restore(core, self.policy.window)
        self.life, self.replayed_events = self.ledger._next_event, 0
        return core

    def catch_up(self) -> None:
        """Pass the events since the last restart to the second core; it must decide the same."""
        for number, event in enumerate(self.ledger.events(self.life)):
            if number >= self.replayed_events:
                self.replayed_events += 1
                same(self.other.step(event), self.outcomes[self.life - 1 + number], event)

    # Use that accounting reports

    @precondition(lambda self: self.configured)
    @rule(
        data=st.data(),
        user=st.sampled_from(["", "ada", "eve"]),
        seconds=st.floats(1e-4, 1e4),
        ago=st.floats(-100, 5000),
    )
    def report_use(self, data: Any, user: str, seconds: float, ago: float) -> None:
        name = data.draw(st.sampled_from(self.configured))
        use = ForeignUse(user=user, processor_seconds=seconds, ended=self.now - ago)
        self.step(UseReported(self.now, name, f"{self.now}", (use,)))

    # Licences that managers count

    @rule(name=st.sampled_from(sorted(SIZES)), used=st.integers(0, 3))
    def count_there(self, name: str, used: int) -> None:
        self.managers[name].licences = {"a": ManagerLicences(3, used)} if used else {}

    # Reservations

    @precondition(lambda self: self.configured)
    @rule(data=st.data(), down=st.booleans(), held=st.booleans(), busy=st.booleans())
    def survey(self, data: Any, down: bool, held: bool, busy: bool) -> None:
        self.deliver_survey(data.draw(st.sampled_from(self.configured)), down, held, busy)

    def deliver_survey(self, name: str, down: bool, held: bool, busy: bool) -> None:
        """Deliver a survey: nodes may be down or busy, and bound reservations may be missing."""
        nodes = NODES[name]
        spans = ((self.now, self.now + 200.0),) if busy else ()
        uses = (
            NodeUsage(nodes[:1], 4, not down, spans),
            NodeUsage(nodes[1:], 4, True),
        )
        reservations = tuple(
            ManagerReservation(
                manager_name(INSTANCE, reservation.id),
                reservation.start,
                reservation.end,
                reservation.bound_nodes,
            )
            for reservation in self.core.reservations.by_id.values()
            if held and reservation.cluster == name and reservation.bound_nodes
        )
        self.step(SurveyReceived(self.now, name, Survey(self.now, uses, reservations)))

    @rule(
        size=st.integers(1, 2),
        start=st.floats(1, 200),
        lasts=st.floats(10, 300),
        let_run=st.sampled_from([0.0, 30.0]),
        wants=st.sampled_from([{}, {"a": 1}, {"a": 2}, {"a": 1, "b": 2}]),
    )
    def reserve(
        self, size: int, start: float, lasts: float, let_run: float, wants: dict[str, int]
    ) -> None:
        self.store()
        id, clusters = self.ledger.next_reservation(), tuple(self.configured)
        request = ReservationRequest.fixed(size, self.now + start, self.now + start + lasts)
        requested = ReservationRequested(
            time=self.now,
            id=id,
            user=self.reserving_user,
            request=request,
            by_node=True,
            clusters=clusters,
            horizon=self.now + 1e5,
            let_run=let_run,
            licences=wants,
        )
        self.step(requested)

    @rule(
        data=st.data(),
        event_type=st.sampled_from(["bound", "bound", "declined", "cancel", "release"]),
    )
    def tell_of_reservation(self, data: Any, event_type: str) -> None:
        by_id = self.core.reservations.by_id
        there = [id for id, reservation in by_id.items() if reservation.cluster in self.configured]
        if not there:
            return
        reservation = by_id[data.draw(st.sampled_from(there))]
        match event_type:
            case "bound" if reservation.nodes:
                self.step(ReservationBound(self.now, reservation.id, reservation.nodes))
            case "declined":
                self.step(ReservationRejected(self.now, reservation.id, "no"))
            case "cancel":
                self.step(ReservationCancelled(self.now, reservation.id, "ada"))
            case "release" if reservation.state not in OPEN_STATES:
                self.step(ReservationReleased(self.now, reservation.id))

    @rule(data=st.data(), wants=st.sampled_from([{}, {"a": 1}, {"a": 2}]))
    def submit_reserved(self, data: Any, wants: dict[str, int]) -> None:
        by_id = self.core.reservations.by_id
        if not by_id:
            return
        reservation = by_id[data.draw(st.sampled_from(sorted(by_id)))]
        job = Job(
            id=len(self.jobs) + 1,
            submitted=self.now,
            estimated=10.0,
            time_limit=10.0,
            licences=wants,
            clusters=(reservation.cluster,),
            reservation=reservation.id,
        )
        self.jobs[job.id] = self.submitted[job.id] = job
        self.step(JobSubmitted(self.now, job))

    def teardown(self) -> None:
        """Replay from the first stored checkpoints; the outcomes must be the same."""
        if not hasattr(self, "core"):
            return
        self.crash(False, False, sorted(SIZES), 10)
        with self.engine.connect() as connection:
            rows = connection.execute(select(checkpoint).order_by(checkpoint.c.event)).all()
        for row in rows[:3]:
            core = self.new_core()
            core.restore(RecoveredState.unpack(row.data))
            for number, event in enumerate(self.ledger.events(row.event), row.event - 1):
                same(core.step(event), self.outcomes[number], event)
        self.ledger.close()


def same(again: Outcome, first: Outcome, event: CoreEvent) -> None:
    for part in fields(Outcome):
        restored, other = getattr(again, part.name), getattr(first, part.name)
        mismatches = list(differences(restored, other, part.name))
        assert not mismatches, (event, mismatches[:5])


def differences(a: Any, b: Any, at: str, met: set[tuple[int, int]] | None = None) -> Iterator[str]:
    """Yield the differences of two values at any depth; ignore the order of dictionaries."""
    met = set() if met is None else met
    if a is b or (id(a), id(b)) in met:
        return
    met.add((id(a), id(b)))
    alike = any(
        isinstance(a, container) and isinstance(b, container) for container in (Mapping, str)
    )
    if type(a) is not type(b) and not alike:
        yield f"{at}: {a!r} and {b!r}"
    elif isinstance(a, Mapping):
        for key in a.keys() | b.keys():
            if key not in a or key not in b:
                yield f"{at}[{key}]: only in {'the restored' if key in b else 'the other'}"
            else:
                yield from differences(a[key], b[key], f"{at}[{key}]", met)
    elif isinstance(a, Random):
        if a.getstate() != b.getstate():
            yield f"{at}: has drawn otherwise"
    elif isinstance(a, str | int | float | Enum | bytes | set | frozenset | type) or callable(a):
        if a != b and not callable(a):
            yield f"{at}: {a!r} and {b!r}"
    elif isinstance(a, Iterable):
        left_items, other = list(a), list(b)
        if len(left_items) != len(other):
            yield f"{at}: {left_items!r} and {other!r}"
            return
        for task_id, (x, y) in enumerate(zip(left_items, other, strict=True)):
            yield from differences(x, y, f"{at}[{task_id}]", met)
    else:
        for name in parts_of(a):
            if name not in OWN and not (name == "observed" and _of_managers(a, at)):
                yield from differences(getattr(a, name), getattr(b, name), f"{at}.{name}", met)


def _of_managers(thing: Any, at: str) -> bool:
    """Return whether `observed` is only a poll time, which is stored with the next change."""
    return isinstance(thing, LicenceStatus) or ".used_outside[" in at


def parts_of(thing: Any) -> list[str]:
    if isinstance(thing, msgspec.Struct):
        return [name for name in thing.__struct_fields__ if name != "expected"]
    if is_dataclass(thing):
        return [part.name for part in fields(thing) if part.compare]
    if (compiled := getattr(thing, "__mypyc_attrs__", None)) is not None:
        return [name for name in compiled if hasattr(thing, name)]
    return [name for name in vars(thing) if name not in thing.__class__.__dict__]


TestRestored = pytest.mark.slow("each life is stored, and restored at each restart")(
    Restored.TestCase
)
TestRestored.settings = examples(30, steps=40)
