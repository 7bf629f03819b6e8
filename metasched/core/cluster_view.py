"""One cluster as the core sees it: what its manager has told, what of ours is there. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from functools import reduce
from itertools import starmap
from operator import add, itemgetter, mul

from metasched.core.tasks import Place, Task
from metasched.model.cluster import Cluster, Facts
from metasched.model.job import Job, Reason, State
from metasched.model.listing import Row
from metasched.policies.eligible import Unfit, translated, unfit

Shape = tuple[object, object]  # of partitions, of licences: see `shape`
_UNDECIDED = Unfit(Reason.PRIORITY, "not looked at yet")
DECIDED = 10_000  # different needs whose answers are kept, at the most
FULL_AGAIN = (10.0, 300.0)  # seconds until a full cluster is tried again: first, at the most


@dataclass
class Stray:
    """An attempt that is listed although we had given it up; `asked`: when its end was asked for.

    `wish` is None (let it be), or the `unstarted` of the withdrawal that is asked for.
    """

    row: Row
    wish: bool | None = None
    asked: float = 0.0


@dataclass
class ClusterView:
    """What is known of one cluster since the start.

    `full` is what its manager said when it took no more for now: until `probe_at` nothing is
    sent, then one task, to see. `owed` are the cpu seconds of ours that have not begun, which are
    `unstarted`, `told` those of others. `busy` processors run, by their limits, what is `work`
    (processors x end) in all, at times `since` to `until`: see `loads`. What
    is live and not `Attempt.calm` is `uneasy`, so that a listing need not look at all the rest.
    `strays` are by job, index and sending, `withheld` are rows of tasks whose claims are being
    revoked. `decided` is what `unfit` has answered, by needs: it holds while the `shape` of the
    facts does.
    """

    cluster: Cluster
    facts: Facts | None = None
    up: bool = False
    word: str = "not heard from since the start"
    full: str = ""
    full_since: float = 0.0
    probe_at: float = 0.0
    pause: float = 0.0
    owed: float = 0.0
    told: float = 0.0
    busy: int = 0
    work: float = 0.0
    since: float = 0.0
    until: float = -math.inf
    power: float = math.inf  # unless it has told of processors
    unstarted: dict[Place, Task] = field(default_factory=dict)
    live: dict[Place, Task] = field(default_factory=dict)
    uneasy: dict[Place, Task] = field(default_factory=dict)
    strays: dict[tuple[int, int, int], Stray] = field(default_factory=dict)
    withheld: dict[Place, Row] = field(default_factory=dict)
    up_since: float = 0.0  # when its manager last started, as far as it tells
    shape: Shape | None = None
    decided: dict[Hashable, Unfit | None] = field(default_factory=dict)
    name: str = field(init=False)
    # in seconds of `Books.watch`: for how long it has answered until it last ceased or began to,
    # and when that was
    _answered: float = 0.0
    _turned: float = 0.0

    def __post_init__(self) -> None:
        self.name = self.cluster.name

    # Whether it answers. What expires goes by `watch`, which stands still while nobody could see
    # anything

    def answers(self, watch: float) -> float:
        """It answers; the seconds of its silence in which another cluster answered."""
        missed = 0.0
        if not self.up:
            missed, self._turned = watch - self._turned, watch
        self.up, self.word = True, ""
        return missed

    def falls_silent(self, word: str, watch: float) -> None:
        if self.up:
            self._answered, self._turned = self.watched(watch), watch
        self.up, self.word = False, word

    def watched(self, watch: float) -> float:
        """The seconds for which it has answered us."""
        return self._answered + (watch - self._turned) if self.up else self._answered

    # What its manager tells

    def learn(self, facts: Facts) -> None:
        before, self.shape = self.shape, shape(facts)
        if self.shape != before:
            self.decided.clear()
        self.facts, self.told = facts, facts.owed
        self.power = facts.cpus * self.cluster.benchmark or math.inf
        self.until = -math.inf

    def look_at_running(self, now: float) -> None:
        """Add up what should not have ended by now."""
        running = () if self.facts is None else self.facts.running
        ended = bisect_right(running, now, key=itemgetter(0))
        self.since = running[ended - 1][0] if ended else -math.inf
        self.until = running[ended][0] if ended < len(running) else math.inf
        rest = running[ended:]
        self.busy = sum(map(itemgetter(1), rest))
        self.work = reduce(add, starmap(mul, reversed(rest)), 0.0)  # `sum` depends on the Python

    def unfit(self, job: Job) -> Unfit | None:
        """Why the cluster cannot run a job, decided once for all that ask for the same."""
        counted = self.cluster.licensed or (self.facts is not None and self.facts.licences)
        alike = job.needs if counted else job.needs_but_licences
        if self.cluster.filesystems:
            alike = (alike, job.directory, job.writes)
        known = self.decided.get(alike, _UNDECIDED)
        if known is _UNDECIDED:
            if len(self.decided) >= DECIDED:
                self.decided.clear()
            known = self.decided[alike] = unfit(job, self.cluster, self.facts)
        return known

    def here(self, job: Job) -> Job:
        """A job that fits the cluster, in the cluster's own words."""
        return translated(job, self.cluster, self.facts)

    # What is ours there

    def add(self, task: Task) -> None:
        """A task of ours may be there from now on."""
        self.live[task.place] = self.uneasy[task.place] = task

    def drop(self, task: Task) -> None:
        """Its attempt there has ended."""
        self.live.pop(task.place, None)
        self.uneasy.pop(task.place, None)

    def end_waiting(self, known_by: tuple[int, int, int]) -> None:
        """Wish for the end of a stray that is to begin anew, though another has begun."""
        stray = self.strays.get(known_by)
        if stray is not None and stray.row.state is State.PENDING and stray.wish is None:
            stray.wish = False

    # Whether it takes more

    def takes_no_more(self, word: str, now: float) -> None:
        """Its manager is full; try again later, and ever later."""
        first, most = FULL_AGAIN
        self.pause = min(self.pause * 2, most) or first
        self.full, self.full_since = word, now
        self.probe_at = now + self.pause

    def may_probe(self, now: float) -> bool:
        """Whether it is full, and time to try it again, with one task."""
        return bool(self.full) and now >= self.probe_at

    def clock_set(self, by: float) -> None:
        """The wall clock went `by` seconds more than time has: see `Core`."""
        self.full_since += min(by, 0.0)
        self.probe_at += by
        for stray in self.strays.values():
            stray.asked += by


def loads(views: Collection[ClusterView], now: float) -> list[float]:
    """Seconds of each whole cluster still owed; 0 while it has told of no processors.

    All are asked at each submission: O(1) for each, but O(n) in its running jobs after news of it,
    and when one of them should have ended.
    """
    for v in views:
        if not v.since <= now < v.until:
            v.look_at_running(now)
    owed = [(v.told + (v.work - v.busy * now) + v.owed) / v.power for v in views]
    if min(owed, default=0.0) < 0.0:  # by rounding, when all that runs is about to end
        return [max(0.0, seconds) for seconds in owed]
    return owed


def shape(facts: Facts | None, *, passing: bool = True) -> Shape | None:
    """What of the facts decides whether a job may be sent: not what is free or running.

    Without the `passing`, which nodes and partitions are up, whether it can ever start there.
    """
    if facts is None:
        return None
    partitions = [p.shape if passing else p.all_up.shape for p in facts.partitions]
    licences = {n: (c.total, passing and c.used) for n, c in facts.licences.items()}
    return partitions, licences
