"""Lives of a core that are drawn by seed from the rules of the property tests.

A life is the same for the same seed, rules and release of Hypothesis, whatever the hash seed of
Python and whichever modules are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from msgspec import structs

from metasched.core.calendar_events import CalendarEntryRemoved, CalendarEntrySet, CalendarRun
from metasched.core.events import (
    ClusterDrained,
    CoreEvent,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    DispatchSkipped,
    DispatchStarted,
    JobModified,
    ListingReceived,
    Outcome,
    SharesReported,
    StartsForecast,
    TimerExpired,
    UserRequested,
)
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
from metasched.model.calendar import (
    CalendarAct,
    CalendarEntry,
    CalendarLimit,
    DrainCluster,
    LimitLicence,
    Reserve,
    RunResult,
)
from metasched.model.cluster import (
    Associations,
    ClusterInfo,
    HeadPlan,
    NodeCapacity,
    Partition,
    UserAccounts,
)
from metasched.model.fair_share import FairShareSettings, ShareAccount, ShareTree
from metasched.model.job import Job, State
from metasched.model.limits import LimitSettings
from metasched.model.manager_options import ALL_OPTIONS, ManagerOptions
from metasched.model.ratings import SiteRatings
from metasched.model.reservation import OPEN_STATES, manager_name
from metasched.model.reservation_request import ReservationRequest
from metasched.model.survey import ManagerReservation, ProcessorPool, Survey
from metasched.model.tags import tag_of
from metasched.policies.policy import PlugInSettings, Policy, SelfOptimisation
from tests.harness.lives import Life, Step
from tests.property.core_model import EITHER, INSTANCE, SIZES
from tests.property.core_rules import BEGINNING
from tests.property.managers import Manager, place_of
from tests.property.test_recovery import NODES, Restored
from tests.property.test_usage_limits import WithLimits

STEPS = 45  # rules of a life; each makes no, one or some events
BACKEND = "seeded lives"
TREE = ShareTree(
    accounts=(
        ShareAccount(name="cfd", weight=3.0, users={"b": 2.0}, other_users=1.0),
        ShareAccount(name="sub", parent="cfd", users={"a": 1.0}),
    ),
    users={"a": 2.0},
)
FAIR_SHARES = (
    None,
    FairShareSettings(half_life=60.0, tree=TREE),
    FairShareSettings(half_life=600.0, shares_from="left"),
)
OPTIMISED = SelfOptimisation(history=10, delta=0.1)
OPTIMISING: tuple[dict[str, SelfOptimisation], ...] = (
    {},
    {},
    {"base": OPTIMISED},
    {"base-span": OPTIMISED, "weight-user": OPTIMISED},
    {"weight-licence": SelfOptimisation(history=10, delta=0.1, norm="l1")},
)
SITE_HEURISTIC = {"site": PlugInSettings()}  # its ratings are part of jobs
REASON = "nodes are busy"  # of answers by managers
FEATURES = ("fast", "big")
RESERVATION_STEPS = (
    *("bind", "bind", "refuse", "lose", "fail", "repair", "job", "work"),
    *("begin", "end", "cancel", "release", "fill", "reject", "recount"),
)
RATINGS = SiteRatings(
    priorities={"site": 6.0},
    placements={"site": {"left": 0.2, "right": 0.9}},
    run_times={"site": 30.0},
)


class SeededLife(WithLimits, Restored):
    """A site with reservations, fair share, limits and a calendar, which crashes and restarts.

    It keeps its events, and the states from which a restarted core was restored.
    """

    reserving_user = "a"

    def __init__(self) -> None:
        super().__init__()
        self.record: list[Step] = []

    @initialize(
        **BEGINNING,
        binds_late=st.booleans(),
        by_share=st.booleans(),
        limited=st.booleans(),
        roomy=st.booleans(),
        forecasts=st.booleans(),
        fair_share=st.sampled_from(FAIR_SHARES[1:]),
        minimum=st.sampled_from([2, 4, 1000]),
        policy=st.fixed_dictionaries(
            {
                "ordering": st.sampled_from(["array", "equal"]),
                "tolerance": st.sampled_from([0.0, 50.0]),
                "window": st.sampled_from([3, 100]),
                "age": st.sampled_from([40.0, 4 * 3600.0]),
                "patience": st.sampled_from([0.0, 60.0, 600.0]),
                "self_optimising": st.sampled_from(OPTIMISING),
                "heuristics": st.sampled_from([{}, SITE_HEURISTIC]),
                "placement": st.sampled_from([{}, SITE_HEURISTIC]),
                "run_times": st.sampled_from([{}, SITE_HEURISTIC]),
                "seed": st.integers(0, 3),
            }
        ),
    )
    def boot(
        self,
        pull: bool,
        load: str,
        send: str,
        sizes: list[int],
        fences: list[str],
        binds_late: bool,
        by_share: bool,
        limited: bool,
        roomy: bool,
        forecasts: bool,
        fair_share: FairShareSettings,
        minimum: int,
        policy: dict[str, Any],
    ) -> None:
        self.limited, self.roomy, self.share_settings = limited, roomy, fair_share
        self.policy_changes, self.remainder_minimum = policy, minimum
        load = "forecast" if forecasts else load
        super().boot(pull, load, send, sizes, fences, binds_late, 8, by_share)

    def begin(self, policy: Policy, fences: Sequence[str]) -> None:
        super().begin(replace(policy, **self.policy_changes), fences)
        for name, manager in self.managers.items():
            self.managers[name] = site = Site(manager.cpus, manager.fence)
            site.clock = lambda: self.now

    def booted(self, max_priority: int = 10) -> DaemonStarted:
        event = super().booted(max_priority)
        clusters = tuple(
            structs.replace(
                cluster,
                max_unanswered=None if self.roomy else 3,
                queue_depth=0 if self.roomy else 4,
                job_options=ALL_OPTIONS if cluster.name == "left" else (),
                other_filesystems={} if self.roomy else {"scratch": "old"},
                user_accounts={"none": {"a": "given", "*": "cfd"}},
                filesystems=("home",) if cluster.name == "left" else (),
                takes="both" if self.roomy or cluster.name == "left" else "jobs",
                max_tasks_per_dispatch=1000 if self.roomy else 2,
                granularity=60.0 if self.roomy else 1.0,
                maps={
                    "account": {"*": "*"},
                    "partition": {"*": "*"},
                    "qos": {"high": "urgent"} if cluster.name == "right" else {},
                    "licence": {"a": "lic_a"} if self.roomy else {},
                },
            )
            for cluster in event.clusters
        )
        return structs.replace(
            event,
            clusters=clusters,
            limits=event.limits if self.limited else LimitSettings(),
            fair_share=self.share_settings if self.by_share else None,
        )

    def decide(self, event: CoreEvent) -> Outcome:
        self.record.append(Step.of(event))
        outcome = self.core.step(event)
        self.steps.append((event, outcome))
        return outcome

    def new_core(self) -> Core:
        core = super().new_core()
        restore = core.restore

        def restore_and_record(state: RecoveredState) -> None:
            self.record.append(Step.of(state))  # now: the core changes its tasks
            restore(state)

        core.restore = restore_and_record  # type: ignore[assignment]
        return core

    # Users

    @rule(
        data=st.data(),
        cpus=st.sampled_from([1, 2, 4]),
        account=st.sampled_from([None, "cfd", "sub", "none"]),
        array=st.sampled_from([None, None, "0-3", "0-9%2"]),
        urgency=st.integers(0, 3),
        deadline=st.sampled_from([None, 30.0, 500.0, 5000.0]),
        rated=st.sampled_from([None, None, RATINGS]),
    )
    def submit_demanding(
        self,
        data: Any,
        cpus: int,
        account: str | None,
        array: str | None,
        urgency: int,
        deadline: float | None,
        rated: SiteRatings | None,
    ) -> None:
        """Submit a job that only some nodes, partitions or clusters can run."""
        demands: dict[str, Any] = data.draw(
            st.sampled_from(
                [
                    {},
                    {"memory": 8_000},
                    {"memory_per_cpu": 9_000},
                    {"gres": {"gpu": 1}},
                    {"gres": {"gpu:a100": 1}, "gres_alternatives": ({"gpu": 2},)},
                    {"partition": "short", "time_limit": 60.0},
                    {"partition": "short", "time_limit": 600.0},
                    {"partition": "closed"},
                    {"partition": "none"},
                    {"constraint": "fast"},
                    {"constraint": "slow"},
                    {"nodes": 1, "exclusive": True},
                    {"nodes": 2, "tasks": 2, "cpus": 2},
                    {"directory": "/scratch/a"},
                    {"writes": ("/home/a/out",)},
                    {"qos": "high"},
                    {"requeue": True},
                    {"clusters": ("right",)},
                    {"licences": {"unknown": 1}},
                    {"benchmark": 2.0},
                    {"partition": "closed,short,p"},
                    {"constraint": "slow|fast"},
                    {"manager_options": ManagerOptions(nodelist="l1")},
                    {"manager_options": ManagerOptions(exclude="l1", nice=5)},
                    {"manager_options": ManagerOptions(unlimited=True), "time_limit": None},
                    {"licences": {"a": 1}, "licence_choices": ({"a": 1}, {"b": 1})},
                ]
            )
        )
        limit = data.draw(st.sampled_from([None, 50.0, 100.0]))
        name = data.draw(st.sampled_from(["mine", "yours"]))
        fields: dict[str, Any] = {
            "id": len(self.jobs) + 1,
            "submitted": self.now,
            "user": self.users[name],
            "user_class": data.draw(st.sampled_from(["regular", "silver", "gold"])),
            "name": name,
            "estimated": limit or 100.0,
            "time_limit": limit,
            "cpus": cpus,
            "tasks": cpus,
            "account": account,
            "array": array,
            "owner_priority": urgency,
            "deadline": None if deadline is None else self.now + deadline,
            "ratings": rated,
        }
        self.submit_job(Job(**(fields | demands)))

    @precondition(lambda self: self.unknown())
    @rule(data=st.data(), code=st.sampled_from([None, 0, 1]))
    def vouch(self, data: Any, code: int | None) -> None:
        """An operator knows that an unknown task has run to its end."""
        job, index = data.draw(st.sampled_from(self.unknown()))
        self.step(UserRequested(self.now, "ran", job, (index,), by="root", exit_code=code))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), action=st.sampled_from(["cancel", "hold", "release"]))
    def ask_with_remainder(self, data: Any, action: Any) -> None:
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        last = self.jobs[job].indices[-1:]
        if action == "cancel":
            self.cancelled |= {(job, index) for index in self.jobs[job].indices}
        self.step(UserRequested(self.now, action, job, last, by="ada", with_remainder=True))

    @precondition(lambda self: self.core.tasks)
    @rule(
        data=st.data(),
        change=st.sampled_from(
            [{"name": "other"}, {"deadline": 2e5}, {"owner_priority": 3}, {"partition": "short"}]
        ),
        priority=st.sampled_from([None, None, 1, 3]),
        resend=st.booleans(),
    )
    def modify_otherwise(
        self, data: Any, change: dict[str, Any], priority: int | None, resend: bool
    ) -> None:
        job = self.jobs[data.draw(st.sampled_from(sorted({id for id, _ in self.core.tasks})))]
        if job.licence_choices:
            return
        changed = structs.replace(job, **change)
        self.jobs[job.id] = changed
        self.step(JobModified(self.now, changed, "as drawn", resend, priority, by="ada"))

    # Time

    @rule()
    def wait_until_due(self) -> None:
        """Let pass the time until something is due, at most a day."""
        due = self.core.next_due
        if due is not None and due - self.now < 86_400.0:
            self.now = max(due, self.now)
            self.step(TimerExpired(self.now))

    # Managers

    @rule(
        name=st.sampled_from(sorted(SIZES)),
        state=st.sampled_from(
            [
                *(State.PREEMPTED, State.PREEMPTED, State.TIMEOUT, State.OUT_OF_MEMORY),
                *(State.SUSPENDED, State.FAILED),
            ]
        ),
    )
    def end_otherwise(self, name: str, state: State) -> None:
        """A manager preempts, suspends or kills a job, and lists that."""
        manager = self.managers[name]
        manager.start(self.now)
        if state is State.SUSPENDED:
            for key in manager.those(State.RUNNING)[:1]:
                manager.rows[key] = structs.replace(manager.rows[key], state=state)
        else:
            manager.end(self.now, state)
        self.poll(name, False)

    @rule(
        name=st.sampled_from(sorted(SIZES)),
        reason=st.sampled_from(
            [*("Resources", "Priority", "QOSMaxCpuPerUserLimit", "AssocGrpJobsLimit"), "Licenses"]
        ),
    )
    def explain_pending(self, name: str, reason: str) -> None:
        """A manager gives a reason why its jobs wait, such as a limit of its own."""
        manager = self.managers[name]
        for key in manager.those(State.PENDING):
            manager.rows[key] = structs.replace(manager.rows[key], manager_reason=reason)
        self.poll(name, False)

    @rule(name=st.sampled_from(sorted(SIZES)))
    def resume_suspended(self, name: str) -> None:
        manager = self.managers[name]
        for key in manager.those(State.SUSPENDED):
            manager.rows[key] = structs.replace(manager.rows[key], state=State.RUNNING)
        self.poll(name, False)

    @rule(
        name=st.sampled_from(sorted(SIZES)),
        has_nodes=st.booleans(),
        head=st.sampled_from([None, None, (2, 40.0), (4, 1e5), (8, 300.0)]),
        plan=st.sampled_from([None, None, 50.0, 500.0, math.inf]),
        windows=st.sampled_from([(), (), ((60.0, 1),), ((5.0, 0), (500.0, 2))]),
        licences=st.sampled_from([None, None, 0, 1, 2]),
        requires_accounts=st.sampled_from([False, False, True]),
        in_order=st.booleans(),
    )
    def vary(self, name: str, **outlook: Any) -> None:
        """Change nodes, queue and windows of a cluster, as others use it."""
        site = self.managers[name]
        assert isinstance(site, Site)
        site.has_nodes, site.head, site.plan = (outlook[k] for k in ("has_nodes", "head", "plan"))
        site.windows, site.free_licences = outlook["windows"], outlook["licences"]
        site.requires_accounts, site.in_order = outlook["requires_accounts"], outlook["in_order"]
        self.poll(name, False)

    @precondition(lambda self: any(isinstance(action, Dispatch) for action in self.actions))
    @rule(data=st.data(), access=st.sampled_from(["", "commands"]))
    def answer_in_part(self, data: Any, access: str) -> None:
        """A manager takes some tasks of an array, and of others the answer is lost."""
        action = next(action for action in self.actions if isinstance(action, Dispatch))
        self.actions.remove(action)
        if not self.wanted(action):
            self.step(DispatchSkipped(self.now, ((action.job, action.dispatch_id),)))
            return
        indices = self.indices(action)
        taken = data.draw(st.integers(0, len(indices)))
        lost = data.draw(st.integers(0, len(indices) - taken))
        tag = tag_of(INSTANCE, action.job, action.dispatch_id)
        self.step(DispatchStarted(self.now, action.job, action.dispatch_id))
        natives = self.managers[action.cluster].submit(
            tag, indices[: taken + lost], self.jobs[action.job].cpus
        )
        self.step(
            DispatchAccepted(
                self.now,
                action.job,
                action.dispatch_id,
                {index: natives[index] for index in indices[:taken]},
                access,
                tuple(indices[taken + lost :]),
                tuple(indices[taken : taken + lost]),
                REASON if taken < len(indices) else "",
            )
        )

    @rule(name=st.sampled_from(sorted(SIZES)))
    def poll_in_parts(self, name: str) -> None:
        """The first rows of a listing arrive before the others."""
        if name in self.configured:
            rows = tuple(self.managers[name].rows.values())[:2]
            self.step(ListingReceived(self.now, name, rows=rows, partial=True))

    @rule(
        data=st.data(),
        waits=st.lists(st.sampled_from([0.0, 20.0, 300.0, None]), min_size=8, max_size=8),
        ago=st.sampled_from([0.0, 5.0, 1000.0]),
        free=st.integers(0, 4),
    )
    def forecast(self, data: Any, waits: list[float | None], ago: float, free: int) -> None:
        columns = [(waits[i], waits[i + 1]) for i in range(0, 8, 2)]
        event = StartsForecast(
            self.now,
            self.now - ago,
            (100.0, 1000.0),
            {
                "left": dict(zip((2, 8), columns[:2], strict=True)),
                "right": dict(zip((1, 4), columns[2:], strict=True)),
            },
            {"left": free, "right": 4 - free},
        )
        if self.core.is_news(event):
            self.step(event)

    @precondition(lambda self: self.configured)
    @rule(data=st.data(), tree=st.sampled_from([TREE, ShareTree(users={"b": 5.0})]))
    def report_shares(self, data: Any, tree: ShareTree) -> None:
        name = data.draw(st.sampled_from(self.configured))
        self.step(SharesReported(self.now, name, tree))

    # Reservations

    @precondition(lambda self: self.configured)
    @rule(data=st.data(), used=st.integers(0, 3), held=st.booleans())
    def survey_pools(self, data: Any, used: int, held: bool) -> None:
        """Deliver a survey of a manager that reserves processors, and chooses them itself."""
        self.deliver_pools(data.draw(st.sampled_from(self.configured)), used, held, size=1)

    def deliver_pools(self, name: str, used: int, held: bool, size: int) -> None:
        pools = tuple(
            ProcessorPool((node,), 4, ((self.now, self.now + 60.0, used),)) for node in NODES[name]
        )
        reservations = tuple(
            ManagerReservation(
                manager_name(INSTANCE, reservation.id), reservation.start, reservation.end, (), size
            )
            for reservation in self.core.reservations.by_id.values()
            if held and reservation.cluster == name
        )
        self.step(SurveyReceived(self.now, name, Survey(self.now, (), reservations, pools, 5.0)))

    @rule(
        kind=st.sampled_from(["flexible", "size", "time"]),
        by_node=st.booleans(),
        ahead=st.sampled_from([0.0, 20.0, 200.0]),
        wants=st.sampled_from([{}, {"b": 1}, {"a": 2}]),
        bounded=st.booleans(),
    )
    def reserve_freely(
        self, kind: str, by_node: bool, ahead: float, wants: dict[str, int], bounded: bool
    ) -> None:
        """Request a window, a size or a duration that the core may choose."""
        for name in self.configured:
            self.deliver_survey(name, False, True, bounded)
        self.store()
        ready, deadline = self.now + ahead, self.now + ahead + 400.0
        match kind:
            case "flexible":
                request = ReservationRequest.flexible(1, 50.0, ready, deadline)
            case "size":
                request = ReservationRequest.best_size(1, 3, 80.0, ready, deadline)
            case _:
                request = ReservationRequest.best_time(1, 20.0, 300.0, ready, deadline)
        limit = CalendarLimit(99, "courses", "a", 1, ((self.now + 10.0, self.now + 90.0),))
        self.step(
            ReservationRequested(
                self.now,
                self.ledger.next_reservation(),
                "a",
                request,
                by_node,
                tuple(self.configured),
                self.now + 1e4,
                licences=wants,
                by="root" if bounded else "",
                users=("b",),
                calendar_limits=(limit,) if bounded else (),
                accounts=("cfd",) if bounded else (),
            )
        )

    @precondition(lambda self: self.configured)
    @rule(
        data=st.data(),
        sizes=st.lists(st.integers(1, 2), min_size=1, max_size=3),
        ahead=st.sampled_from([5.0, 100.0]),
        wants=st.sampled_from([{}, {}, {"a": 1}]),
        then=st.one_of(
            st.lists(st.sampled_from(RESERVATION_STEPS), min_size=2, max_size=8),
            st.just(["bind", "job", "work", "begin", "work", "end", "release"]),
            st.just(["fill", "work", "bind", "begin", "fill", "work", "end"]),
            st.just(["reject", "bind", "repair", "recount"]),
            st.just(["refuse"] * 6),
            st.just(["bind", "lose", *["refuse"] * 18]),
        ),
    )
    def keep_reservations(
        self, data: Any, sizes: list[int], ahead: float, wants: dict[str, int], then: list[str]
    ) -> None:
        """Reserve nodes of a cluster; its manager binds, refuses or loses them, and nodes fail."""
        name = data.draw(st.sampled_from(self.configured))
        self.deliver_survey(name, False, False, False)
        for size in sizes:
            self.reserve(size, ahead, 100.0, 0.0, wants)
        for step in then:
            self.change_reservations(name, step)

    def change_reservations(self, name: str, step: str) -> None:
        by_id = self.core.reservations.by_id
        there = [r for _, r in sorted(by_id.items()) if r.cluster == name]
        open_there = [r for r in there if r.state in OPEN_STATES]
        match step:
            case "bind":
                for reservation in open_there:
                    if reservation.nodes and reservation.nodes != reservation.bound_nodes:
                        self.step(ReservationBound(self.now, reservation.id, reservation.nodes))
            case "refuse" if open_there:
                self.step(ReservationRejected(self.now, open_there[0].id, REASON))
                self.deliver_survey(name, False, True, False)
            case "reject":
                for reservation in open_there:
                    self.step(ReservationRejected(self.now, reservation.id, REASON))
            case "recount":
                self.deliver_pools(name, used=0, held=True, size=3)
            case "lose":
                self.deliver_survey(name, False, False, True)
            case "fail":
                self.deliver_survey(name, True, True, False)
            case "repair":
                self.deliver_survey(name, False, True, False)
            case "job" if open_there:
                self.submit_job(
                    Job(
                        id=len(self.jobs) + 1,
                        submitted=self.now,
                        estimated=10.0,
                        time_limit=10.0,
                        user=open_there[-1].user,
                        clusters=(name,),
                        reservation=open_there[-1].id,
                    )
                )
            case "fill":
                self.submit_many(3, 2, "mine", 400.0)
            case "work":
                self.work()
            case "begin" if open_there:
                self.now = max(self.now, open_there[0].start)
                self.step(TimerExpired(self.now))
            case "end" if open_there:
                self.now = max(self.now, open_there[0].until + 1.0)
                self.step(TimerExpired(self.now))
                self.poll(name, False)
            case "cancel" if open_there:
                self.step(ReservationCancelled(self.now, open_there[0].id, "a"))
            case "release":
                for reservation in there:
                    if reservation.state not in OPEN_STATES:
                        self.step(ReservationReleased(self.now, reservation.id))

    # Situations

    def submit_many(
        self,
        number: int,
        cpus: int,
        name: str,
        limit: float | None,
        choices: tuple[dict[str, int], ...] = (),
    ) -> None:
        for _ in range(number):
            self.submit_job(
                Job(
                    id=len(self.jobs) + 1,
                    submitted=self.now,
                    estimated=limit or 100.0,
                    time_limit=limit,
                    user=self.users[name],
                    name=name,
                    cpus=cpus,
                    tasks=cpus,
                    licences=choices[0] if choices else {},
                    licence_choices=choices,
                )
            )

    @rule(
        name=st.sampled_from(sorted(SIZES)),
        numbers=st.tuples(st.integers(1, 5), st.integers(0, 4)),
        cpus=st.sampled_from([1, 2, 4]),
        limit=st.sampled_from([None, 50.0, 500.0]),
        waits=st.sampled_from([1.0, 6.0, 20.0]),
        withdraws=st.booleans(),
        choices=st.sampled_from([(), (), EITHER[0], ({"c": 1}, {"a": 1})]),
    )
    def make_room(
        self,
        name: str,
        numbers: tuple[int, int],
        cpus: int,
        limit: float | None,
        waits: float,
        withdraws: bool,
        choices: tuple[dict[str, int], ...],
    ) -> None:
        """A cluster has room while tasks wait on the other: they may be pulled to it."""
        for user, number in zip(("mine", "yours"), numbers, strict=True):
            self.submit_many(number, cpus, user, limit, choices)
        self.work()
        self.now += waits
        manager = self.managers[name]
        while manager.used():
            manager.end(self.now, State.COMPLETED)
        for _ in range(2):
            for other in sorted(SIZES, key=name.__eq__):  # `name` comes last
                self.poll(other, False)
            if withdraws:
                self.carry_out()
        self.now += waits
        for other in SIZES:
            manager.start(self.now)
            self.poll(other, False)

    @rule(
        wants=st.sampled_from([{"a": 1}, {"a": 2}, {"a": 1, "b": 1}, {"b": 2}]),
        number=st.integers(2, 6),
        limits=st.lists(st.sampled_from([None, 20.0, 50.0, 900.0]), min_size=6, max_size=6),
        urgent=st.booleans(),
        waits=st.sampled_from([1.0, 100.0, 700.0]),
    )
    def compete_for_licences(
        self,
        wants: dict[str, int],
        number: int,
        limits: list[float | None],
        urgent: bool,
        waits: float,
    ) -> None:
        """Users wait for tokens in lines; short jobs may overtake, and holders are recalled."""
        for place in range(number):
            name = ("mine", "yours")[place % 2]
            limit = limits[place]
            self.submit_job(
                Job(
                    id=len(self.jobs) + 1,
                    submitted=self.now,
                    estimated=limit or 100.0,
                    time_limit=limit,
                    user=self.users[name],
                    name=name,
                    licences={"a": 1} if place % 3 == 2 else wants,
                    owner_priority=3 if urgent and place == number - 1 else 0,
                )
            )
        self.carry_out()
        self.poll("left", False)
        self.now += waits
        for name in SIZES:
            self.poll(name, False)
        self.carry_out()
        self.work()

    @rule(
        array=st.sampled_from(["0-5", "1-9:2", "0-7%2"]),
        kind=st.sampled_from(["aftercorr", "aftercorr", "afterok", "afterany", "afternotok"]),
        kill=st.booleans(),
        ends=st.lists(st.sampled_from([State.COMPLETED, State.FAILED]), max_size=5),
        then=st.sampled_from(["cancel", "hold", "release", "modify", "none"]),
    )
    def pair_arrays(self, array: str, kind: str, kill: bool, ends: list[State], then: Any) -> None:
        """An array depends on another, of which some tasks end."""
        target = Job(
            id=len(self.jobs) + 1, submitted=self.now, estimated=50.0, array=array, user="a"
        )
        self.submit_job(target)
        if target.id not in self.jobs:
            return
        paired = structs.replace(
            target,
            id=len(self.jobs) + 1,
            dependency=f"{kind}:{target.id}",
            kill_on_invalid_dep=kill,
        )
        self.submit_job(paired)
        for state in ends:
            self.work()
            self.now += 2.0
            for name in SIZES:
                self.managers[name].end(self.now, state)
                self.poll(name, False)
        if paired.id not in self.jobs:
            return
        if then == "modify" and any(job == paired.id for job, _ in self.core.tasks):
            changed = structs.replace(paired, time_limit=70.0, estimated=70.0)
            self.jobs[paired.id] = changed
            self.step(JobModified(self.now, changed, "as drawn", True, by="ada"))
        elif then in ("cancel", "hold", "release"):
            if then == "cancel":
                self.cancelled |= {(paired.id, index) for index in paired.indices}
            indices = paired.indices[1:4]
            self.step(UserRequested(self.now, then, paired.id, indices, by="ada"))

    @rule(
        name=st.sampled_from(sorted(SIZES)),
        cpus=st.sampled_from([1, 3]),
        array=st.sampled_from([None, "0-3%1"]),
        wants=st.sampled_from([{}, {"a": 1}, {"b": 2}]),
        back=st.booleans(),
    )
    def outlast_limit(
        self, name: str, cpus: int, array: str | None, wants: dict[str, int], back: bool
    ) -> None:
        """A manager forgets running tasks until their limits are over; it may list them again."""
        if name not in self.configured:
            return
        job = Job(
            id=len(self.jobs) + 1,
            submitted=self.now,
            estimated=60.0,
            time_limit=60.0,
            user="a",
            cpus=cpus,
            tasks=cpus,
            licences=wants,
            array=array,
            clusters=(name,),
        )
        self.submit_job(job)
        self.submit_job(structs.replace(job, id=len(self.jobs) + 1))
        self.work()
        manager = self.managers[name]
        forgotten = {key: row for key, row in manager.rows.items() if row.state is State.RUNNING}
        for key in forgotten:
            del manager.rows[key]
            manager.unrecorded.add(key)
            self.lost.add(place_of(key))
            self.excused[place_of(key)] += 1
        for _ in range(3):
            manager.boots(self.now)
            self.poll(name, True)
            self.carry_out()
            self.now += 200.0
        self.work()
        if back:
            manager.rows |= {key: row for key, row in forgotten.items() if key not in manager.rows}
            self.poll(name, True)
            self.carry_out()

    @rule(
        name=st.sampled_from(sorted(SIZES)),
        end=st.sampled_from(["cancel", "lost", "end"]),
        listed=st.sampled_from([State.PENDING, State.PENDING, State.RUNNING]),
        requeued=st.booleans(),
        ends_again=st.booleans(),
    )
    def relist(self, name: str, end: str, listed: State, requeued: bool, ends_again: bool) -> None:
        """A manager lists a task again that has started, and has ended here."""
        if name not in self.configured:
            return
        job = Job(
            id=len(self.jobs) + 1, submitted=self.now, estimated=60.0, user="a", clusters=(name,)
        )
        self.submit_job(job)
        self.work()
        manager, place = self.managers[name], (job.id, 0)
        rows = {key: row for key, row in manager.rows.items() if place_of(key) == place}
        if end == "cancel":
            self.cancelled.add(place)
            self.step(UserRequested(self.now, "cancel", job.id, by="ada"))
            self.carry_out()
        elif end == "lost":
            self.silence(name)
            if place in self.unknown():
                self.step(UserRequested(self.now, "lost", job.id, (0,), by="root"))
        else:
            manager.end(self.now, State.COMPLETED)
        self.poll(name, False)
        if requeued and place in self.final:
            self.requeue_job(job.id)
            if ends_again:
                self.work()
                manager.end(self.now, State.COMPLETED)
                self.poll(name, False)
        self.now += 1.0
        manager.boots(self.now)
        self.excused[place] += 1
        for key, row in rows.items():
            manager.rows[key] = structs.replace(row, state=listed, ended=None)
        for _ in range(2):
            self.poll(name, True)
            self.carry_out()
            self.now += 100.0

    # The calendar

    @rule(
        act=st.sampled_from(
            [
                LimitLicence("a", 0, 60.0),
                LimitLicence("b", 1, 100.0, 30.0),
                DrainCluster("left", "power"),
                Reserve(least=1, most=1, duration=40.0, by_node=True),
            ]
        ),
        ahead=st.sampled_from([0.0, 50.0]),
    )
    def add_to_calendar(self, act: CalendarAct, ahead: float) -> None:
        self.store()
        number = self.ledger.next_reservation()
        entry = CalendarEntry(
            id=number,
            name="" if isinstance(act, Reserve) else f"entry {number}",
            act=act,
            rule="hourly",
            zone="UTC",
            owner="a" if isinstance(act, Reserve) else "",
            created=self.now,
            grace=60.0,
            next_run=self.now + ahead,
        )
        self.step(CalendarEntrySet(self.now, entry))

    @precondition(lambda self: self.core.calendar.entries)
    @rule(
        data=st.data(),
        runs=st.lists(
            st.sampled_from(["run", "run", "skip", "start", "stale", "remove"]),
            min_size=1,
            max_size=4,
        ),
    )
    def keep_calendar(self, data: Any, runs: list[str]) -> None:
        """Run or remove an entry; a run of a series requests its reservation."""
        entries = self.core.calendar.entries
        id = data.draw(st.sampled_from(sorted(entries)))
        for what in runs:
            if id in entries:
                self.run_entry(entries[id], what)

    def run_entry(self, entry: CalendarEntry, what: str) -> None:
        self.store()
        due = entry.running or entry.next_run or self.now
        if what == "remove":
            self.step(CalendarEntryRemoved(self.now, entry.id))
        elif isinstance(entry.act, Reserve) and what == "run":
            request = ReservationRequest.fixed(1, due, due + entry.act.duration)
            clusters, horizon = tuple(self.configured), self.now + 1e4
            self.step(
                ReservationRequested(
                    *(self.now, self.ledger.next_reservation(), "a", request, True, clusters),
                    horizon,
                    series=entry.id,
                    next_occurrence=due + 100.0,
                )
            )
        else:
            results = {"skip": RunResult.SKIPPED, "start": RunResult.STARTED}
            result = results.get(what, RunResult.DONE)
            stale = 1.0 if what == "stale" else 0.0
            self.step(CalendarRun(self.now, entry.id, due - stale, result, due + 100.0))
            if isinstance(entry.act, DrainCluster) and what == "run" and self.configured:
                cluster = self.configured[0]
                self.step(ClusterDrained(self.now, cluster, reason="power", entry=entry.name))

    # The comparisons of `Restored` are those of another test.

    def catch_up(self) -> None:
        pass

    def check_invariants(self, *_: object) -> None:
        pass

    def check_restart(self) -> None:
        pass

    def teardown(self) -> None:
        if hasattr(self, "core"):
            self.store()
            self.ledger.close()


class Site(Manager):
    """A manager with several nodes and partitions, whose queue and windows vary."""

    clock: Callable[[], float]
    has_nodes = False  # else one partition of all processors
    head: tuple[int, float] | None = None  # of jobs that metasched did not send
    plan: float | None = None  # seconds until the head starts
    windows: tuple[tuple[float, int], ...] = ()  # seconds from now, processors left
    free_licences: int | None = None
    requires_accounts = False
    in_order = False

    def facts(self) -> ClusterInfo:
        info, now = super().facts(), self.clock()
        partitions = self.partitions(info) if self.has_nodes else info.partitions
        licences = {} if self.free_licences is None else {"a": self.free_licences}
        accounts = UserAccounts(default="cfd", accounts={"cfd": ("p",)})
        return structs.replace(
            info,
            partitions=partitions,
            queue_head=self.head or info.queue_head,
            head_plan=None
            if self.plan is None
            else HeadPlan(now + self.plan, partitions, licences),
            pending_jobs=info.pending_jobs + (self.head is not None),
            owed_by_others=0.0 if self.head is None else self.head[0] * self.head[1],
            upcoming_windows=tuple((now + start, left) for start, left in self.windows),
            running_jobs=tuple((now + 50.0, cpus) for _, cpus in info.running_jobs),
            free_licences=licences,
            associations=Associations(required=True, users={"a": accounts, "b": accounts})
            if self.requires_accounts
            else None,
            in_order=self.in_order,
            use_source="its accounting",
        )

    def partitions(self, info: ClusterInfo) -> tuple[Partition, ...]:
        free = info.cpus - info.used_cpus
        whole = NodeCapacity(
            count=1,
            cpus=info.cpus,
            free_cpus=free,
            memory=16_000,
            free_memory=16_000 * free // max(info.cpus, 1),
            gres={"gpu": 2},
            free_gres={"gpu": 2 if free > 2 else 0},
            features=FEATURES,
        )
        down = replace(whole, gres={}, free_gres={}, free_cpus=0, up=False)
        return (
            Partition("p", (whole, down), default=True, default_time=300.0),
            Partition("short", (whole,), max_time=100.0, max_nodes=1),
            Partition("closed", (whole,), up=False),
        )


class SeededDraws(PrimitiveProvider):
    """Draws choices by a seed alone; that of Hypothesis also draws constants of loaded modules."""

    lifetime = "test_case"
    seed = 0

    def __init__(self, conjecturedata: Any, /) -> None:
        super().__init__(conjecturedata)
        self._random = Random(self.seed)

    def draw_boolean(self, p: float = 0.5) -> bool:
        return self._random.random() < p

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
    ) -> int:
        if weights is not None:
            return self._random.choices(list(weights), list(weights.values()))[0]
        low = -1000 if min_value is None else min_value
        return self._random.randint(low, low + 2000 if max_value is None else max_value)

    def draw_float(
        self,
        *,
        min_value: float = -math.inf,
        max_value: float = math.inf,
        allow_nan: bool = True,
        smallest_nonzero_magnitude: float,
    ) -> float:
        return round(self._random.uniform(max(min_value, -1e9), min(max_value, 1e9)), 3)

    def draw_string(self, intervals: Any, *, min_size: int = 0, max_size: int = 8) -> str:
        raise TypeError("no rule draws texts")

    def draw_bytes(self, min_size: int = 0, max_size: int = 8) -> bytes:
        raise TypeError("no rule draws bytes")


AVAILABLE_PROVIDERS[BACKEND] = f"{__name__}.{SeededDraws.__name__}"


def draw_life(seed: int) -> Life:
    """Return the life that a seed draws."""
    lives: list[SeededLife] = []

    def begin_life() -> SeededLife:
        lives.append(SeededLife())
        return lives[-1]

    SeededDraws.seed = seed
    run_state_machine_as_test(
        begin_life,  # type: ignore[arg-type]
        settings=settings(
            backend=BACKEND,
            max_examples=2,  # the first is the simplest, whatever the seed
            stateful_step_count=STEPS,
            phases=[Phase.generate],
            database=None,
            derandomize=True,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    drawn = lives[-1]
    return Life(name=f"life {seed}", remainder_minimum=drawn.remainder_minimum, steps=drawn.record)
