"""Audit records of steps: every kind that an event causes is provoked, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import structs

from metasched.core.audit_trail import MAX_ROWS_SET_ASIDE, AuditTrail
from metasched.core.calendar_events import CalendarEntryRemoved, CalendarEntrySet, CalendarRun
from metasched.core.events import (
    ClusterDrained,
    ClusterResumed,
    ClusterUnreachable,
    CoreEvent,
    DaemonStarted,
    DispatchAccepted,
    DispatchStarted,
    DispatchUncertain,
    JobModified,
    JobSubmitted,
    LicencesCounted,
    LicenceSet,
    LicencesReleased,
    ListingReceived,
    TimerExpired,
    UserRequested,
)
from metasched.core.reservations.events import (
    ReservationBound,
    ReservationCancelled,
    ReservationRejected,
    ReservationRequested,
    SurveyReceived,
)
from metasched.core.scheduler import Core
from metasched.core.tasks import TaskId
from metasched.model.audit import KINDS, OPERATORS_ONLY, PUBLIC, AuditKind, AuditRecord
from metasched.model.calendar import CalendarEntry, DrainCluster, Reserve, RunResult
from metasched.model.cluster import Cluster
from metasched.model.job import State
from metasched.model.licence import LicenceCount, LicencePool
from metasched.model.listing import JobStatus
from metasched.model.reservation_request import ReservationRequest
from metasched.model.survey import ManagerReservation, NodeUsage, Survey
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy
from tests.e2e.conftest import KINDS_WITHOUT_EVENT
from tests.unit.core_site import NOW, facts, job

K = AuditKind
ALPHA = Cluster(name="alpha", adapter="slurm", supports_reservations=True)
POOLS = (
    LicencePool(name="matlab", total=20),
    LicencePool(name="ansys", server="lm"),
)
UP = (NodeUsage(("n1", "n2"), 4, True),)
DOWN = (NodeUsage(("n1",), 4, False), NodeUsage(("n2",), 4, True))


def started(at: float = NOW, **policy: Any) -> DaemonStarted:
    """Return a start of the daemon by a policy file of root."""
    return DaemonStarted(
        at,
        "cafe",
        Policy(**policy),
        (ALPHA,),
        pools=POOLS,
        policy_file="/etc/policy.toml",
        policy_digest=str(policy),
        policy_owner="root",
    )


def reloaded(at: float, by: str, *changes: str) -> DaemonStarted:
    """Return a start with a changed configuration that a user had the daemon read."""
    return structs.replace(started(at), by=by, config_changes=changes)


@dataclass
class Trail:
    """A core with its audit trail, and all events and records so far."""

    core: Core = field(default_factory=Core)
    trail: AuditTrail = field(default_factory=AuditTrail)
    events: list[CoreEvent] = field(default_factory=list)
    records: list[AuditRecord] = field(default_factory=list)
    conditions: dict[str, str] = field(default_factory=dict)  # as stored
    new: list[AuditRecord] = field(default_factory=list)  # of the last step

    def step(self, event: CoreEvent) -> Trail:
        self.new = self.trail.records(event, self.core.step(event))
        self.events.append(event)
        self.records += self.new
        for subject, value in self.trail.take_changed().items():
            self.conditions[subject] = value
            if not value:
                del self.conditions[subject]
        return self

    def restart(self, event: DaemonStarted) -> None:
        """Continue as after a crash: the trail knows what is stored, and the core's state."""
        drains = {"alpha": drain} if (drain := self.core.find_drain("alpha")) else {}
        reservations, calendar = self.core.reservations.by_id, self.core.calendar.entries
        self.trail = AuditTrail(self.conditions, reservations, drains, calendar)
        self.step(event)

    def listed(self, *rows: JobStatus, at: float = NOW, **fields: Any) -> Trail:
        self.step(ListingReceived(at, "alpha", rows, info=facts(8), until=at, **fields))
        return self

    def running(self, id: int, user: str = "ada", **fields: Any) -> Trail:
        """Submit a job that runs on alpha."""
        self.step(JobSubmitted(NOW, job(id, user=user, **fields)))
        self.step(DispatchStarted(NOW, id, 1))
        self.step(DispatchAccepted(NOW, id, 1, {0: "7"}))
        self.listed(self.row(id, State.RUNNING))
        return self

    def row(self, id: int, state: State) -> JobStatus:
        return JobStatus(tag_of("cafe", id, 1), 0, "7", state, started=NOW)

    def request(self, action: Any, by: str = "root", id: int = 1, **fields: Any) -> Trail:
        self.step(UserRequested(NOW, action, id, (0,), by, owner="ada", **fields))
        return self

    def survey(self, *nodes: NodeUsage, at: float = NOW, known: tuple[Any, ...] = ()) -> Trail:
        self.step(SurveyReceived(at, "alpha", Survey(at, nodes, known)))
        return self

    def survey_with_reservation(self, *nodes: NodeUsage, at: float = NOW) -> Trail:
        """Survey while the manager knows reservation 1."""
        bound = self.core.reservations.by_id[1].bound_nodes
        listed = ManagerReservation("ms-cafe-r1", NOW + 100, NOW + 200, bound)
        self.survey(*nodes, at=at, known=(listed,))
        return self

    def reserve(self, start: float = 100.0, by: str = "") -> Trail:
        self.survey(*UP)
        request = ReservationRequest.fixed(1, NOW + start, NOW + start + 100)
        terms = ("ada", request, True, ("alpha",), NOW + 1e6)
        self.step(ReservationRequested(NOW, 1, *terms, by=by))
        return self

    def bind(self, at: float = NOW) -> Trail:
        self.step(ReservationBound(at, 1, self.core.reservations.by_id[1].nodes))
        return self


NIGHT = CalendarEntry(
    id=7,
    name="night",
    act=DrainCluster("alpha"),
    rule="daily 20:00",
    zone="UTC",
    created=NOW,
    grace=60.0,
    next_run=NOW + 100,
)
SERIES = CalendarEntry(
    id=8,
    act=Reserve(least=1, most=1, duration=100.0, by_node=True),
    rule="daily 20:00",
    zone="UTC",
    owner="ada",
    requested_by="root",
    created=NOW,
    grace=0.0,
    next_run=NOW + 100,
)


def ran(trail: Trail, result: RunResult, cause: str = "", **fields: Any) -> None:
    trail.step(CalendarEntrySet(NOW, NIGHT, cause="new"))
    run = CalendarRun(NOW + 101, 7, NOW + 100, result, NOW + 200, cause, **fields)
    trail.step(run)
    trail.step(run)  # of a daemon that lost its place: it is ignored


def skipped_occurrence(trail: Trail) -> None:
    trail.survey(*DOWN)
    trail.step(CalendarEntrySet(NOW, SERIES, "root", "daily"))
    request = ReservationRequest.fixed(2, NOW + 100, NOW + 200)
    terms = ("ada", request, True, ("alpha",), NOW + 1e6)
    trail.step(ReservationRequested(NOW, 1, *terms, series=8, next_occurrence=NOW + 300))
    trail.step(ReservationRequested(NOW, 2, *terms, series=8, next_occurrence=NOW + 300))


def silent(at: float = NOW, reason: str = "no route to host") -> ClusterUnreachable:
    return ClusterUnreachable(at, "alpha", reason)


def unknown_job(trail: Trail) -> Trail:
    return trail.running(1).step(silent())


def broken_reservation(trail: Trail) -> None:
    trail.reserve(start=0.0)
    trail.step(TimerExpired(NOW + 60))


def moved_reservation(trail: Trail) -> None:
    trail.reserve()
    trail.bind()
    trail.survey_with_reservation(*DOWN)
    trail.bind()


def lost_reservation(trail: Trail) -> None:
    trail.reserve()
    trail.bind()
    trail.survey(*UP, at=NOW + 1)


def window(trail: Trail, at: float) -> None:
    trail.reserve()
    trail.bind()
    trail.step(TimerExpired(NOW + 100))
    trail.step(TimerExpired(at))


def counted(total: int, outside: int, at: float = NOW) -> LicencesCounted:
    return LicencesCounted(at, (LicenceCount("ansys", total, outside, at),))


def set_aside(trail: Trail, number: int = 1, first: int = 1) -> None:
    tags = [tag_of("cafe", id, 1) for id in range(first, first + number)]
    trail.listed(quarantined=tuple((tag, 0) for tag in tags), defects=((tags[0], 0, "no time"),))


def refuse_all(trail: Trail) -> Trail:
    """Let the cluster refuse a job of each of two users, without proof."""
    for id, user in ((1, "ada"), (2, "bob")):
        trail.step(JobSubmitted(NOW, job(id, user=user))).step(DispatchStarted(NOW, id, 1))
        trail.step(DispatchUncertain(NOW, id, 1, "?", "Unspecified error"))
        trail.listed(at=NOW + 1)
    return trail


def accept_again(trail: Trail) -> Trail:
    refuse_all(trail).listed(at=NOW + 200)
    [probed] = [task for task in trail.core.tasks.values() if task.state is State.DISPATCHING]
    dispatch_id = probed.live_attempt.dispatch_id
    return trail.step(DispatchAccepted(NOW + 201, probed.job.id, dispatch_id, {0: "7"}))


def unbegun(trail: Trail) -> JobStatus:
    row = trail.row(1, State.CANCELLED)
    return structs.replace(row, ended=NOW + 1, exit_code=0, node="n[1-3]", unbegun_on="n[1-2]")


# Each kind that an event causes: how it is provoked, and fields of its last record.
SCENES: dict[AuditKind, tuple[Callable[[Trail], object], dict[str, Any]]] = {
    K.DATABASE_WENT_BACK: (
        lambda t: t.step(
            structs.replace(started(NOW + 5), restored=True, went_back="its last event is 7")
        ),
        {"owner": None, "cause": "its last event is 7"},
    ),
    K.CLUSTER_DRAINED: (
        lambda t: t.step(ClusterDrained(NOW, "alpha", "root", "disk full", True)),
        {"actor": "root", "cause": "disk full", "details": {"keep_pending": "yes"}},
    ),
    K.CLUSTER_RESUMED: (
        lambda t: t.step(ClusterDrained(NOW, "alpha", "root", "disk full")).step(
            ClusterResumed(NOW + 5, "alpha", "eve")
        ),
        {"actor": "eve", "cause": "drained by root: disk full", "details": {"drained_at": NOW}},
    ),
    K.CLUSTER_UNREACHABLE: (lambda t: t.step(silent()), {"cause": "no route to host"}),
    K.CLUSTER_ANSWERS: (lambda t: t.step(silent()).listed(), {"cluster": "alpha"}),
    K.CLUSTER_REFUSES: (refuse_all, {"cluster": "alpha", "cause": "Unspecified error"}),
    K.CLUSTER_ACCEPTS: (accept_again, {"cluster": "alpha", "cause": ""}),
    K.ROW_SET_ASIDE: (set_aside, {"job": 1, "task": 0, "cause": "no time", "owner": None}),
    K.LICENCE_SET: (
        lambda t: t.step(LicenceSet(NOW, "matlab", 8, "root")),
        {"actor": "root", "licence": "matlab", "cause": "total 8; it was 20"},
    ),
    K.LICENCE_TOTAL: (
        lambda t: t.step(counted(20, 0)).step(counted(30, 0)),
        {"licence": "ansys", "cause": "total 30; it was 20"},
    ),
    K.LICENCE_DRIFT: (
        lambda t: t.step(counted(20, 0)).step(counted(20, 7)),
        {"licence": "ansys", "cause": "7 of 20 used outside; it was 0"},
    ),
    K.LICENCE_RELEASED: (
        lambda t: t.step(LicencesReleased(NOW, 1, (0,), "root", "ada")),
        {"actor": "root", "owner": "ada", "job": 1, "task": 0},
    ),
    K.POLICY_CHANGED: (
        lambda t: t.step(started(NOW + 1, seed=7)),
        {"actor": "root", "owner": OPERATORS_ONLY},
    ),
    K.CONFIGURATION_CHANGED: (
        lambda t: t.step(reloaded(NOW + 1, "root", 'cluster "b" added', "[limits] queued")),
        {
            "actor": "root",
            "owner": OPERATORS_ONLY,
            "cause": 'cluster "b" added; [limits] queued',
        },
    ),
    K.RESERVATION_PROMISED: (
        lambda t: t.reserve(by="root"),
        {"actor": "root", "owner": "ada", "reservation": 1, "cluster": "alpha"},
    ),
    K.RESERVATION_BOUND: (lambda t: t.reserve().bind(), {"actor": "", "owner": "ada"}),
    K.RESERVATION_REJECTED: (
        lambda t: t.reserve().step(ReservationRejected(NOW, 1, "no")),
        {"cause": "its manager refused: no"},
    ),
    K.RESERVATION_MOVED: (moved_reservation, {"cause": "moved to n2"}),
    K.RESERVATION_LOST: (lost_reservation, {"owner": "ada"}),
    K.RESERVATION_BEGAN: (lambda t: window(t, NOW + 101), {"owner": "ada"}),
    K.RESERVATION_ENDED: (lambda t: window(t, NOW + 201), {"cause": "its window is over"}),
    K.RESERVATION_CANCELLED: (
        lambda t: t.reserve().step(ReservationCancelled(NOW, 1, "root")),
        {"actor": "root", "owner": "ada", "cause": "cancelled by root"},
    ),
    K.RESERVATION_BROKEN: (broken_reservation, {"owner": "ada"}),
    K.RESERVATION_SKIPPED: (
        skipped_occurrence,
        {"owner": "ada", "details": {"due": NOW + 100, "series": 8}},
    ),
    K.SERIES_MADE: (
        lambda t: t.step(CalendarEntrySet(NOW, SERIES, "root", "daily")),
        {"actor": "root", "owner": "ada", "details": {"series": 8}},
    ),
    K.SERIES_ENDED: (
        lambda t: t.step(CalendarEntrySet(NOW, SERIES, "root")).step(
            CalendarEntryRemoved(NOW, 8, "ada", "cancelled by ada")
        ),
        {"actor": "ada", "owner": "ada"},
    ),
    K.CALENDAR_CHANGED: (
        lambda t: t.step(CalendarEntrySet(NOW, NIGHT, cause="new")),
        {"cluster": "alpha", "cause": "drain alpha: new", "details": {"entry": "night"}},
    ),
    K.CALENDAR_RAN: (
        lambda t: ran(t, RunResult.DONE),
        {"cause": "drain alpha", "details": {"due": NOW + 100, "entry": "night"}},
    ),
    K.CALENDAR_SKIPPED: (
        lambda t: ran(t, RunResult.SKIPPED, "down", count=3, last=NOW + 150),
        {"count": 3, "cause": "drain alpha: down"},
    ),
    K.CALENDAR_FAILED: (
        lambda t: ran(t, RunResult.FAILED, "disk full"),
        {"cause": "drain alpha: disk full"},
    ),
    K.JOB_CANCELLED: (
        lambda t: t.running(1).request("cancel"),
        {"actor": "root", "owner": "ada", "job": 1, "count": 1},
    ),
    K.JOB_HELD: (lambda t: t.request("hold"), {"actor": "root", "owner": "ada"}),
    K.JOB_RELEASED: (lambda t: t.request("release"), {"actor": "root"}),
    K.JOB_REQUEUED: (lambda t: t.request("requeue"), {"actor": "root"}),
    K.JOB_MODIFIED: (
        lambda t: t.running(1).step(
            JobModified(NOW, job(1, user="ada"), "name x", False, None, "root")
        ),
        {"actor": "root", "owner": "ada", "cause": "name x"},
    ),
    K.JOB_DECLARED_LOST: (
        lambda t: unknown_job(t).request("lost"),
        {"actor": "root", "owner": "ada", "job": 1},
    ),
    K.JOB_DECLARED_RAN: (
        lambda t: unknown_job(t).request("ran", exit_code=3),
        {"actor": "root", "details": {"exit_code": 3}},
    ),
    K.JOB_UNKNOWN: (
        unknown_job,
        {"owner": "ada", "job": 1, "cluster": "alpha", "details": {"state": "running"}},
    ),
    K.JOB_UNBEGUN: (
        lambda t: t.running(1).listed(unbegun(t)),
        {"owner": "ada", "job": 1, "cluster": "alpha", "details": {"nodes": "n[1-2]"}},
    ),
    K.JOB_KNOWN: (
        lambda t: unknown_job(t).listed(t.row(1, State.COMPLETED), full=True),
        {"owner": "ada", "job": 1, "details": {"state": "completed"}},
    ),
}
# Other kinds are provoked in tests/unit/test_notices.py, tests/real/test_audit.py and tests/e2e
WITHOUT_EVENT = set(map(AuditKind, KINDS_WITHOUT_EVENT))


@pytest.fixture
def trail() -> Trail:
    """Return a trail after the first start, with a listing of alpha."""
    trail = Trail()
    trail.step(started())
    trail.listed()
    return trail


def test_each_kind_has_a_description_and_a_scene() -> None:
    assert set(KINDS) == set(AuditKind) == SCENES.keys() | WITHOUT_EVENT


@pytest.mark.parametrize("kind", SCENES)
def test_a_kind(trail: Trail, kind: AuditKind) -> None:
    provoke, expected = SCENES[kind]
    provoke(trail)
    of_kind = [record for record in trail.records if record.kind is kind]
    assert of_kind, [record.kind for record in trail.records]
    record = of_kind[-1]
    assert {name: getattr(record, name) for name in expected} == expected
    if KINDS[kind].audience == "all":
        assert record.owner == PUBLIC
    elif KINDS[kind].audience == "owner":
        assert record.owner == "ada"


@pytest.mark.parametrize("kind", SCENES)
def test_a_restart_adds_nothing(trail: Trail, kind: AuditKind) -> None:
    SCENES[kind][0](trail)
    last = max(event.time for event in trail.events)
    policy = {"seed": 7} if kind is K.POLICY_CHANGED else {}
    is_unreachable = trail.trail.condition("cluster alpha") == "unreachable"
    trail.restart(started(last, **policy))
    assert trail.new == []
    if is_unreachable:
        trail.step(silent(last))
        assert trail.new == []


@pytest.mark.parametrize("kind", SCENES)
def test_a_replay_of_the_events_gives_the_same_records(trail: Trail, kind: AuditKind) -> None:
    SCENES[kind][0](trail)
    again = Trail()
    for event in trail.events:
        again.step(event)
    assert again.records == trail.records


@pytest.mark.parametrize(
    "kind", [K.CALENDAR_RAN, K.CALENDAR_SKIPPED, K.CALENDAR_FAILED, K.RESERVATION_SKIPPED]
)
def test_a_run_that_is_reported_twice_is_recorded_once(trail: Trail, kind: AuditKind) -> None:
    SCENES[kind][0](trail)
    assert [record.kind for record in trail.records].count(kind) == 1


def test_own_requests_are_no_acts_of_an_operator(trail: Trail) -> None:
    trail.running(1)
    before = list(trail.records)
    for action in ("hold", "release", "requeue", "cancel"):
        trail.request(action, by="ada")
    assert trail.records == before


def test_an_outage_is_recorded_once(trail: Trail) -> None:
    trail.step(silent())
    for reason in ("no route to host", "another message"):
        trail.step(silent(NOW + 1, reason))
        assert trail.new == []
    trail.listed(at=NOW + 2)
    trail.listed(at=NOW + 3)
    trail.step(silent(NOW + 4))
    kinds = [record.kind for record in trail.records if record.cluster]
    assert kinds == [K.CLUSTER_UNREACHABLE, K.CLUSTER_ANSWERS, K.CLUSTER_UNREACHABLE]


def test_small_changes_of_the_use_outside_are_recorded_once_they_add_up(trail: Trail) -> None:
    recorded = []
    for outside in (1, 2, 3, 4, 3, 2, 1, 0):  # the threshold is 2 of 20
        trail.step(counted(20, outside))
        recorded += [r.details["outside"] for r in trail.new if r.kind is K.LICENCE_DRIFT]
    assert recorded == [2, 4, 2, 0]


def test_many_rows_that_are_set_aside_make_few_records(trail: Trail) -> None:
    set_aside(trail, number=500)
    assert len(trail.new) == MAX_ROWS_SET_ASIDE + 1
    assert trail.new[-1].count == 500 - MAX_ROWS_SET_ASIDE
    set_aside(trail, number=500)
    assert trail.new == []
    set_aside(trail, number=501)
    assert [record.job for record in trail.new] == [501]
    trail.listed()  # all can be used again
    set_aside(trail)
    assert [record.job for record in trail.new] == [1]


def test_tasks_of_an_array_that_become_unknown_have_one_record(trail: Trail) -> None:
    trail.step(JobSubmitted(NOW, job(1, user="ada", array="1-4")))
    ids: list[TaskId] = sorted(trail.core.tasks)
    trail.step(DispatchStarted(NOW, 1, 1))
    trail.step(DispatchAccepted(NOW, 1, 1, {index: f"7_{index}" for _, index in ids}))
    trail.step(silent())
    records = [record for record in trail.new if record.kind is K.JOB_UNKNOWN]
    assert [(record.task, record.count) for record in records] == [(None, 4)]


def test_text_of_a_manager_stays_in_its_line(trail: Trail) -> None:
    trail.step(silent(reason=f"x\n2026-01-01 INFO forged\x1b[2J\u202e{'y' * 9999}"))
    [record] = [record for record in trail.new if record.kind is K.CLUSTER_UNREACHABLE]
    assert record.cause.isprintable()
    assert len(record.cause) <= 500


def test_a_manager_that_refuses_for_hours_makes_one_record(trail: Trail) -> None:
    trail.reserve()
    trail.bind()
    trail.survey_with_reservation(*DOWN)
    kinds: list[AuditKind] = []
    for _ in range(20):
        trail.step(ReservationRejected(NOW, 1, "no"))
        kinds += [record.kind for record in trail.new]
    assert kinds == [K.RESERVATION_REJECTED]


def test_a_known_reservation_of_the_manager_is_not_lost(trail: Trail) -> None:
    trail.reserve()
    trail.bind()
    trail.survey_with_reservation(*UP, at=NOW + 1)
    assert trail.new == []
