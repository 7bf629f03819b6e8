"""Submission schemes of the simulator, with and without the core: small cases worked by hand."""

from __future__ import annotations

import pytest

from metasched.core.events import CoreEvent, JobSubmitted, ListingReceived, Outcome
from metasched.laboratory.simulate.cluster_specs import parse_clusters
from metasched.laboratory.simulate.clusters import Machine, SimulatedCluster
from metasched.laboratory.simulate.engine import ScheduledJob, Simulation
from metasched.laboratory.simulate.schemes import USER_CHOICES, SubmissionScheme
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.model.job import Job
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy

PUSH = Policy(load="paper", pull=False)
LATE = Policy(send="late")


def request(
    number: int,
    submitted: float,
    cpus: int,
    estimated: float,
    ran: float | None = None,
    **fields: str,
) -> WorkloadEntry:
    job = Job(id=number, submitted=submitted, estimated=estimated, cpus=cpus)
    return WorkloadEntry(job, estimated if ran is None else ran, number, fields.get("home", ""))


def run(
    scheme: SubmissionScheme,
    *requests: WorkloadEntry,
    clusters: str | list[SimulatedCluster] = "4,4",
    policy: Policy = PUSH,
) -> tuple[ScheduledJob, ...]:
    described = parse_clusters(clusters) if isinstance(clusters, str) else clusters
    workload = Workload("small", requests)
    local = lambda c: make_policy("easy", licences=c.licences)  # noqa: E731
    return Simulation(workload, described, policy, local, scheme=scheme).run().jobs


def where(placed: tuple[ScheduledJob, ...]) -> list[tuple[int, float]]:
    return [(p.cluster, p.start) for p in placed]


def test_at_home_a_job_waits_though_another_cluster_is_empty() -> None:
    jobs = [request(n, 0, 4, 10, home="c2") for n in (1, 2)]
    assert where(run(SubmissionScheme(user_choice="home"), *jobs)) == [(1, 0), (1, 10)]
    # if its home cannot run it, the first cluster that can
    assert where(run(SubmissionScheme(user_choice="home"), *jobs, clusters="4,2")) == [
        (0, 0),
        (0, 10),
    ]


def test_duplicates_run_where_they_can_start_first_and_once() -> None:
    jobs = [request(1, 0, 4, 10), request(2, 0, 4, 30), request(3, 1, 4, 5), request(4, 1, 4, 5)]
    placed = run(SubmissionScheme(user_choice="duplicates"), *jobs)
    assert where(placed) == [(0, 0), (1, 0), (0, 10), (0, 15)]
    assert [(p.priority, p.moves) for p in placed] == [(0, 0)] * 4


def test_sbatch_takes_what_waits_for_what_it_must_wait_for() -> None:
    """Two jobs of one processor and 100 s wait on c1; they would run beside the new job.

    Slurm's estimate for c1 counts them: 10 s + 2 x 100 cpu seconds / 4 = 60 s. For c2 it is 50 s.
    """
    before = [
        *(request(1, 0, 4, 10, home="c1"), request(2, 0, 1, 100, home="c1")),
        *(request(3, 0, 1, 100, home="c1"), request(4, 0, 4, 50, home="c2")),
    ]
    held = [r._replace(direct=True) for r in before]
    last = request(5, 1, 2, 20)
    assert where(run(SubmissionScheme(user_choice="sbatch"), *held, last))[-1] == (1, 50)
    assert where(run(SubmissionScheme(user_choice="foreseen"), *held, last))[-1] == (0, 10)
    assert where(run(SubmissionScheme(planned_dispatch=True), *held, last))[-1] == (0, 10)


def test_sbatch_prefers_the_home_among_equals() -> None:
    assert where(run(SubmissionScheme(user_choice="sbatch"), request(1, 0, 1, 10, home="c2"))) == [
        (1, 0)
    ]
    assert where(run(SubmissionScheme(user_choice="sbatch"), request(1, 0, 1, 10))) == [(0, 0)]


def test_sbatch_looks_at_the_machines_that_can_run_the_job() -> None:
    """Four processors are free on c1, but none of its machines has the two that the job needs."""
    small = SimulatedCluster.of_machines("c1", [Machine(1) for _ in range(4)])
    large = SimulatedCluster.of_machines("c2", [Machine(2)])
    before = request(1, 0, 2, 30)
    assert where(run(SubmissionScheme(user_choice="sbatch"), before, clusters=[small, large])) == [
        (1, 0)
    ]


def test_the_plan_goes_by_limits_and_the_oracle_by_true_times() -> None:
    """On c1 a job requests 100 s and runs 5 s; on c2 a job requests 50 s and uses them all."""
    before = [request(1, 0, 4, 100, 5, home="c1"), request(2, 0, 4, 50, home="c2")]
    held = [r._replace(direct=True) for r in before]
    last = request(3, 1, 4, 10)
    assert where(run(SubmissionScheme(planned_dispatch=True), *held, last))[-1] == (1, 50)
    assert where(run(SubmissionScheme(user_choice="foreseen"), *held, last))[-1] == (0, 5)


def test_what_is_sent_late_waits_for_no_cluster() -> None:
    """Dispatched early, job 3 goes to c1, whose queue looks as empty, and waits there 100 s."""
    jobs = [request(1, 0, 4, 100), request(2, 0, 4, 50), request(3, 1, 4, 10)]
    assert where(run(SubmissionScheme(), *jobs))[-1] == (0, 100)
    assert where(run(SubmissionScheme(), *jobs, policy=LATE))[-1] == (1, 50)


def test_what_is_sent_late_goes_by_the_aged_key_and_keeps_a_place_for_the_first() -> None:
    """Job 3 cannot start and is promised c2 at 50; job 4 would delay it there, job 5 would not."""
    jobs = [
        *(request(1, 0, 4, 100), request(2, 0, 3, 50), request(3, 1, 4, 10)),
        *(request(4, 2, 1, 60), request(5, 2, 1, 40)),
    ]
    assert where(run(SubmissionScheme(), *jobs, policy=LATE))[2:] == [(1, 50), (1, 60), (1, 2)]
    urgent = jobs[3]._replace(job=Job(id=4, submitted=2.0, estimated=60.0, deadline=62.0))
    jobs[3] = urgent
    assert where(run(SubmissionScheme(), *jobs, policy=LATE))[3] == (1, 2)


def test_the_core_hears_of_other_peoples_jobs_in_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[CoreEvent] = []
    step = Simulation._step_core

    def watched(engine: Simulation, event: CoreEvent) -> Outcome | None:
        events.append(event)
        return step(engine, event)

    monkeypatch.setattr(Simulation, "_step_core", watched)
    direct = [request(n, 0, 4, 10, home="c1")._replace(direct=True) for n in (1, 2)]
    placed = run(SubmissionScheme(), *direct, request(3, 1, 4, 10), policy=Policy())
    assert where(placed) == [(0, 0), (0, 10), (1, 1)]
    assert [e.job.id for e in events if isinstance(e, JobSubmitted)] == [3]
    facts = [
        e.info for e in events if isinstance(e, ListingReceived) and e.cluster == "c1" and e.info
    ]
    assert max(f.owed_by_others for f in facts) == 40
    assert facts[-1].owed_by_others == 0
    assert not any(
        row.tag == "" for e in events if isinstance(e, ListingReceived) for row in e.rows
    )


def test_an_unknown_choice_is_reported() -> None:
    with pytest.raises(ValueError, match="must be one of home, random"):
        SubmissionScheme(user_choice="best")
    names = {"home", "random", "duplicates", "shortest queue", "sbatch", "foreseen"}
    assert set(USER_CHOICES) == names
