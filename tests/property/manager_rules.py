"""Rules of time and of managers, which start, end, lose and forget jobs."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec import structs

from metasched.core.events import ClockSet, TimerExpired, UserRequested
from metasched.core.transitions import ATTEMPT_FINAL
from metasched.model.job import State
from tests.property.core_model import SIZES, Life
from tests.property.managers import place_of


class ManagerRules(Life):
    """Each rule is an event at a manager, or lets time pass."""

    @rule(seconds=st.floats(0.1, 100))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.step(TimerExpired(self.now))

    @rule(name=st.sampled_from(sorted(SIZES)))
    def start(self, name: str) -> None:
        self.managers[name].start(self.now)

    @rule(
        name=st.sampled_from(sorted(SIZES)),
        state=st.sampled_from([State.COMPLETED, State.FAILED, State.CANCELLED, State.NODE_FAIL]),
    )
    def end(self, name: str, state: State) -> None:
        manager = self.managers[name]
        if state is State.CANCELLED:
            self.cancelled |= {place_of(key) for key in manager.those(State.RUNNING)[:1]}
        manager.end(self.now, state)

    @precondition(lambda self: self.those(State.PENDING))
    @rule(data=st.data())
    def cancel_natively(self, data: st.DataObject) -> None:
        """The owner cancels a pending job at its manager, perhaps while metasched withdraws it."""
        manager, key = data.draw(st.sampled_from(self.those(State.PENDING)))
        row = manager.rows[key]
        manager.rows[key] = structs.replace(row, state=State.CANCELLED, ended=self.now)
        self.cancelled.add(place_of(key))

    @rule(name=st.sampled_from(sorted(SIZES)), limit=st.sampled_from([None, 1, 2, 3]))
    def limit_jobs(self, name: str, limit: int | None) -> None:
        """Set the number of jobs that a manager accepts of a user."""
        self.managers[name].limit = limit

    @rule(name=st.sampled_from(sorted(SIZES)))
    def lose(self, name: str) -> None:
        """Restart the manager without its last accepted job; its listings then prove less."""
        manager = self.managers[name]
        self.now += 1.0
        manager.boots(self.now)
        for key in reversed(manager.those(State.PENDING, begun=False)):
            del manager.rows[key]
            manager.ids -= 1  # the next job gets this id
            self.lost.add(place_of(key))
            return

    @precondition(lambda self: self.those(State.CANCELLED, begun=False))
    @rule(data=st.data())
    def bring_back(self, data: st.DataObject) -> None:
        """Restart a manager without its last cancel: the withdrawn task is pending again."""
        manager, key = data.draw(st.sampled_from(self.those(State.CANCELLED, begun=False)))
        self.now += 1.0
        manager.boots(self.now)
        manager.rows[key] = structs.replace(manager.rows[key], state=State.PENDING, ended=None)
        self.excused[place_of(key)] += 1

    @precondition(lambda self: self.those(State.RUNNING))
    @rule(data=st.data(), counted=st.booleans())
    def restart(self, data: st.DataObject, counted: bool) -> None:
        """A manager starts a job again: its node failed, or the manager lost its last seconds."""
        manager, key = data.draw(st.sampled_from(self.those(State.RUNNING)))
        self.now += 1.0
        row = manager.rows[key]
        again = structs.replace(row, state=State.PENDING, started=None)
        if counted:
            self.restarted.add(place_of(key))
            again = structs.replace(again, restarts=row.restarts + 1, started=self.now)
        else:
            manager.boots(self.now)
        manager.rows[key] = again
        self.excused[place_of(key)] += 1

    @precondition(lambda self: self.unknown())
    @rule(data=st.data())
    def write_off(self, data: st.DataObject) -> None:
        """An operator declares an unknown task lost, although the manager may have it."""
        job, index = data.draw(st.sampled_from(self.unknown()))
        self.excused[job, index] += 1
        self.step(UserRequested(self.now, "lost", job, (index,), by="root"))

    @rule(by=st.sampled_from([-3600.0, -5.0, 5.0, 3600.0]))
    def set_clock(self, by: float) -> None:
        self.shift_clocks(by)
        self.lingering = [
            structs.replace(returned, returned=returned.returned + by, until=returned.until + by)
            for returned in self.lingering
        ]
        self.step(ClockSet(self.now, by))

    def shift_clocks(self, by: float) -> None:
        self.now += by
        for manager in self.managers.values():
            manager.up_since += by
            manager.boot += by
            manager.listed_at += by

    @rule(
        name=st.sampled_from(sorted(SIZES)),
        recorded=st.sampled_from([True, True, False]),
        unseen=st.booleans(),
    )
    def forget(self, name: str, recorded: bool, unseen: bool) -> None:
        """The manager stops listing ended jobs; its accounting may still have them.

        `unseen`: running jobs end, too, before they can be listed as ended.
        """
        manager = self.managers[name]
        while unseen and manager.used():
            manager.end(self.now, State.COMPLETED)
        self.now += 1.0
        manager.up_since = self.now
        ended = {t: r for t, r in manager.rows.items() if r.state in ATTEMPT_FINAL}
        if recorded:
            manager.forgot |= ended
        else:
            manager.unrecorded |= ended.keys()
            self.lost |= {place_of(key) for key in ended}
        for tag in ended:
            del manager.rows[tag]

    @rule(name=st.sampled_from(sorted(SIZES)))
    def drop(self, name: str) -> None:
        """Cancel a pending job outside metasched; the manager keeps no record of it."""
        manager = self.managers[name]
        for key, row in manager.rows.items():
            if row.state is State.PENDING:
                del manager.rows[key]
                self.cancelled.add(place_of(key))
                if manager.begun[key]:  # and started again since: nothing tells how it ended
                    self.lost.add(place_of(key))
                return
