"""Users take turns: in a pass, over passes, in the portions of a step, and in managers' queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest

from metasched.core import user_turns
from metasched.core.cluster_view import LEAST_QUEUE_DEPTH, ClusterView
from metasched.core.events import (
    Action,
    ClusterDrained,
    ClusterResumed,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    DispatchRejected,
    DispatchStarted,
    JobSubmitted,
    ListingReceived,
    TimerExpired,
    UserRequested,
)
from metasched.core.gates import MAX_RELEASED_PER_STEP
from metasched.core.place_lines import LEAST_SWEEP
from metasched.core.placement import AWAITS_PLACE
from metasched.core.tasks import Task
from metasched.core.user_turns import UserTurns
from metasched.model.cluster import Cluster, ClusterInfo
from metasched.model.job import Job, Reason, State
from metasched.policies.eligible import Ineligibility
from metasched.policies.policy import Policy
from tests.unit.core_site import NOW, Site, facts, job

AGE = Policy.age


def task(number: int, user: str, priority: int = 1, waited: float = 0.0) -> Task:
    submitted = NOW - waited
    accepted_job = Job(id=number, submitted=submitted, estimated=1.0, user=user)
    return Task(accepted_job, 0, priority, submitted - AGE * (priority - 1))


def order(turns: UserTurns, *tasks: Task, now: float = NOW, places: int | None = None) -> list[int]:
    """Return the numbers of the first `places` tasks that get a turn."""
    queues: dict[tuple[str, int], list[Task]] = {}
    for waiting in sorted(tasks, key=lambda item: item.queue_key):
        queues.setdefault((waiting.job.user, waiting.priority), []).append(waiting)
    placed: list[int] = []
    for item in turns.in_turns(
        [iter(queue) for queue in queues.values()], now, AGE, lambda item: item.job.id in placed
    ):
        if places is None or len(placed) < places:
            placed.append(item.job.id)
    return placed


def dispatched(actions: Iterable[Action]) -> list[str]:
    return [
        f"{action.job}_{index}"
        for action in actions
        if isinstance(action, Dispatch)
        for index in action.indices
    ]


# Worked examples


def test_users_take_turns_and_each_keeps_his_order() -> None:
    tasks = [task(number, "a") for number in (1, 2, 3, 4)]
    tasks += [task(number, "b") for number in (5, 6)] + [task(7, "c")]
    assert order(UserTurns(), *tasks) == [1, 5, 7, 2, 6, 3, 4]


def test_turns_of_ever_new_levels_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that wait ever longer reach ever higher levels; memory does not grow with these."""
    monkeypatch.setattr(user_turns, "MAX_TURNS", 10)
    turns = UserTurns()
    for waits in range(1, 100):
        users = (f"a{waits}", f"b{waits}")
        tasks = [task(number, user, waited=waits * AGE) for number, user in enumerate(users, 1)]
        assert order(turns, *tasks) == [1, 2]
        assert len(turns._next_turns) <= 10


def test_a_higher_priority_goes_first_and_waiting_raises_it() -> None:
    tasks = [task(1, "a"), task(2, "b"), task(3, "c", priority=2), task(4, "c", priority=2)]
    assert order(UserTurns(), *tasks) == [3, 4, 1, 2]
    # after `AGE` a task is as urgent as those of the next priority, and older
    old = [task(1, "a", waited=AGE), task(2, "a", waited=AGE), *tasks[2:]]
    assert order(UserTurns(), *old) == [1, 3, 4, 2]


def test_old_bulk_of_a_user_rises_only_as_long_as_he_waits() -> None:
    """Else the array of a submitted yesterday would go before all that is urgent today."""
    bulk = [task(number, "a", waited=2 * AGE) for number in (1, 2, 3)]
    urgent = [task(number, "b", priority=2) for number in (4, 5)]
    turns = UserTurns()
    assert order(turns, *bulk, *urgent) == [1, 4, 5, 2, 3]
    # he has waited for a step again
    assert order(turns, *bulk[1:], *urgent, now=NOW + AGE - 1.0, places=1) == [4]


def test_without_age_priorities_do_not_count() -> None:
    urgent = task(2, "b", priority=5)
    urgent.queue_key = urgent.job.submitted
    queues = [iter([task(1, "a")]), iter([urgent])]
    by_turns = UserTurns().in_turns(queues, NOW, 0.0, lambda _: True)
    assert [item.job.id for item in by_turns] == [1, 2]


def test_turns_are_remembered_and_who_was_away_saves_none() -> None:
    turns = UserTurns()
    a, b = [task(number, "a") for number in range(1, 20)], [task(20, "b"), task(21, "b")]
    assert order(turns, *a, *b, places=1) == [1]
    assert order(turns, *a[1:], *b, places=1) == [20]
    assert order(turns, *a[1:], b[1], places=1) == [2]
    # c comes late: his turn is next, and he has one turn as all
    c = [task(30, "c"), task(31, "c")]
    assert order(turns, *a[2:], b[1], *c, places=4) == [30, 21, 3, 31]


def test_places_that_one_user_alone_may_have_cost_the_others_no_turn() -> None:
    """Else his turns, far ahead, would make all others equal: the oldest tasks would go first."""
    turns, served = UserTurns(), Counter[str]()
    first_numbers = {"a": 100, "b": 200, "c": 300}
    waiting = {
        number: task(number, user, waited=1000.0 - number)
        for user, first in first_numbers.items()
        for number in range(first, first + 90)
    }
    for _ in range(40):
        for allowed in ("a", "abc"):
            (number,) = order(
                turns, *(t for t in waiting.values() if t.job.user in allowed), places=1
            )
            served[waiting.pop(number).job.user] += 1
    assert served == {"a": 40, "b": 20, "c": 20}


def test_a_task_that_is_not_dispatched_uses_no_turn() -> None:
    queues = [iter([task(number, "a") for number in (1, 2, 3)]), iter([task(4, "b"), task(5, "b")])]
    by_turns = UserTurns().in_turns(queues, NOW, AGE, lambda item: item.job.id != 1)
    assert [item.job.id for item in by_turns] == [1, 2, 4, 3, 5]


def test_the_head_with_a_reservation_stays_first() -> None:
    """Else two wide jobs of different users could take the processors kept free in turns."""
    turns = UserTurns()
    tasks = [task(1, "a"), task(2, "b"), task(3, "b")]
    turns.reserved_head = (2, 0)
    assert order(turns, *tasks) == [2, 1, 3]


# In the core


def drained_site(*jobs: Job, late: bool = False) -> Site:
    """A site whose clusters are drained while the jobs are submitted."""
    site = Site(send="late" if late else "at_once")
    for name in ("left", "right"):
        site.step(ClusterDrained(NOW, name))
    for submitted in jobs:
        assert site.step(JobSubmitted(NOW, submitted)) == []
    return site


def test_tasks_that_waited_for_a_cluster_go_by_turns() -> None:
    site = drained_site(
        job(1, user="a", array="1-3"),
        *(job(number, user="a") for number in (2, 3)),
        *(job(number, user="b") for number in (4, 5)),
        job(6, user="c", user_class="gold"),
    )
    site.step(ClusterResumed(NOW, "left"))
    placed = [
        f"{change.job}_{change.index}"
        for change in site.out.changes
        if change.after is State.DISPATCHING
    ]
    assert placed == ["6_0", "1_1", "4_0", "1_2", "5_0", "1_3", "2_0", "3_0"]


def test_one_user_has_the_order_of_the_queue() -> None:
    site = drained_site(
        job(1, user="a", array="1-3"),
        job(2, user="a", user_class="gold"),
        job(3, user="a", user_class="silver"),
    )
    site.step(ClusterResumed(NOW, "left"))
    queue = sorted(site.core.tasks.values(), key=lambda item: (item.queue_key, *item.task_id))
    placed = [(c.job, c.index) for c in site.out.changes if c.after is State.DISPATCHING]
    assert placed == [item.task_id for item in queue]
    assert placed[0] == (2, 0)


def test_late_binding_gives_free_processors_by_turns() -> None:
    site = drained_site(job(1, user="a", array="1-20"), job(2, user="b", array="1-20"), late=True)
    site.step(ClusterResumed(NOW, "left"))  # 8 processors
    placed = dispatched(site.out.actions)
    assert sorted(placed) == [f"{number}_{index}" for number in (1, 2) for index in (1, 2, 3, 4)]


def answer(site: Site, actions: Sequence[Action], now: float) -> list[str]:
    """Let the managers accept all dispatches; return their tasks."""
    for action in actions:
        if isinstance(action, Dispatch):
            natives = dict.fromkeys(action.indices, "7")
            site.step(DispatchAccepted(now, action.job, action.dispatch_id, natives))
    return dispatched(actions)


def limited_partition(site: Site) -> None:
    """Let the left cluster accept one task in its partition: it runs job 100 and refuses 101."""
    for number in (100, 101):
        waiting = job(number, user="z", clusters=("left",))
        [action] = site.step(JobSubmitted(NOW, waiting))
        assert isinstance(action, Dispatch)
        site.step(DispatchStarted(NOW, number, 1))
        if number == 100:
            answer(site, [action], NOW)
        else:
            refusal = DispatchRejected(NOW, 101, 1, "full", retry_later=True, scope="partition")
            site.step(refusal)


def test_a_slot_that_users_share_goes_round() -> None:
    """A limit of a partition frees one slot at a time; turns last from poll to poll."""
    site = Site()
    limited_partition(site)
    for submitted in (
        job(102, user="a", array="1-6", clusters=("left",)),
        job(103, user="b", array="1-3", clusters=("left",)),
        job(104, user="c", clusters=("left",)),
    ):
        assert dispatched(site.step(JobSubmitted(NOW, submitted))) == []
    running, now, sequence = [(100, 1, 0)], NOW, []
    for _ in range(11):
        now += 1.0
        rows = [
            site.row(State.COMPLETED, number, dispatch, exit_code=0, started=now, ended=now)
            for number, dispatch, _ in running
        ]
        for row, (*_, index) in zip(rows, running, strict=True):
            row.task = index
        actions = site.step(ListingReceived(now, "left", tuple(rows), since=0.0, until=now))
        running = []
        for action in actions:
            if isinstance(action, Dispatch):
                sequence += dispatched([action])
                running += [(action.job, action.dispatch_id, index) for index in action.indices]
        answer(site, actions, now)
    assert sequence[:11] == [
        *("101_0", "102_1", "103_1", "104_0"),
        *("102_2", "103_2", "102_3", "103_3", "102_4", "102_5", "102_6"),
    ]


# Portions of a step


def portions(site: Site, now: float) -> Iterator[list[str]]:
    """Let timers expire until nothing is due; yield the tasks dispatched by each step."""
    while site.core.next_due is not None and site.core.next_due <= now:
        yield answer(site, site.step(TimerExpired(now)), now)


@pytest.mark.parametrize("begin", [None, NOW + 10.0])
def test_portions_of_a_large_array_leave_room_for_other_users(begin: float | None) -> None:
    site = Site(queue_depth=None)
    for submitted in (
        job(1, user="a", array="0-4999", begin=begin),
        job(2, user="b", array="0-999", begin=begin),
        job(3, user="c", begin=begin),
    ):
        answer(site, site.step(JobSubmitted(NOW, submitted)), NOW)
    steps = list(portions(site, NOW + 10.0))
    jobs = 3  # the first task of each is not counted
    assert max(map(len, steps)) < MAX_RELEASED_PER_STEP + jobs
    last_step = {
        number: max(
            i for i, step in enumerate(steps) if any(t.startswith(f"{number}_") for t in step)
        )
        for number in (1, 2)
    }
    # b has half of each portion, and a what is left
    assert last_step[2] <= 2 * 1000 / MAX_RELEASED_PER_STEP
    assert last_step[1] <= 6000 / MAX_RELEASED_PER_STEP + 1
    assert all(item.attempt is not None for item in site.core.tasks.values())
    if begin is not None:
        assert "3_0" in steps[0]


def test_portions_of_one_user_are_in_order() -> None:
    site = Site(queue_depth=None)
    for number in (1, 2):
        array = job(number, user="a", array="0-899", clusters=("left",))
        answer(site, site.step(JobSubmitted(NOW, array)), NOW)
    first, second, third = list(portions(site, NOW))[:3]
    assert first == [f"1_{index}" for index in range(400, 800)]
    assert second == [f"1_{index}" for index in range(800, 900)] + [
        f"2_{index}" for index in range(400, 700)
    ]
    assert third == [f"2_{index}" for index in range(700, 900)]


# Queues of managers


def listed(
    site: Site, states: Mapping[int, State], info: ClusterInfo | None = None, at: float = NOW
) -> list[str]:
    """List job 1 on the left cluster: `states` by index, the others pending.

    Return the tasks that are dispatched then.
    """
    rows = []
    for item in site.core.tasks_of(1):
        if item.attempt is not None:
            state = states.get(item.index, item.state)
            state = State.PENDING if state is State.UNKNOWN else state
            rows.append(site.row(state, 1, item.attempt.dispatch_id, started=NOW))
            rows[-1].task = item.index
    return answer(site, site.seen("left", info, *rows, at=at, full=True), at)


def test_few_tasks_wait_in_a_cluster_and_others_follow_as_they_start() -> None:
    site = Site(queue_depth=4)
    array = job(1, user="a", array="0-19", clusters=("left",))
    assert len(answer(site, site.step(JobSubmitted(NOW, array)), NOW)) == 4
    assert site.core.tasks[1, 4].reason == Reason.PRIORITY
    # while processors are idle, another user may have a task there
    assert dispatched(site.step(JobSubmitted(NOW, job(2, user="b", clusters=("left",))))) == ["2_0"]
    assert dispatched(site.step(TimerExpired(NOW))) == []
    running = dict.fromkeys((0, 1, 2), State.RUNNING)
    assert listed(site, running) == ["1_4", "1_5"]
    assert listed(site, {3: State.RUNNING}) == ["1_6"]
    # what ends without a start makes room, too
    assert listed(site, {5: State.CANCELLED}) == ["1_7"]
    assert listed(site, {}) == []


def single_jobs(site: Site, user: str, first: int, number: int, **fields: object) -> list[str]:
    """Submit jobs for the left cluster; return those that are dispatched."""
    sent = []
    for id in range(first, first + number):
        submitted = job(id, user=user, clusters=("left",), **fields)  # type: ignore[arg-type]
        sent += answer(site, site.step(JobSubmitted(NOW, submitted)), NOW)
    return sent


def start_oldest(site: Site) -> tuple[str, list[str]]:
    """Let the left cluster start the task that was dispatched first; the others stay pending.

    Return its user, and the tasks that are dispatched then.
    """
    oldest = next(iter(site.core.state.views["left"].unstarted_tasks.values()))
    row = site.row(State.RUNNING, oldest.job.id, oldest.live_attempt.dispatch_id, started=NOW)
    row.task = oldest.index
    return oldest.job.user, answer(site, site.seen("left", None, row, partial=True), NOW)


def test_a_light_user_waits_for_the_tasks_of_one_depth_and_a_turn_of_each_user() -> None:
    depth = 10
    for users in (2, 20):
        site = Site(queue_depth=depth)
        site.seen("left", facts(8, 0))
        for user in range(users):
            single_jobs(site, f"u{user}", 1 + 100 * user, 60)
        assert len(site.core.tasks_on("left")) == depth
        assert single_jobs(site, "light", 9999, 1) == []
        started = [start_oldest(site)[0] for _ in range(depth + users + 1)]
        # each user may have a turn before him; then come the tasks that are there already
        assert started.index("light") <= depth + users


def test_tasks_that_cannot_start_bar_no_other_user_while_processors_are_idle() -> None:
    site = Site(queue_depth=8)
    site.seen("left", facts(8, 3))
    assert len(single_jobs(site, "a", 1, 20, cpus=8)) == 8
    # as many as are idle, and no more than an even part of the places
    assert single_jobs(site, "b", 101, 5) == ["101_0", "102_0", "103_0"]
    assert single_jobs(site, "c", 201, 5) == ["201_0", "202_0"]
    assert single_jobs(site, "a", 21, 1, cpus=1) == []
    waiting = site.core.tasks[104, 0]
    assert next(a.obstacle for a in site.core.assess_clusters(waiting)) is AWAITS_PLACE
    # two of b's start, and another follows: an even part is two by now
    rows = [site.row(State.RUNNING, id, started=NOW) for id in (101, 102)]
    assert answer(site, site.seen("left", None, *rows, partial=True), NOW) == ["104_0"]
    # while no processor is idle, d has no place
    view = site.core.state.views["left"]
    view.update_info(facts(8, 0))
    assert single_jobs(site, "d", 301, 2) == []
    view.update_info(facts(8, 1))
    assert answer(site, site.step(TimerExpired(NOW)), NOW) == ["301_0"]


def test_a_cluster_that_reports_no_processors_takes_one_task_of_each_user_more() -> None:
    site = Site(listed=False, queue_depth=4)
    site.seen("left", ClusterInfo(cpus=0, used_cpus=0, partitions=facts(8).partitions))
    assert len(single_jobs(site, "a", 1, 9)) == 4
    assert single_jobs(site, "b", 101, 3) == ["101_0"]
    assert single_jobs(site, "c", 201, 3) == ["201_0"]


def test_a_free_place_costs_the_examination_of_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many users and kinds of tasks wait for it, there or for another cluster."""
    site = Site(queue_depth=4)
    site.seen("left", facts(8, 0))
    site.seen("right", facts(4, 0))
    for user in range(30):
        for kind in range(3):
            for number, cluster in enumerate(("left", "left", "right")):
                id = 1 + 9 * user + 3 * kind + number
                submitted = job(id, user=f"u{user}", clusters=(cluster,), time_limit=100.0 + kind)
                answer(site, site.step(JobSubmitted(NOW, submitted)), NOW)
    examined: list[tuple[int, int]] = []
    check_task = site.core._placement.check_task

    def check(task: Task, view: ClusterView) -> Ineligibility | None:
        examined.append(task.task_id)
        return check_task(task, view)

    monkeypatch.setattr(site.core._placement, "check_task", check)
    for _ in range(20):
        examined.clear()
        _, sent = start_oldest(site)
        assert len(sent) == 1
        assert len(set(examined)) == 1


def test_a_pulled_task_has_a_place_where_it_was_pulled() -> None:
    site = Site(queue_depth=2)
    site.seen("right", facts(4, 0))
    single_jobs(site, "a", 1, 1, cpus=3)
    pulled = job(50, user="b", clusters=("left", "right"))
    moved = Task(pulled, 0, 1, NOW)
    moved.target = "left"
    view = site.core.state.views["left"]
    view.update_info(facts(8, 0))
    single_jobs(site, "a", 2, 5, cpus=3)
    assert site.core._placement.check_task(moved, view) is None
    moved.target = None
    assert site.core._placement.check_task(moved, view) is AWAITS_PLACE


def test_tasks_that_follow_others_of_their_user_have_waited_since_then() -> None:
    """Else a manager that goes by submission would start them before what came meanwhile."""
    site = Site(queue_depth=2)
    array = job(1, user="a", array="0-4", clusters=("left",), user_class="gold")
    answer(site, site.step(JobSubmitted(NOW, array)), NOW)
    listed(site, {}, at=NOW + 50.0)
    assert listed(site, {0: State.RUNNING}, at=NOW + 60.0) == ["1_2"]
    since = [site.core.waits_since(item) for item in site.core.tasks_of(1)]
    assert since == [NOW, NOW, NOW + 60.0, NOW, NOW]
    # once all of them have started, there is nothing to follow
    everything = dict.fromkeys(range(5), State.RUNNING)
    assert listed(site, everything, at=NOW + 70.0) == ["1_3", "1_4"]
    assert listed(site, everything, at=NOW + 80.0) == []
    later = job(2, user="a", clusters=("left",), begin=NOW + 90.0)
    site.step(JobSubmitted(NOW + 81.0, later))
    assert answer(site, site.step(TimerExpired(NOW + 90.0)), NOW + 90.0) == ["2_0"]
    assert site.core.waits_since(site.core.tasks[2, 0]) == later.submitted


def test_explain_says_that_other_tasks_wait_there() -> None:
    site = Site(queue_depth=2)
    answer(site, site.step(JobSubmitted(NOW, job(1, user="a", array="0-9"))), NOW)
    waiting = site.core.tasks[1, 9]
    assert waiting.state is State.QUEUED
    obstacles = [assessment.obstacle for assessment in site.core.assess_clusters(waiting)]
    assert obstacles == [AWAITS_PLACE, AWAITS_PLACE]
    other = Task(job(2, user="b"), 0, 1, NOW)
    assert [assessment.obstacle for assessment in site.core.assess_clusters(other)] == [None, None]


def test_a_restart_counts_the_tasks_that_wait() -> None:
    site = Site(queue_depth=4)
    answer(
        site, site.step(JobSubmitted(NOW, job(1, user="a", array="0-9", clusters=("left",)))), NOW
    )
    clusters = tuple(site.core.clusters)
    assert dispatched(site.step(DaemonStarted(NOW, "cafe", Policy(), clusters))) == []
    assert listed(site, {}, facts(8)) == []
    assert listed(site, dict.fromkeys((0, 1), State.RUNNING)) == ["1_4", "1_5"]


def test_the_default_depth_grows_with_the_cluster() -> None:
    view = ClusterView(Cluster(name="x", adapter="local"))
    assert view.queue_depth == LEAST_QUEUE_DEPTH
    view.update_info(facts(10_000))
    assert view.queue_depth == 20_000


def test_a_cluster_that_grows_gets_more_tasks() -> None:
    site = Site()
    array = job(1, user="a", array="0-1999", clusters=("left",))
    answer(site, site.step(JobSubmitted(NOW, array)), NOW)
    assert sum(map(len, portions(site, NOW))) == LEAST_QUEUE_DEPTH - MAX_RELEASED_PER_STEP
    grown = facts(LEAST_QUEUE_DEPTH)
    first = listed(site, {}, grown)
    assert len(first) + sum(map(len, portions(site, NOW))) == LEAST_QUEUE_DEPTH


def test_the_next_job_of_another_user_waits_behind_few_tasks() -> None:
    site = Site()
    site_actions = site.step(
        JobSubmitted(NOW, job(1, user="a", array="0-19999", clusters=("left",)))
    )
    answer(site, site_actions, NOW)
    list(portions(site, NOW))
    live = [item for item in site.core.tasks.values() if item.attempt is not None]
    assert len(live) == LEAST_QUEUE_DEPTH
    assert dispatched(site.step(JobSubmitted(NOW, job(2, user="b", clusters=("left",))))) == ["2_0"]


def test_groups_that_have_left_a_full_queue_are_forgotten() -> None:
    """Nothing starts there, so no place comes to look at them."""
    site = Site(queue_depth=1, maps={"account": {"*": "*"}})
    site.seen("left", facts(8, 0))
    single_jobs(site, "a", 1, 1)
    for number in range(2, 3 * LEAST_SWEEP):
        submitted = job(
            number, user="b", clusters=("left",), account=f"x{number}", time_limit=50.0 + number
        )
        site.step(JobSubmitted(NOW, submitted))
        site.step(UserRequested(NOW, "cancel", number))
    places = site.core._gates.ineligible._places
    assert sum(len(line) for lines in places._lines.values() for line in lines.values()) <= (
        LEAST_SWEEP
    )
    # who waits there still gets the place
    assert single_jobs(site, "c", 9999, 1) == []
    assert start_oldest(site) == ("a", ["9999_0"])
