"""Places of clusters and licence tokens: users who always have tasks waiting get equal parts."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, islice

from hypothesis import event as note
from hypothesis import given
from hypothesis import strategies as st

from metasched.core.events import Dispatch, DispatchAccepted, JobSubmitted, UserRequested
from metasched.core.licences.queue import LicenceQueue
from metasched.core.tasks import TaskId
from metasched.core.transitions import LIVE
from metasched.core.user_turns import UserTurns
from metasched.model.fair_share import FairShareSettings, ShareTree
from metasched.model.job import Job, State
from metasched.model.licence import Lease, LicencePool
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from tests.harness.examples import examples
from tests.unit.core_site import NOW, Site, facts, job

DEPTH = 3  # tasks that wait in each cluster
BACKLOG = 60  # tasks of each user
# two users' turns differ by one at any time, so over an interval by two
MOST = 2


def accept(site: Site) -> Counter[str]:
    """Let the managers accept what was dispatched; return the number of tasks by user."""
    dispatched: Counter[str] = Counter()
    for action in site.out.actions:
        if isinstance(action, Dispatch):
            dispatched[site.core.tasks[action.job, action.indices[0]].job.user] += len(
                action.indices
            )
    for action in [action for action in site.out.actions if isinstance(action, Dispatch)]:
        natives = dict.fromkeys(action.indices, "7")
        site.step(DispatchAccepted(site.core.state.now, action.job, action.dispatch_id, natives))
    return dispatched


@given(
    shapes=st.lists(st.sampled_from(["single", "array", "range", "held"]), min_size=2, max_size=5),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["left", "right"]), st.integers(1, 4), st.sampled_from(["", "", "hold"])
        ),
        min_size=4,
        max_size=20,
    ),
    weights=st.none() | st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=5, max_size=5),
)
@examples(60)
def test_users_with_backlogs_get_their_parts_of_places(
    shapes: list[str], steps: list[tuple[str, int, str]], weights: list[float] | None
) -> None:
    """Users take turns, or have weights of fair share, and all tasks are charged alike.

    Tasks start on two clusters in any number; arrays are held and released.
    """
    fair_share = None
    if weights is not None:
        tree = ShareTree(users={f"u{number}": weight for number, weight in enumerate(weights)})
        fair_share = FairShareSettings(half_life=1e9, tree=tree)
    site = Site(queue_depth=DEPTH, remainder_minimum=8, fair_share=fair_share)
    for name in ("left", "right"):
        site.seen(name, facts(8, 0))
    users = [f"u{number}" for number in range(len(shapes))]
    number, holds = 0, dict[int, bool]()  # by array of a user of "held": whether it is held
    for user, shape in zip(users, shapes, strict=True):
        sizes = {"single": [1] * BACKLOG, "array": [5] * (BACKLOG // 5)}.get(shape, [BACKLOG])
        for size in sizes + ([BACKLOG] if shape == "held" else []):
            number += 1
            array = f"0-{size - 1}" if size > 1 else None
            site.step(JobSubmitted(NOW, job(number, user=user, array=array)))
            accept(site)
        if shape == "held":
            holds[number] = False
    start = Counter(task.job.user for task in site.core.tasks.values() if task.state in LIVE)
    counts, now = [start], NOW
    for name, starts, action in steps:
        now += 1.0
        for held in holds if action == "hold" else ():
            holds[held] = not holds[held]
            site.step(UserRequested(now, "hold" if holds[held] else "release", held, by="ada"))
            counts.append(counts[-1] + accept(site))
        waiting = site.core.state.views[name].unstarted_tasks.values()
        rows = [
            JobStatus(
                tag_of("cafe", task.job.id, task.live_attempt.dispatch_id),
                task.index,
                "7",
                State.RUNNING,
                started=now,
            )
            for task in islice(waiting, starts)
        ]
        site.seen(name, None, *rows, at=now, partial=True)
        counts.append(counts[-1] + accept(site))
    if counts[-1].total() > len(users):
        note("several rounds of turns")
    if weights is None:
        for first, last in combinations(counts, 2):
            parts = [last[user] - first[user] for user in users]
            assert max(parts) - min(parts) <= MOST, parts
        return
    note("fair share")
    for count in counts:  # who had a place last had the least use for his weight before
        least = min(count[user] / weight for user, weight in zip(users, weights, strict=False))
        for user, weight in zip(users, weights, strict=False):
            if count[user] > start[user]:
                assert (count[user] - 1) / weight <= least + 1e-6, count


# tokens and duration in steps of each task of a user
REQUESTS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=2, max_size=5)


@given(requests=REQUESTS, visitors=st.lists(st.integers(0, 2), min_size=20, max_size=30))
@examples(150)
def test_every_user_gets_tokens_after_a_bounded_number_of_turns(
    requests: list[tuple[int, int]], visitors: list[int]
) -> None:
    """Users have backlogs, and in each step `visitors` submit a short task for one token.

    Nobody waits for longer than two rounds of turns, each turn for the tasks in progress. A task
    for which tokens are kept waits for the tasks in progress alone.
    """
    total, longest = 4, max(lasts for _, lasts in requests)
    queue = LicenceQueue()
    queue.configure([LicencePool(name="a", total=total)], 0.0)
    queue.set_turns(UserTurns(), 1e6)
    queued: dict[TaskId, tuple[str, int, int]] = {}  # user, tokens, steps
    held: list[tuple[int, int, TaskId]] = []  # step of its end, tokens
    served_at = {f"u{number}": 0 for number in range(len(requests))}
    kept_since: dict[TaskId, int] = {}

    def submit(user: str, tokens: int, lasts: int, now: float) -> None:
        task_id = (len(queued) + 1, 0)
        queued[task_id] = user, tokens, lasts
        waiting = Job(id=task_id[0], submitted=now, estimated=1.0, user=user)
        queue.join(task_id, now, {"a": tokens}, float(lasts), job=waiting)

    for number, (tokens, lasts) in enumerate(requests):
        for _ in range(BACKLOG):
            submit(f"u{number}", tokens, lasts, 0.0)
    for now, arrivals in enumerate(visitors):
        queue.rank_anew(float(now))
        for end, tokens, task_id in list(held):
            if end <= now:
                queue.return_lease(task_id, float(now), was_used=True)
                held.remove((end, tokens, task_id))
        for number in range(arrivals):
            submit(f"v{now}-{number}", 1, 1, float(now))
        while (granted := queue.next_ready(float(now))) is not None:
            user, tokens, lasts = queued[granted]
            queue.take(Lease(*granted, 1, {"a": tokens}, float(now)), float(now + lasts))
            held.append((now + lasts, tokens, granted))
            served_at[user] = now
            kept_since.pop(granted, None)
        assert sum(tokens for _, tokens, _ in held) <= total
        for task_id in queue._state.order.promised:
            kept_since.setdefault(task_id, now)
        for since in kept_since.values():
            note("tokens are kept")
            assert now - since < longest
        rounds = 2 * (len(requests) - 1) + 1 + sum(visitors[: now + 1])
        for number in range(len(requests)):
            assert now - served_at[f"u{number}"] <= rounds * longest
