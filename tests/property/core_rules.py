"""Rules: users, operators and managers act, and the daemon may crash between any two steps."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from msgspec import structs

from metasched.core.events import (
    ClaimsRevoked,
    ClusterDrained,
    ClusterResumed,
    ClusterUnreachable,
    Dispatch,
    DispatchAccepted,
    DispatchRejected,
    DispatchSkipped,
    DispatchStarted,
    DispatchUncertain,
    JobModified,
    JobRequeued,
    JobSubmitted,
    LicencesCounted,
    LicenceSet,
    LicencesReleased,
    ListingReceived,
    QueryAccounting,
    RequeuedTask,
    Revoke,
    UserRequested,
    Withdraw,
)
from metasched.model.job import Job, State
from metasched.model.licence import LicenceCount
from metasched.model.refusal_scope import RefusalScope
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy
from tests.property.core_model import EITHER, INSTANCE, KINDS, SIZES, WANTS, SubmitCommand
from tests.property.manager_rules import ManagerRules
from tests.property.managers import Key, Manager, place_of

FATES = ("lost answer", "lost", "refused")
SCOPES: tuple[RefusalScope, ...] = ("cluster", "user", "job")
# arguments of `Deeds.boot`
BEGINNING: dict[str, Any] = {
    "pull": st.booleans(),
    "load": st.sampled_from(["observed", "paper"]),
    "send": st.sampled_from(["at_once", "at_once", "late"]),
    "sizes": st.lists(st.sampled_from([1, 2, 4, 6, 8]), max_size=6),
    "fences": st.sampled_from([[], [], ["left"], ["left", "right"]]),
}


class Deeds(ManagerRules):
    """Each rule is one action of a user, the daemon, an operator or a manager."""

    users: Mapping[str, str] = MappingProxyType({"mine": "a", "yours": "b"})  # by name of a job

    @initialize(**BEGINNING)
    def boot(self, pull: bool, load: str, send: str, sizes: list[int], fences: list[str]) -> None:
        """Boot with a listing of both clusters, and submit a job for each of `sizes`."""
        policy = Policy(pull=pull, load=load, send=send, pull_after=5.0, patience=60.0)  # type: ignore[arg-type]
        self.begin(policy, fences)
        self.step(self.booted())
        for name in SIZES:
            self.poll(name, True)
        for cpus in sizes:
            self.submit(cpus, None, None, None, False, None, [], False, False, "mine", {}, None)
        while self.actions:
            self.act(None, "done")

    # Users

    @rule(
        cpus=st.sampled_from([1, 2, 4, 6, 8]),
        limit=st.sampled_from([None, 60.0, 600.0]),
        deadline=st.one_of(st.none(), st.floats(-100, 1e5)),
        begin=st.one_of(st.none(), st.floats(0, 50)),
        held=st.booleans(),
        array=st.sampled_from([None, None, None, "0-2", "1-4%1", "1-6%2", "2,5%1", "3"]),
        dependency_types=st.lists(st.sampled_from(KINDS), max_size=2),
        any_of=st.booleans(),
        kill=st.booleans(),
        name=st.sampled_from(["mine", "yours"]),
        wants=st.sampled_from((*WANTS, *EITHER)),
        data=st.data(),
    )
    def submit(
        self,
        cpus: int,
        limit: float | None,
        deadline: float | None,
        begin: float | None,
        held: bool,
        array: str | None,
        dependency_types: list[str],
        any_of: bool,
        kill: bool,
        name: str,
        wants: dict[str, int] | tuple[dict[str, int], ...],
        data: Any,
    ) -> None:
        terms = [
            term
            for dependency_type in dependency_types
            if (term := self.some_term(dependency_type, array, data)) is not None
        ]
        job = Job(
            id=len(self.jobs) + 1,
            submitted=self.now,
            user=self.users[name],
            estimated=limit or 100.0,
            time_limit=limit,
            cpus=cpus,
            tasks=cpus,
            deadline=None if deadline is None else self.now + deadline,
            begin=None if begin is None else self.now + begin,
            held=held,
            name=name,
            licences=wants[0] if isinstance(wants, tuple) else wants,
            licence_choices=wants if isinstance(wants, tuple) else (),
            array=array,
            dependency=("?" if any_of else ",").join(terms) or None,
            kill_on_invalid_dep=kill,
        )
        self.submit_job(job)

    def submit_job(self, job: Job) -> None:
        fates = self.fates_of(job) if job.dependency else ()
        self.jobs[job.id] = self.submitted[job.id] = job
        self.step(JobSubmitted(self.now, job, fates))

    def some_term(self, dependency_type: str, array: str | None, data: Any) -> str | None:
        if dependency_type == "singleton":
            return dependency_type
        jobs = sorted(self.jobs)
        if (
            dependency_type == "aftercorr" and array is not None
        ):  # an array target must have equal indices
            jobs = [j for j in jobs if self.jobs[j].array == array or not self.jobs[j].array]
        if not jobs:
            return None
        job = data.draw(st.sampled_from(jobs))
        index = data.draw(st.sampled_from((None, *self.jobs[job].indices)))
        later = "+1" if dependency_type == "after" and data.draw(st.booleans()) else ""
        return f"{dependency_type}:{job}{'' if index is None else f'_{index}'}{later}"

    @rule(data=st.data(), action=st.sampled_from(["cancel", "hold", "release"]))
    def ask(self, data: st.DataObject, action: str) -> None:
        if not self.jobs:
            return
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        tasks = tuple(data.draw(st.sets(st.sampled_from(self.jobs[job].indices))))
        if action == "cancel":
            self.cancelled |= {(job, i) for i in tasks or self.jobs[job].indices}
        self.step(UserRequested(self.now, action, job, tasks or None, by="ada"))  # type: ignore[arg-type]

    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        if not self.jobs:
            return
        self.requeue_job(data.draw(st.sampled_from(sorted(self.jobs))))

    def requeue_job(self, job: int) -> None:
        ended = [i for i in self.jobs[job].indices if (job, i) in self.final]
        last = max(
            sending for _, sending in (self.again.get((job, i), (0, 0)) for i in ended or [0])
        )
        tasks = tuple(
            RequeuedTask(i, self.final[job, i], self.again.get((job, i), (0, 0))[0]) for i in ended
        )
        fates = self.fates_of(self.jobs[job]) if self.jobs[job].dependency else ()
        self.step(UserRequested(self.now, "requeue", job, by="ada"))
        if tasks:
            priority = self.priority(job)
            self.step(JobRequeued(self.now, self.jobs[job], priority, last, tasks, "ada", fates))

    def priority(self, job: int) -> int:
        """Return the priority of a requeued job."""
        return 10

    @rule(
        data=st.data(),
        limit=st.sampled_from([None, 50.0, 200.0]),
        clusters=st.sampled_from([(), ("left",)]),
        begin=st.one_of(st.none(), st.floats(0, 50)),
        resend=st.booleans(),
    )
    def modify(
        self,
        data: st.DataObject,
        limit: float | None,
        clusters: tuple[str, ...],
        begin: float | None,
        resend: bool,
    ) -> None:
        if not self.core.tasks:
            return
        job = structs.replace(
            self.jobs[data.draw(st.sampled_from(sorted({id for id, _ in self.core.tasks})))],
            time_limit=limit,
            estimated=limit or 100.0,
            clusters=clusters,
            begin=None if begin is None else self.now + begin,
        )
        self.jobs[job.id] = job
        self.step(JobModified(self.now, job, "as drawn", resend, by="ada"))

    # The daemon

    @precondition(lambda self: self.actions)
    @rule(data=st.data(), fate=st.sampled_from(["done", "done", *FATES, "slow"]))
    def act(self, data: st.DataObject, fate: str) -> None:
        """Carry out the next action; the request or its answer may be lost, or late."""
        action = self.actions.pop(0)
        manager = self.managers[action.cluster]
        if isinstance(action, QueryAccounting):
            if fate == "done":
                self.step(manager.trace(action, self.now))
            return
        if isinstance(action, Revoke):
            self.revoke(manager, action, fate)
            return
        tag = tag_of(INSTANCE, action.job, action.dispatch_id)
        if isinstance(action, Withdraw):
            if fate in ("done", "lost answer"):
                manager.withdraw(tag, action.native_ids, action.only_pending, self.now)
            if fate != "done":
                self.begun_withdrawals.append(action)
                self.actions.append(action)
            return
        if not self.wanted(action):
            self.step(DispatchSkipped(self.now, ((action.job, action.dispatch_id),)))
            return
        self.step(DispatchStarted(self.now, action.job, action.dispatch_id))
        command = SubmitCommand(action, tag, self.indices(action), self.jobs[action.job].cpus)
        if fate == "slow":
            self.under_way.append(command)
        else:
            self.answer_command(command, data, fate)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), fate=st.sampled_from(["done", "done", *FATES]))
    def answer(self, data: st.DataObject, fate: str) -> None:
        """A slow submission reaches its manager, and is answered."""
        self.answer_command(self.under_way.pop(0), data, fate)

    def answer_command(self, command: SubmitCommand, data: st.DataObject, fate: str) -> None:
        action, manager = command.action, self.managers[command.action.cluster]
        dispatch = action.job, action.dispatch_id
        match fate:
            case "done" if manager.refuses(len(command.indices)):
                self.step(DispatchRejected(self.now, *dispatch, "limit", True, "user"))
            case "done":
                natives = manager.submit(command.tag, command.indices, command.cpus)
                self.step(DispatchAccepted(self.now, *dispatch, natives))
            case "lost answer":
                taken = data.draw(st.integers(1, len(command.indices)))
                manager.submit(command.tag, command.indices[:taken], command.cpus)
                self.step(DispatchUncertain(self.now, *dispatch, "time-out"))
            case "lost":
                self.step(DispatchUncertain(self.now, *dispatch, "time-out"))
            case "refused":
                again = data.draw(st.booleans())
                scope: RefusalScope = data.draw(st.sampled_from(SCOPES)) if again else "cluster"
                self.step(DispatchRejected(self.now, *dispatch, "no", again, scope))

    def revoke(self, manager: Manager, action: Revoke, fate: str) -> None:
        if fate in ("done", "lost answer"):
            reported = [
                ((c.tag, c.task), manager.claims.setdefault((c.tag, c.task), True))
                for c in action.claims
                if not c.started
            ]
            keys = [(c.tag, c.task) for c in action.claims]
            ends = tuple((*key, manager.ends[key]) for key in keys if key in manager.ends)
            if fate == "done" and (reported or ends):
                never = tuple(key for key, revoked in reported if revoked)
                begun = tuple(key for key, revoked in reported if not revoked)
                self.step(ClaimsRevoked(self.now, never, begun, ends))
        if fate in ("lost answer", "lost"):  # otherwise it is not carried out at all
            keys = [(c.tag, c.task) for c in action.claims if not c.started]
            unanswered = tuple(key for key in keys if self.core.awaits_claim(*key))
            if unanswered:
                self.step(ClaimsRevoked(self.now, unanswered=unanswered))

    @rule(
        submitted=st.booleans(),
        at_act=st.booleans(),
        configured=st.sampled_from([["left", "right"], ["left", "right"], ["right"]]),
        max_priority=st.sampled_from([10, 10, 3]),
        clock=st.sampled_from([0.0, 0.0, -3600.0, 3600.0]),
    )
    def crash(
        self,
        submitted: bool,
        at_act: bool,
        configured: list[str],
        max_priority: int,
        clock: float = 0.0,
    ) -> None:
        """Kill the daemon, perhaps during dispatches, and restart it from its database.

        The configuration may have changed meanwhile, and the clock may have been set by `clock`.
        """
        action = self.actions[0] if at_act and self.actions else None
        if isinstance(action, Dispatch) and self.wanted(action):
            self.step(DispatchStarted(self.now, action.job, action.dispatch_id))
            if submitted:
                tag = tag_of(INSTANCE, action.job, action.dispatch_id)
                cpus = self.jobs[action.job].cpus
                self.managers[action.cluster].submit(tag, self.indices(action), cpus)
        for command in self.under_way if submitted else ():
            manager = self.managers[command.action.cluster]
            manager.submit(command.tag, command.indices, command.cpus)
        self.under_way.clear()
        self.begun_withdrawals.clear()
        self.actions.clear()
        self.shift_clocks(clock)
        self.clock_set_back |= clock < 0
        self.core = self.restored()
        self.configured = configured
        self.step(self.booted(max_priority))
        self.check_restart()

    def check_restart(self) -> None:
        """Assert what holds after each restart; called at the end of `crash`."""

    @rule(
        name=st.sampled_from(sorted(SIZES)),
        full=st.booleans(),
        unusable=st.sampled_from([0, 0, 0, 1, 2]),
        readable=st.sampled_from(["task", "dispatch", "nothing"]),
    )
    def poll(self, name: str, full: bool, unusable: int = 0, readable: str = "task") -> None:
        """Deliver a listing; quarantine each row whose position `unusable` divides.

        The row shows its task, or its dispatch alone, or neither.
        """
        if name not in self.configured:
            return
        manager = self.managers[name]
        set_aside = set(list(manager.rows)[::unusable] if unusable else ())
        present = [key for key in set_aside if self.core.state.task_by_tag(*key) is not None]
        withdrawn = self.not_begun()
        unreadable = {"task": set_aside, "dispatch": {(tag, -1) for tag, _ in set_aside}}
        self.step(
            ListingReceived(
                self.now,
                name,
                rows=tuple(row for key, row in manager.rows.items() if key not in set_aside),
                vanished=tuple(sorted(manager.listed - manager.rows.keys())),
                info=manager.facts(),
                full=full,
                since=manager.up_since,
                until=self.now,
                previous_taken=manager.listed_at,
                up_since=manager.boot,
                in_flight=tuple((c.action.job, c.action.dispatch_id) for c in self.under_way),
                quarantined=tuple(
                    sorted(unreadable.get(readable, {("", -1)} if set_aside else set()))
                ),
                not_withdrawn=tuple(
                    key
                    for key in sorted(withdrawn)
                    if (key in manager.listed and key not in manager.rows)
                    or (key in manager.rows and manager.rows[key].state is State.CANCELLED)
                ),
            )
        )
        manager.listed, manager.listed_at = set(manager.rows), self.now
        for key in present:
            assert self.core.state.task_by_tag(*key), f"{key} was set aside and counts as absent"
        for key in manager.those(State.RUNNING):
            task = self.core.tasks.get(place_of(key))
            if key not in set_aside and task is not None:
                assert task.attempt is not None, f"{task.name} is queued, but {key} runs"

    def not_begun(self) -> set[Key]:
        """Return the tasks of withdrawals that wait in the daemon, and were never tried there."""
        return {
            (tag_of(INSTANCE, action.job, action.dispatch_id), index)
            for action in self.actions
            if isinstance(action, Withdraw)
            and not any(action is begun for begun in self.begun_withdrawals)
            for index in action.native_ids
        }

    @rule(name=st.sampled_from(sorted(SIZES)))
    def silence(self, name: str) -> None:
        if name not in self.configured:
            return
        untried = [a for a in self.actions if isinstance(a, Dispatch) and a.cluster == name]
        self.actions = [a for a in self.actions if a not in untried]
        self.step(ClusterUnreachable(self.now, name, "no answer"))
        self.step(
            DispatchSkipped(self.now, tuple((send.job, send.dispatch_id) for send in untried))
        )

    # Operators

    @rule(name=st.sampled_from(sorted(SIZES)), keep=st.booleans())
    def drain(self, name: str, keep: bool) -> None:
        if name in self.configured:
            self.step(ClusterDrained(self.now, name, "op", "new kernel", keep))

    @rule(name=st.sampled_from(sorted(SIZES)))
    def resume(self, name: str) -> None:
        if name in self.configured:
            self.step(ClusterResumed(self.now, name, "op"))

    @rule(name=st.sampled_from(sorted(SIZES)), part=st.sampled_from([1, 2, 4]))
    def resize(self, name: str, part: int) -> None:
        """Take nodes out of the cluster, or return them."""
        self.managers[name].cpus = SIZES[name] // part

    @rule(name=st.sampled_from("abc"), total=st.sampled_from([None, None, 0, 1, 2, 4]))
    def set_licence(self, name: str, total: int | None) -> None:
        if total is None:
            self.totals.pop(name, None)
        else:
            self.totals[name] = total
        self.step(LicenceSet(self.now, name, total, "op"))

    @rule(total=st.sampled_from([None, 2, 3, 9]), outside=st.integers(0, 3), age=st.floats(-1, 99))
    def count(self, total: int | None, outside: int, age: float) -> None:
        """A licence server reports a count, which may be old or from a clock that is ahead."""
        count = LicenceCount("b", total, outside, self.now - age)
        self.step(LicencesCounted(self.now, (count,)))

    @precondition(lambda self: self.unknown())
    @rule(data=st.data())
    def release_licences(self, data: st.DataObject) -> None:
        job, index = data.draw(st.sampled_from(self.unknown()))
        self.doubted = True
        self.step(LicencesReleased(self.now, job, (index,), by="op"))
        assert (job, index) not in self.held
