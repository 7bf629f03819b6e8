"""Reservations in simulations: requested of the core, kept by managers, counted in the figures."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from metasched.cli import main
from metasched.errors import UserError
from metasched.laboratory.simulate import metrics
from metasched.laboratory.simulate.cluster_specs import parse_clusters
from metasched.laboratory.simulate.clusters import ClusterError
from metasched.laboratory.simulate.engine import WINDOW_OVER, Schedule, Simulation
from metasched.laboratory.simulate.reservation_file import MAX_REQUESTS, read_reservations
from metasched.laboratory.simulate.workload import Overlay, WindowRequest, Workload, WorkloadEntry
from metasched.model.job import Job
from metasched.model.reservation import ReservationState
from metasched.policies.local.registry import make_policy
from metasched.policies.policy import Policy

RECURRING = '[[reservation]]\nstart = "10s"\nduration = 20\ncpus = 3\nahead = 5\n'


def entry(
    number: int,
    submitted: float,
    seconds: float,
    cpus: int,
    window: WindowRequest | None = None,
    limit: float | None = None,
) -> WorkloadEntry:
    job = Job(id=number, submitted=submitted, estimated=limit or seconds, cpus=cpus, user="ada")
    return WorkloadEntry(job, seconds, number, window=window)


def simulate(
    entries: list[WorkloadEntry],
    clusters: str = "4",
    windows: tuple[WindowRequest, ...] = (),
    policy: str = "easy",
    meta: Policy | None = None,
) -> Schedule:
    workload = Workload("by hand", tuple(entries), windows=windows)
    simulated = parse_clusters(clusters)
    make = make_policy
    return Simulation(workload, simulated, meta or Policy(), lambda _: make(policy)).run()


def starts(schedule: Schedule) -> dict[int, float]:
    return {scheduled.job.id: scheduled.start for scheduled in schedule.jobs}


def test_a_job_runs_in_its_window_and_others_run_around_it() -> None:
    schedule = simulate(
        [
            entry(1, 0, 20, 3, WindowRequest(0, 50, 20, 3)),
            entry(2, 1, 49, 4),  # ends at its start
            entry(3, 2, 30, 2),  # would run into it, and beside it there is one processor
            entry(4, 3, 100, 1),
        ]
    )
    assert starts(schedule) == {1: 50, 2: 1, 3: 70, 4: 50}
    [result] = schedule.reservations
    assert (result.cluster, result.start, result.end) == ("c1", 50, 70)
    assert (result.state, result.delay, result.kept) == (ReservationState.ENDED, 0, True)


def test_a_request_without_room_is_refused_and_its_job_waits_like_all_others() -> None:
    window = WindowRequest(1, 50, 20, 3)
    schedule = simulate([entry(1, 0, 60, 2), entry(2, 1, 20, 3, window)])
    assert starts(schedule) == {1: 0, 2: 60}
    [result] = schedule.reservations
    assert (result.granted, result.kept, result.state) == (False, False, None)


def test_a_request_with_slack_is_granted_for_later() -> None:
    window = WindowRequest(1, 50, 20, 3, slack=10)
    schedule = simulate([entry(1, 0, 60, 2), entry(2, 1, 20, 3, window)])
    assert starts(schedule) == {1: 0, 2: 60}
    [result] = schedule.reservations
    assert (result.start, result.moved, result.kept) == (60, True, True)


def test_whoever_is_content_with_later_gets_the_first_later_window_of_any_cluster() -> None:
    busy = [entry(1, 0, 60, 4), entry(2, 0, 40, 4)]
    for reserve in ("earliest", "first"):
        policy = Policy(reserve=reserve, pull=False)
        window = WindowRequest(1, 10, 20, 3, or_later=True)
        schedule = simulate([*busy, entry(3, 1, 20, 3, window)], "2x4", meta=policy)
        [result] = schedule.reservations
        assert (result.cluster, result.start, result.kept) == ("c2", 40, True), reserve
    too_large = WindowRequest(1, 10, 20, 5, or_later=True)
    [result] = simulate(busy, "2x4", (too_large,)).reservations
    assert not result.granted


def test_a_job_that_outlasts_its_limit_delays_a_window_which_does_not_last_longer() -> None:
    window = WindowRequest(0, 50, 20, 3)
    schedule = simulate([entry(1, 0, 65, 4, limit=40), entry(2, 0, 20, 3, window)])
    [first, second] = schedule.jobs
    assert (first.end, second.start, second.end) == (65, 65, 70)
    [result] = schedule.reservations
    assert (result.delay, result.kept, result.state) == (15, False, ReservationState.ENDED)
    figures = metrics.reservation_figures(schedule)
    assert (figures["kept"], figures["late"], figures["mean_delay"]) == (0, 1, 15)


def test_a_job_whose_window_is_over_before_its_processors_are_free_is_counted() -> None:
    window = WindowRequest(0, 50, 20, 3)
    schedule = simulate([entry(1, 0, 90, 4, limit=40), entry(2, 0, 20, 3, window)])
    assert starts(schedule) == {1: 0}
    assert schedule.dropped == {WINDOW_OVER: 1}
    assert metrics.reservation_figures(schedule)["never_there"] == 1


def test_windows_without_jobs_are_kept_free_of_all() -> None:
    windows = tuple(WindowRequest(start - 30, start, 10, 2) for start in (30.0, 60.0))
    schedule = simulate([entry(1, 0, 25, 4), entry(2, 1, 21, 4), entry(3, 2, 70, 2)], "4", windows)
    assert starts(schedule) == {1: 0, 2: 70, 3: 91}
    assert [result.kept for result in schedule.reservations] == [True, True]
    assert {result.job for result in schedule.reservations} == {None}


def test_the_policy_chooses_the_cluster_of_a_reservation() -> None:
    busy = entry(1, 0, 60, 4)
    for reserve, cluster, start in (("earliest", "c2", 10), ("first", "c1", 60)):
        policy = Policy(reserve=reserve, pull=False)  # type: ignore[arg-type]
        window = WindowRequest(1, 10, 20, 3, slack=100)
        schedule = simulate([busy, entry(2, 1, 20, 3, window)], "2x4", meta=policy)
        [result] = schedule.reservations
        assert (result.cluster, result.start) == (cluster, start), reserve


def test_a_share_of_the_jobs_reserves_and_other_draws_stay_as_they_are() -> None:
    workload = Workload("many", tuple(entry(n, 10.0 * n, 30, 2) for n in range(1, 401)))
    plain = Overlay(deadlines=0.5, gold=0.2)
    reserving = replace(plain, reserved=0.25, reserved_ahead=(60, 90), reserved_slack=(5, 5))
    before, after = plain.apply(workload, 7), reserving.apply(workload, 7)
    assert [e.job for e in before.entries] == [e.job for e in after.entries]
    windows = [e.window for e in after.entries if e.window is not None]
    assert 70 < len(windows) < 130
    assert all(60 <= w.ready - w.submitted <= 90 and w.slack == 5 for w in windows)
    with pytest.raises(ValueError, match="reserved_ahead is 9:3"):
        Overlay(reserved_ahead=(9, 3))


def test_reservations_of_a_file_recur(tmp_path: Path) -> None:
    path = tmp_path / "course.toml"
    path.write_text(RECURRING + 'every = "1m"\ncount = 3\nclusters = ["c1"]\n')
    requests = read_reservations(path)
    assert [(r.submitted, r.ready) for r in requests] == [(5, 10), (65, 70), (125, 130)]
    assert {(r.duration, r.cpus, r.clusters) for r in requests} == {(20, 3, ("c1",))}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (RECURRING + "count = 2\n", "no every"),
        (RECURRING.replace("20", "-1"), "duration"),
        (RECURRING.replace("20", "nan"), "duration"),
        (RECURRING + "colour = 3\n", "colour"),
        (RECURRING + f'every = "1s"\ncount = {MAX_REQUESTS}\n' + RECURRING, "at most"),
        ("", "reservation"),
        ("[[reservation", "course.toml"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(
    text: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "course.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=problem) as refusal:
        read_reservations(path)
    assert "\n" not in str(refusal.value)


def test_a_policy_that_keeps_no_windows_and_an_unknown_cluster_are_refused() -> None:
    window = WindowRequest(0, 50, 20, 3)
    with pytest.raises(ClusterError, match="its policy does not keep"):
        simulate([entry(1, 0, 20, 3, window)], policy="edf-p")
    with pytest.raises(ClusterError, match='cluster "moon"'):
        simulate([entry(1, 0, 20, 3)], windows=(window._replace(clusters=("moon",)),))


def test_the_command_prints_what_became_of_reservations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, course, out = (tmp_path / name for name in ("trace.swf", "course.toml", "out.csv"))
    trace.write_text(
        "; MaxProcs: 4\n1 0 0 20 2 0 -1 2 25 -1 1 1 1 1 1 1 -1 -1\n"
        "2 1 0 20 4 0 -1 4 25 -1 1 1 1 1 1 1 -1 -1\n"
    )
    course.write_text(RECURRING.replace('"10s"', "30").replace("5\n", "30\n"))

    def run(*arguments: str, reservations: Path = course) -> str:
        options = ["--policy", "easy", "--reservations", str(reservations), *arguments]
        monkeypatch.setattr("sys.argv", ["metasched", "simulate", str(trace), *options])
        assert (main() == 0) == (reservations is course)
        return "".join(capsys.readouterr())

    figures = json.loads(run("--json", "--schedule", str(out)))["reservations"]
    assert (figures["requested"], figures["accepted"], figures["kept"]) == (1, 1, 1)
    assert figures["mean_wait_of_others"] == (0 + 49) / 2
    with open(out) as file:
        assert [row["start"] for row in csv.DictReader(file)] == ["0", "50"]
    assert "kept_share" in run()
    compared = json.loads(run("--policy", "fcfs", "--json"))
    assert {"kept_share", "refused_share"} <= {row["figure"] for row in compared}
    assert "create it, or name another" in run(reservations=tmp_path / "none.toml")
