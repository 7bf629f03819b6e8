"""Advance reservations through the command line, on every manager that supports them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from tests.e2e.conftest import Site, reserve
from tests.e2e.reservable_clusters import LOCATION_CPUS, ReservableCluster, SlurmReservations
from tests.harness.daemons import BootError

IN_AN_HOUR = ("--start", "+1h", "--duration", "10m")
WHOLE_LOCATION = str(LOCATION_CPUS)
IN_MATRIX = pytest.mark.skipif(  # it takes as long as Slurm's shortest window
    "METASCHED_SLURM_BIN" not in os.environ, reason="`make test-matrix` runs it"
)


def end_in_order(site: Site) -> None:
    """Stop the daemon; assert that its events replay and its database is intact."""
    assert site.stop() == 0
    site.replayed()
    checked = site.run("db", "check").stdout
    assert "fail" not in checked
    assert "wrong" not in checked


def cancel(site: Site, cluster: ReservableCluster, *reservations: int) -> None:
    """Cancel reservations and wait until the manager has none left."""
    for id in reservations:
        site.run("reservation", "cancel", str(id))
    site.until(lambda: cluster.reservations() == {})


def until_state(site: Site, reservation: int, state: str) -> None:
    site.until(lambda: site.reservation(reservation)["state"] == state)


def offered_cpus(cluster: ReservableCluster, offer: Mapping[str, int | None]) -> int | None:
    """Return the processors of an offer, which counts nodes if nodes are reserved."""
    if not cluster.capabilities.reserves_named_nodes:
        assert offer["nodes"] is None
        return offer["processors"]
    assert offer["processors"] is None
    assert offer["nodes"] is not None
    return offer["nodes"] * LOCATION_CPUS


def amount(cluster: ReservableCluster, cpus: int) -> str:
    """Format a number of processors as in a refusal."""
    if not cluster.capabilities.reserves_named_nodes:
        return f"{cpus} processors"
    nodes = cpus // LOCATION_CPUS
    return f"{nodes} node{'s' if nodes > 1 else ''}"


def waiting_for(path: str) -> tuple[str, str]:
    """Return arguments of `submit` for a job that runs until the file exists."""
    return "--wrap", f"while [ ! -e {path} ]; do sleep 0.2; done"


def test_flexible_requests_are_offered_windows_and_nothing_is_reserved(
    cluster: ReservableCluster, reserving_site: Site
) -> None:
    site = reserving_site
    within = ("--duration", "10m", "--deadline", "+1h", "--dry-run")
    between = ("--at-least", "1m", "--at-most", "30m", "--deadline", "+1h", "--dry-run")
    for arguments, cpus, seconds in (
        (("--size", "3", *within), cluster.round_up(3), 600),
        (("--at-least", "2", "--at-most", "20", *within), cluster.cpus, 600),
        (("--size", "8", *between), 8, 1800),
    ):
        [offer] = site.json("reserve", *arguments)["offers"]
        start, end = (datetime.fromisoformat(offer[side]) for side in ("start", "end"))
        assert (offered_cpus(cluster, offer), (end - start).total_seconds()) == (cpus, seconds)
        [(first, last)] = offer["starts"]
        assert first == offer["start"]
        assert datetime.fromisoformat(last) > datetime.fromisoformat(first)
    assert site.json("reservations") == []
    assert cluster.reservations() == {}


@pytest.mark.slow("windows begin after 12 s, and Slurm's scheduler starts jobs in them late")
def test_jobs_wait_for_their_windows_and_run_in_them_beside_batch_jobs(
    cluster: ReservableCluster, reserving_site: Site
) -> None:
    site = reserving_site
    window = ("--start", "+12s", "--duration", "2m")
    [offer] = site.json("reserve", "--size", "2", *window, "--dry-run")["offers"]
    assert offered_cpus(cluster, offer) == cluster.round_up(2)
    assert offer["starts"] == [[offer["start"], offer["start"]]]
    small, large = (reserve(site, "--size", size, *window) for size in ("1", "2"))
    sizes = [cluster.round_up(1), cluster.round_up(2)]
    assert [(reservation["state"], reservation["size"]) for reservation in (small, large)] == [
        ("bound", size) for size in sizes
    ]
    assert [
        len(cluster.natives_of(reservation["reservation"])) for reservation in (small, large)
    ] == [1, 1]
    inside = [
        site.submit(
            *("--reservation", str(reservation["reservation"]), "-n", str(reservation["size"])),
            *waiting_for(f"{site.folder}/over"),
        )
        for reservation in (small, large)
    ]
    free = cluster.cpus - sum(sizes)

    refusal = site.error("reserve", "--size", str(free + 1), *window, code=3)
    assert refusal.startswith("that is not free; ")
    assert f"{cluster.name} has {amount(cluster, free)} from " in refusal
    refusal = site.error("reserve", "--size", str(cluster.cpus + 1), *window, code=3)
    assert refusal == (
        f"no cluster has {cluster.cpus + 1} processors, the largest is {cluster.name} with "
        f"{cluster.cpus}; ask for fewer"
    )
    if not cluster.capabilities.reserves_named_nodes:
        refusal = site.error("reserve", "--nodes", "--size", "1", *window, code=3)
        assert refusal == f"only processors can be reserved on {cluster.name}; leave out --nodes"
    job = ("submit", "--reservation", str(large["reservation"]), "--wrap", "true")
    refusal = site.error(*job, "-n", str(large["size"] + 1), code=3)
    assert f"reservation {large['reservation']} has {large['size']} " in refusal
    assert f"{large['reservation']} lasts" in site.error(*job, "-t", "1:00:00", code=3)

    site.until(lambda: [row["state"] for row in site.rows(*inside)] == ["running"] * 2)
    batch = site.submit("-n", str(free), "-t", "1", *waiting_for(f"{site.folder}/over"))
    site.until(lambda: site.row(batch)["state"] == "running")
    later = site.submit("-n", "1", "-t", "1", "--wrap", "true")
    site.until(lambda: site.row(later)["state"] == "pending")
    site.until(lambda: all(row["used"] == row["cpus"] for row in site.cluster_rows()))
    if not cluster.capabilities.reserves_named_nodes:  # reserved nodes are not counted
        assert site.cluster_rows()[0]["cpus"] == cluster.cpus
    assert site.row(later)["state"] == "pending"
    natives = [row["native_id"] for row in site.rows(*inside, batch)]
    reservations = [reservation["reservation"] for reservation in (small, large)]
    cluster.check_apart(dict(zip(reservations, natives, strict=False)), natives[-1])
    for reservation in (small, large):
        until_state(site, reservation["reservation"], "active")

    (site.folder / "over").touch()
    rows = site.until_ended(*inside, batch, later)
    assert {row["state"] for row in rows} == {"completed"}
    start = datetime.fromisoformat(small["start"])
    assert all(datetime.fromisoformat(row["started"]) >= start for row in rows[:2])
    site.run("reservation", "cancel", str(small["reservation"]))
    site.until(lambda: not cluster.natives_of(small["reservation"]))
    assert site.reservation(small["reservation"])["state"] == "cancelled"
    cancel(site, cluster, large["reservation"])
    end_in_order(site)


@pytest.mark.slow("boots the cluster; a job waits until its window begins")
def test_jobs_of_the_named_accounts_alone_run_in_their_window(
    cluster: ReservableCluster, site: Site
) -> None:
    site.configure(cluster.table(site.folder) + '[cluster.map.account]\n"*" = "*"\n')
    site.start()
    terms = ("--size", WHOLE_LOCATION, "--duration", "10m", "--accounts", "aero,marine")
    if not cluster.capabilities.reserves_for_accounts:
        assert "its manager reserves for users" in site.error("reserve", *terms, code=3)
        return
    assert "beside users" in site.error("reserve", *terms, "--users", "daemon", code=2)
    made = reserve(site, *terms)
    id = made["reservation"]
    assert made["state"] in ("bound", "active")  # its window begins at once
    assert (made["accounts"], made["users"]) == (["aero", "marine"], [])
    [native] = cluster.natives_of(id)
    assert isinstance(cluster, SlurmReservations)
    shown = cluster.show(native)
    assert "Accounts=aero,marine" in shown
    assert "Users=(null)" in shown
    natively = ("sbatch", f"--reservation={native}", "--output=/dev/null", "--wrap=true")
    if cluster.slurm.release < (23, 11):  # in later ones SlurmUser may use any reservation
        with pytest.raises(BootError, match="denied"):
            cluster.slurm.run(*natively, "--account=astro")
    cluster.slurm.run(*natively, "--account=marine")

    job = ("submit", "--reservation", str(id), "-t", "1", "--wrap", "true")
    refusal = f"reservation {id} is for jobs of account aero, marine, this one"
    assert f"{refusal} names none" in site.error(*job, code=3)
    assert f"{refusal} has astro" in site.error(*job, "--account", "astro", code=3)
    inside = site.submit(*job[1:], "--account", "marine")
    waiting = site.submit(*job[1:], "--account", "aero", "--begin", "+5m")
    change = ("modify", str(waiting), "--account")
    assert f"{refusal} has astro" in site.error(*change, "astro", code=3)
    site.run(*change, "marine")
    [row] = site.until_ended(inside)
    assert row["state"] == "completed"
    site.run("cancel", str(waiting))
    site.until_ended(waiting)
    cancel(site, cluster, id)
    end_in_order(site)


def location_after_move(cluster: ReservableCluster, site: Site, id: int, before: str) -> str:
    """Return the only location of a reservation once it has left `before`.

    Slurm lists no cores for some seconds, so the check and the result use the same answer.
    """

    def locations() -> list[str]:
        locations = cluster.locations_of(id) if len(cluster.natives_of(id)) == 1 else []
        return locations if before not in locations else []

    [location] = site.until(locations)
    assert isinstance(location, str)
    return location


def until_without_spare(site: Site, id: int) -> None:
    site.until(lambda: "no other node is free" in site.reservation(id)["cause"])


@pytest.mark.slow("reservations leave disabled nodes after several polls, four times")
@pytest.mark.usefixtures("divided")
def test_a_disabled_location_is_replaced_and_what_waits_in_the_reservation_comes_along(
    cluster: ReservableCluster, reserving_site: Site
) -> None:
    site = reserving_site
    id = reserve(site, "--size", WHOLE_LOCATION, *IN_AN_HOUR)["reservation"]
    [first] = site.until(lambda: cluster.locations_of(id))
    job = site.submit("--reservation", str(id), "-n", WHOLE_LOCATION, "-t", "1", "--wrap", "true")
    site.until(lambda: site.row(job)["state"] == "pending")
    site.until(lambda: site.row(job)["reason"].startswith(cluster.pending_reason))
    native = site.row(job)["native_id"]
    crowded = []  # in another window, for which no other location is free
    if cluster.capabilities.reserves_named_nodes:
        later = ("--start", "+3h", "--duration", "10m")
        crowded = [reserve(site, "--size", str(cluster.cpus), *later)["reservation"]]

    cluster.disable(first)
    second = location_after_move(cluster, site, id, first)
    for other in crowded:
        until_without_spare(site, other)
        assert first in site.reservation(other)["nodes"]
    assert [cluster.reservation_of_job(native)] == cluster.natives_of(id)
    site.until(lambda: site.reservation(id)["cause"].startswith("moved to"))
    assert site.reservation(id)["state"] == "bound"
    if cluster.capabilities.reserves_named_nodes:
        assert site.reservation(id)["nodes"] == [second]

    spare = [location for location in cluster.locations if location not in (first, second)]
    for location in (*spare, second):
        cluster.disable(location)
    until_without_spare(site, id)
    assert site.reservation(id)["state"] == "bound"
    for location in cluster.locations:
        cluster.enable(location)
    site.until(lambda: site.reservation(id)["cause"] == "its nodes can be used again")
    row = site.row(job)
    assert (row["state"], row["native_id"]) == ("pending", native)
    site.run("cancel", str(job))
    site.until_ended(job)
    cancel(site, cluster, id, *crowded)
    end_in_order(site)


@pytest.mark.slow("a job fills the cluster; then the daemon is killed and started")
def test_a_reservation_that_its_manager_lost_is_created_again(
    cluster: ReservableCluster, reserving_site: Site
) -> None:
    site, size = reserving_site, str(cluster.cpus)
    id = reserve(site, "--size", size, *IN_AN_HOUR)["reservation"]
    [native] = cluster.natives_of(id)
    # the whole cluster is reserved for later, but free now
    before = site.submit("-n", size, "-t", "1", "--wrap", "true")
    assert site.until_ended(before)[0]["state"] == "completed"
    site.until(lambda: site.cluster_rows()[0]["used"] == 0)

    job = site.submit("--reservation", str(id), "-t", "1", "--wrap", "true")
    site.until(lambda: site.row(job)["state"] == "pending")
    site.stop(signal.SIGKILL)
    cluster.end_jobs()
    cluster.delete_reservation(native)
    assert cluster.natives_of(id) == []
    site.start()
    site.until(lambda: cluster.natives_of(id))
    until_state(site, id, "bound")
    cancel(site, cluster, id)
    end_in_order(site)


@pytest.mark.slow("starts the controller three times, and kills the daemon")
@pytest.mark.parametrize("reservable", ["slurm-nodes", "slurm-processors"], indirect=True)
def test_a_request_that_a_manager_forgets_is_repeated(
    cluster: SlurmReservations, reserving_site: Site
) -> None:
    """Slurm only: Grid Engine stores each change before it answers."""
    site = reserving_site
    cancelled = reserve(site, "--size", WHOLE_LOCATION, *IN_AN_HOUR)["reservation"]
    with cluster.slurm.forgetting():
        site.until(lambda: site.cluster_rows()[0]["state"] == "up")
        cancel(site, cluster, cancelled)
        later = ("--size", "2", "--start", "+2h", "--duration", "10m")
        other = site.until(lambda: reserve(site, *later))
        assert other["state"] == "bound"
        site.stop(signal.SIGKILL)
    # the controller has forgotten the deletion and the other reservation
    assert cluster.natives_of(cancelled)
    assert not cluster.natives_of(other["reservation"])
    site.start()
    site.until(lambda: not cluster.natives_of(cancelled))
    site.until(lambda: cluster.natives_of(other["reservation"]))
    until_state(site, other["reservation"], "bound")
    end_in_order(site)


@pytest.mark.slow("waits for a window 45 s ahead, or moves a reservation twice")
@pytest.mark.usefixtures("divided")
def test_a_reservation_is_moved_so_that_another_fits(
    cluster: ReservableCluster, reserving_site: Site
) -> None:
    """On two locations, A[0,1) B[2,3) share a location beside C[0,2); X[1,3) fits only if B moves.

    With short windows, A and B are swapped, as are C and X; the job in B runs after the move.
    """
    site = reserving_site
    for location in cluster.locations[2:]:
        cluster.disable(location)
    runs = cluster.shortest_window < 60
    unit, ahead = (10, 45) if runs else (600, 3600)  # seconds
    windows = ((2, 3), (0, 1), (1, 3), (0, 2)) if runs else ((0, 1), (2, 3), (0, 2), (1, 3))
    begin = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=ahead)

    def words(first: int, last: int) -> tuple[str, ...]:
        start = (begin + timedelta(seconds=first * unit)).isoformat()
        return "--size", WHOLE_LOCATION, "--start", start, "--duration", f"{(last - first) * unit}s"

    def made(first: int, last: int) -> int:
        answer = reserve(site, *words(first, last))
        assert answer["state"] == "bound"
        assert isinstance(answer["reservation"], int)
        return answer["reservation"]

    def location_of(id: int) -> str:
        """Return the only location of a reservation, once its manager has chosen it."""
        [location] = site.until(lambda: cluster.locations_of(id))
        assert isinstance(location, str)
        return location

    a, b, c = (made(*window) for window in windows[:3])
    job = site.submit("--reservation", str(b), "-n", WHOLE_LOCATION, "-t", "0:05", "--wrap", "true")
    site.until(lambda: site.row(job)["state"] == "pending")
    native = site.row(job)["native_id"]
    assert location_of(a) == location_of(b) != location_of(c)
    x = made(*windows[3])
    site.until(lambda: len(cluster.natives_of(b)) == 1)
    assert location_of(x) == location_of(a) != location_of(b) == location_of(c)
    assert [cluster.reservation_of_job(native)] == cluster.natives_of(b)
    site.until(lambda: {site.reservation(id)["state"] for id in (a, b, c, x)} == {"bound"})
    assert "not free" in site.error("reserve", *words(*windows[3]), code=3)
    if runs:
        [row] = site.until_ended(job)
        assert (row["state"], row["native_id"]) == ("completed", native)
        late = datetime.fromisoformat(row["started"]) - begin
        assert timedelta() <= late <= timedelta(seconds=unit)
    elif not cluster.capabilities.reserves_named_nodes:  # now B has to move back
        for id in (a, c, x):
            site.run("reservation", "cancel", str(id))
        site.until(lambda: len(cluster.reservations()) == 1)
        was = location_of(b)
        for window in (windows[2], windows[0], windows[3]):
            made(*window)
        location_after_move(cluster, site, b, was)
        assert [cluster.reservation_of_job(native)] == cluster.natives_of(b)
    end_in_order(site)


@pytest.mark.slow("Slurm's shortest window is a minute")
@pytest.mark.parametrize(
    "reservable",
    ["slurm-nodes", pytest.param("slurm-processors", marks=IN_MATRIX), "gridengine", "local"],
    indirect=True,
)
def test_at_the_end_of_its_window_a_job_is_ended_or_may_run_on_as_was_asked(
    cluster: ReservableCluster, site: Site
) -> None:
    """Slurm alone would end the job up to 30 s late, which would delay the next window."""
    site.configure(cluster.table(site.folder), '[reservations]\nlet_run = "2m"\n')
    site.start()
    start = datetime.now(UTC) + timedelta(seconds=8)
    end = start + timedelta(seconds=cluster.shortest_window)

    window = ("--start", start.isoformat(), "--duration", f"{cluster.shortest_window}s")
    kills = reserve(site, "--size", WHOLE_LOCATION, *window, "--let-run", "0")
    lets = reserve(site, "--size", WHOLE_LOCATION, *window)
    assert (kills["let_run"], lets["let_run"]) == (0, 120)
    jobs = []
    for reservation, work in (
        (kills, "sleep 600"),
        (lets, f"while [ ! -e {site.folder}/over ]; do sleep 0.2; done"),
    ):
        within = ("--reservation", str(reservation["reservation"]), "-n", WHOLE_LOCATION)
        site.submit(*within, "--wrap", f"sleep {cluster.shortest_window * 0.4}")
        # the job starts late, and its time limit is the length of the window
        jobs.append(site.submit(*within, "--wrap", f"{work} && : > done$METASCHED_JOB_ID"))
    waits = site.submit(
        "--reservation", str(lets["reservation"]), "-n", WHOLE_LOCATION, "--wrap", "true"
    )
    site.until(lambda: [row["state"] for row in site.rows(*jobs)] == ["running"] * 2)
    [killed] = site.until_ended(jobs[0])
    assert killed["state"] == "timeout"
    site.until(lambda: datetime.now(UTC) > end + timedelta(seconds=1))
    (site.folder / "over").touch()
    [let] = site.until_ended(jobs[1])
    assert let["state"] == "completed"
    assert datetime.fromisoformat(killed["started"]) < end < datetime.fromisoformat(let["ended"])
    assert "timeout (its reservation ended)" in site.run("explain", str(jobs[0])).stdout
    assert site.run("story", str(jobs[0])).stdout.count("is over: it is to end") == 1
    assert [path.name for path in site.folder.glob("done*")] == [f"done{let['job']}"]
    for reservation in (kills, lets):
        until_state(site, reservation["reservation"], "ended")
    row = site.row(waits)
    assert (row["state"], row["reason"]) == ("queued", "reservation_wait")
    site.until(lambda: cluster.reservations() == {})
    end_in_order(site)


@pytest.mark.slow("Slurm's shortest window is a minute")
@pytest.mark.parametrize("reservable", ["slurm-processors", "gridengine", "local"], indirect=True)
def test_a_job_whose_window_ends_without_a_daemon_times_out_and_the_next_window_begins(
    cluster: ReservableCluster, reserving_site: Site
) -> None:
    """Grid Engine ends the job and keeps no record; only earlier listings show it."""
    site = reserving_site
    start = datetime.now(UTC) + timedelta(seconds=8)
    length = timedelta(seconds=cluster.shortest_window)
    jobs = []
    for number, work in enumerate(("sleep 600", "true")):
        at = (start + number * length).isoformat()
        window = ("--start", at, "--duration", f"{cluster.shortest_window}s")
        reservation = reserve(site, "--size", str(cluster.cpus), *window)
        within = ("--reservation", str(reservation["reservation"]), "-n", str(cluster.cpus))
        jobs.append(site.submit(*within, "--wrap", work))
    site.until(lambda: site.row(jobs[0])["state"] == "running")
    started = site.row(jobs[0])["started"]
    site.stop(signal.SIGKILL)
    time.sleep(max(0.0, (start + length - datetime.now(UTC)).total_seconds()))
    site.start()
    ended, after = site.until_ended(*jobs)
    assert (ended["state"], ended["started"]) == ("timeout", started)
    assert after["state"] == "completed"
    # the time limit is the length of the window: the manager may end the job just before that
    reasons = ("its reservation ended", "TimeLimit", "over its time limit")
    explained = site.run("explain", str(jobs[0])).stdout
    assert any(f"timeout ({reason})" in explained for reason in reasons)
    site.until(lambda: len(cluster.reservations()) <= 1)
    end_in_order(site)
