"""Known jobs are found by what their owners cannot change, whatever the tags say."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from metasched.adapters.known_jobs import KnownJobs, is_same_job
from metasched.model.job import State
from metasched.model.listing import JobStatus, KnownJob

OWNERS = ("ada", "bob")
TASKS = st.integers(0, 5)
# what a job's text may say after its owner, or a plug-in, had it: None: no tag of metasched
TEXTS = st.none() | TASKS


@dataclass
class Job:
    """A job of a manager; `task` is that of metasched, None for a job of its owner."""

    native_id: str
    owner: str
    submitted: float  # by the manager's clock
    task: int | None
    text: int | None
    restarts: int = 0


@dataclass
class World:
    """A manager after changes of tags, requeues, and a kill that issued ids again."""

    jobs: list[Job]
    listed: list[KnownJob]  # as the last listing had them
    unlisted: list[KnownJob]
    lead: float


def tag(task: int | None) -> str:
    return "" if task is None else f"ms-abc-{task + 1}-1"


@st.composite
def worlds(draw: st.DrawFn) -> World:
    lead = draw(st.sampled_from([-4000.0, 0.0, 1.0, 7200.0]))
    clock, ids = 1000.0, count(1)
    world = World([], [], [], lead)
    forgotten: list[str] = []
    for task in range(draw(st.integers(1, 6))):
        owner, native_id = draw(st.sampled_from(OWNERS)), str(next(ids))
        dispatched = clock + draw(st.floats(0, 100))
        accepted = dispatched + draw(st.floats(0, 30))
        clock = accepted + draw(st.floats(3, 100))
        submitted = float(int(draw(st.floats(dispatched, accepted)) + lead))
        was_listed, is_lost = draw(st.booleans()), draw(st.booleans())
        known = KnownJob(
            *(native_id, tag(task), 0, owner, dispatched, accepted),
            *(submitted if was_listed else None, 0),
        )
        (world.listed if was_listed else world.unlisted).append(known)
        if is_lost:
            forgotten.append(native_id)
            continue
        job = Job(native_id, owner, submitted, task, draw(TEXTS))
        if draw(st.booleans()):  # its manager requeues it
            job.submitted, job.restarts = submitted + draw(st.integers(1, 900)), 1
        world.jobs.append(job)
    clock += 5.0
    for native_id in [*forgotten, *(str(next(ids)) for _ in range(draw(st.integers(0, 4))))]:
        if draw(st.booleans()):
            clock += draw(st.floats(0, 50))
            submitted = float(int(clock + lead))
            other = Job(native_id, draw(st.sampled_from(OWNERS)), submitted, None, draw(TEXTS))
            world.jobs.append(other)
    return world


def row_of(job: Job, index: int = 0) -> JobStatus:
    return JobStatus(
        *(tag(job.text), index, job.native_id, State.RUNNING),
        restarts=job.restarts,
        owner=job.owner,
        submitted=job.submitted,
    )


def known_jobs(world: World) -> KnownJobs:
    rows = {
        (job.tag, job.task, job.owner): JobStatus(
            *(job.tag, job.task, job.native_id, State.PENDING),
            owner=job.owner,
            submitted=job.submitted,
        )
        for job in world.listed
    }
    return KnownJobs(rows, world.unlisted)


@given(worlds())
def test_each_known_job_has_its_row_and_no_other_job_has(world: World) -> None:
    known = known_jobs(world)
    rows = [row_of(job) for job in world.jobs]
    tagged = [row for row in rows if row.tag]
    untagged = [row for row in rows if not row.tag and row.native_id in known.by_id]
    found, copies, _ = known.identify(tagged, untagged, world.lead)
    by_key: dict[tuple[str, str], list[str]] = {}
    for row in found:
        by_key.setdefault((row.tag, row.owner), []).append(row.native_id)
    for job in world.jobs:
        if job.task is not None:
            assert by_key[tag(job.task), job.owner] == [job.native_id]
    present = {job.task for job in world.jobs}
    for lost in world.listed:
        if int(lost.tag.split("-")[2]) - 1 not in present:
            # an owner who gets the id again, and writes the tag again, asks for it
            assert by_key.get((lost.tag, lost.owner), [lost.native_id]) == [lost.native_id]
    # what is dropped was the text of its owner: no row of a job by another account
    for copy in copies:
        assert any(
            job.native_id == copy.native_id and job.owner == copy.owner for job in world.jobs
        )
    own = {row.native_id: row.owner for row in rows}
    assert all(own[row.native_id] == row.owner for row in found)


@given(worlds())
def test_a_job_that_got_an_id_again_is_never_the_known_job(world: World) -> None:
    known = known_jobs(world)
    for job in world.jobs:
        if job.task is None and (former := known.by_id.get(job.native_id)) is not None:
            assert not is_same_job(former, row_of(job), world.lead)
