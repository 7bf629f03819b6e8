"""Rules of several steps each: situations that single random rules reach too rarely."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec import structs

from metasched.core.events import Dispatch, UserRequested
from metasched.core.transitions import ATTEMPT_FINAL
from metasched.model.job import Job, State
from metasched.model.listing import ClaimEnd
from tests.property.core_model import SIZES
from tests.property.core_rules import Deeds
from tests.property.managers import Key, Place, place_of

# events after the situation that a rule has made
FOLLOW = st.one_of(
    st.lists(
        st.sampled_from(["start", "end", "poll", "poll", "garble", "act", "cancel", "crash"]),
        max_size=6,
    ),
    st.just(["cancel", "crash"]),
)


class Scenarios(Deeds):
    """What happens in most minutes of a site, and what rarely happens in this order."""

    @rule()
    def work(self) -> None:
        """Carry out all actions; managers start what they can, and list it."""
        self.carry_out()
        for name in SIZES:
            self.managers[name].start(self.now)
            self.poll(name, False)
        self.carry_out()

    def carry_out(self) -> None:
        while self.actions:
            self.act(None, "done")

    @rule(
        name=st.sampled_from(sorted(SIZES)),
        state=st.sampled_from([State.COMPLETED, State.COMPLETED, State.FAILED]),
    )
    def finish(self, name: str, state: State) -> None:
        """End all jobs that run on a cluster, and list them."""
        manager = self.managers[name]
        self.now += 1.0
        while manager.used():
            manager.end(self.now, state)
        self.poll(name, False)

    @rule(
        name=st.sampled_from(sorted(SIZES)),
        limit=st.sampled_from([None, 60.0]),
        wants=st.sampled_from([{}, {"a": 2}, {"b": 3}]),
    )
    def submit_forgotten(self, name: str, limit: float | None, wants: dict[str, int]) -> None:
        """A job ends, and its manager loses all memory of it."""
        if name not in self.configured:
            return
        job = Job(
            id=len(self.jobs) + 1,
            submitted=self.now,
            estimated=60.0,
            time_limit=limit,
            licences=wants,
            clusters=(name,),
        )
        self.submit_job(job)
        self.work()
        self.forget(name, False, True)
        self.poll(name, False)

    @precondition(lambda self: self.live_keys())
    @rule(data=st.data(), readable=st.sampled_from(["task", "dispatch", "nothing"]))
    def garble(self, data: Any, readable: str) -> None:
        """No line of a whole listing can be read."""
        name, _ = data.draw(st.sampled_from(self.live_keys()))
        self.poll(name, True, 1, readable)

    @precondition(lambda self: any(isinstance(action, Dispatch) for action in self.actions))
    @rule(follow=FOLLOW)
    def answer_late(self, follow: list[str]) -> None:
        """A submission is under way while its cluster is polled."""
        action = next(action for action in self.actions if isinstance(action, Dispatch))
        self.actions.remove(action)
        self.actions.insert(0, action)
        self.act(None, "slow")
        self.poll(action.cluster, False)
        self.follow(action.cluster, (action.job, action.indices[0]), follow)
        while self.under_way:
            self.answer(None, "done")

    @rule(
        array=st.sampled_from(["0-2", "1-4%1", "1-6%2"]),
        dependency_type=st.sampled_from(["after", "after", "afterany", "afterok", "afternotok"]),
        ends=st.lists(st.sampled_from(sorted(SIZES)), max_size=4),
        limit=st.sampled_from([None, None, 1, 2]),
    )
    def submit_dependent(
        self, array: str, dependency_type: str, ends: list[str], limit: int | None
    ) -> None:
        """Submit an array and a job that depends on all its tasks, some of which end.

        Managers may accept `limit` jobs at most.
        """
        for manager in self.managers.values():
            manager.limit = limit
        target = Job(id=len(self.jobs) + 1, submitted=self.now, estimated=100.0, array=array)
        self.submit_job(target)
        later = "+1" if dependency_type == "after" else ""
        dependency = f"{dependency_type}:{target.id}{later}"
        self.submit_job(structs.replace(target, id=target.id + 1, dependency=dependency))
        for name in ends:
            self.now += 2.0
            self.work()
            self.managers[name].end(self.now, State.COMPLETED)
            self.poll(name, False)

    def ended_keys(self) -> list[tuple[str, Key]]:
        """Return the cluster and key of each started attempt of an ended task."""
        return [
            (name, key)
            for name in self.configured
            for key, row in self.managers[name].rows.items()
            if row.state in ATTEMPT_FINAL and row.started and place_of(key) in self.final
            if not self.managers[name].claims.get(key)  # else its payload never ran
        ]

    @precondition(lambda self: self.ended_keys())
    @rule(data=st.data(), requeued=st.booleans(), follow=FOLLOW)
    def revive(self, data: Any, requeued: bool, follow: list[str]) -> None:
        """A manager that lost its last seconds lists an ended job as running."""
        name, key = data.draw(st.sampled_from(self.ended_keys()))
        manager, task_id = self.managers[name], place_of(key)
        if requeued:
            self.requeue_job(task_id[0])
        self.now += 1.0
        manager.boots(self.now)
        row = manager.rows[key]
        manager.rows[key] = structs.replace(row, state=State.RUNNING, ended=None)
        self.excused[task_id] += 1
        self.poll(name, True)
        self.follow(name, task_id, follow)

    def follow(self, name: str, task_id: Place, events: list[str]) -> None:
        for event in events:
            match event:
                case "start":
                    self.managers[name].start(self.now)
                case "end":
                    self.managers[name].end(self.now, State.COMPLETED)
                case "act":
                    self.carry_out()
                case "cancel":
                    self.cancelled.add(task_id)
                    self.step(
                        UserRequested(self.now, "cancel", task_id[0], (task_id[1],), by="ada")
                    )
                case "crash":
                    self.crash(False, False, self.configured, 10)
                case "poll":
                    self.poll(name, False)
                case "garble":
                    self.poll(name, True, 1, "dispatch")

    def live_keys(self) -> list[tuple[str, Key]]:
        """Return the cluster and key of each attempt that its manager has, and has not ended."""
        return [
            (name, key)
            for name in self.configured
            for key, row in self.managers[name].rows.items()
            if row.state not in ATTEMPT_FINAL
            if (task := self.core.state.task_by_tag(*key)) is not None
            if task.attempt is not None and not task.attempt.revoked
        ]

    @precondition(lambda self: self.live_keys())
    @rule(
        data=st.data(),
        seen=st.booleans(),
        elsewhere=st.sampled_from(["queued", "sent", "started"]),
        follow=FOLLOW,
    )
    def declare_lost(self, data: Any, seen: bool, elsewhere: str, follow: list[str]) -> None:
        """A manager falls silent, its task is declared lost and sent on; then it is listed again.

        `seen`: the task was listed as started before.
        """
        name, key = data.draw(st.sampled_from(self.live_keys()))
        manager, task_id = self.managers[name], place_of(key)
        if seen:
            manager.start(self.now)
            self.poll(name, False)
        self.silence(name)
        task = self.core.tasks.get(task_id)
        if task is None or task.state is not State.UNKNOWN:
            return
        self.excused[task_id] += 1
        self.step(UserRequested(self.now, "lost", task_id[0], (task_id[1],), by="root"))
        for other in SIZES:
            if other != name and elsewhere != "queued":
                self.poll(other, False)
                self.carry_out()
                if elsewhere == "started":
                    self.managers[other].start(self.now)
                    self.poll(other, False)
        self.poll(name, False)
        self.follow(name, task_id, follow)

    def claiming_keys(self) -> list[tuple[str, Key]]:
        """Return the cluster and key of each pending attempt that would claim its task."""
        return [
            (name, key)
            for name, key in self.live_keys()
            if self.managers[name].fence and key not in self.managers[name].claims
            if self.managers[name].rows[key].state is State.PENDING
        ]

    @precondition(lambda self: self.claiming_keys())
    @rule(
        data=st.data(),
        ended=st.booleans(),
        then=st.sampled_from(["hold", "drain", "drain", "wait"]),
        unrecorded=st.booleans(),
        follow=FOLLOW,
    )
    def forget_start(
        self, data: Any, ended: bool, then: str, unrecorded: bool, follow: list[str]
    ) -> None:
        """A task starts, and its killed manager forgets that: it lists the task as pending.

        `ended`: the payload has ended by itself, else with the manager. `unrecorded`: the
        manager keeps no record of the withdrawal.
        """
        name, key = data.draw(st.sampled_from(self.claiming_keys()))
        manager, task_id = self.managers[name], place_of(key)
        manager.claims[key] = False
        manager.begun[key] += 1
        if ended:
            manager.ends[key] = ClaimEnd(self.now, self.now + 1.0, 0)
        self.now += 1.0
        manager.boots(self.now)
        self.poll(name, True)
        if then == "hold":
            self.step(UserRequested(self.now, "hold", task_id[0], (task_id[1],), by="ada"))
        elif then == "drain":
            self.drain(name, False)
        self.carry_out()
        if unrecorded and manager.rows[key].state is State.CANCELLED:
            del manager.rows[key]
            manager.unrecorded.add(key)
        for other in SIZES:
            self.poll(other, False)
        self.follow(name, task_id, follow)
