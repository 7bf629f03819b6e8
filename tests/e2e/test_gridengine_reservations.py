"""Reservations in a real Grid Engine cell: moves, time limits, licences and memory."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.e2e.conftest import Site, reserve
from tests.e2e.reservable_clusters import GridEngineReservations
from tests.harness.daemons import wait_until
from tests.harness.gridengine import MEMORY, TOKENS, Cell

pytestmark = pytest.mark.parametrize("reservable", ["gridengine"], indirect=True)
IN_AN_HOUR = ("--start", "+1h", "--duration", "5m")
SOON = ("reserve", "--duration", "2m", "--deadline", "+4m", "--size")
MEMORY_COUNTED = f'memory = "{MEMORY}"\n'

PROGRAMS = (
    "qstat",
    "qhost",
    "qconf",
    "qalter",
    "qrsub",
    "qrdel",
    "qrstat",
    "qdel",
    "qhold",
    "qrls",
)
CHANGES = ("qalter", "qrsub", "qrdel")


def lethal_programs(folder: Path) -> Path:
    """Create a `bin_dir` whose programs can kill the worker and the daemon before a change.

    The file `left` has the number of that change, from 0; without the file nothing is killed.
    """
    folder.mkdir()
    kills = (
        f'if [ -e "{folder}/left" ]; then\n'
        f'  left=$(cat "{folder}/left"); echo $((left - 1)) >"{folder}/left"\n'
        f'  [ "$left" = 0 ] && rm "{folder}/left" && kill -KILL $(cat "{folder}/daemon") $PPID\n'
        "fi\n"
    )
    for name in PROGRAMS:
        program = folder / name
        extra = kills if name in CHANGES else ""
        program.write_text(f'#!/bin/sh\n{extra}exec /usr/bin/{name} "$@"\n')
        program.chmod(0o755)
    return folder


@pytest.mark.slow("starts a daemon three times; four windows are reserved and one is moved")
@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize(("step", "kept_of_moved"), [(1, 1), (2, 2), (3, 2), (4, 1)])
def test_a_move_that_was_interrupted_by_a_crash_is_completed(
    cluster: GridEngineReservations,
    reserving_site: Site,
    tmp_path: Path,
    step: int,
    kept_of_moved: int,
) -> None:
    """Steps: refusal, replacement granted, jobs moved to it, old reservation deleted, grant."""
    site = reserving_site
    site.stop()
    programs = lethal_programs(tmp_path / "programs")
    site.config.write_text(site.config.read_text() + f'bin_dir = "{programs}"\n')
    site.start()
    begin = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)

    def window(first: int, last: int) -> tuple[str, ...]:
        start = (begin + timedelta(minutes=10 * first)).isoformat()
        return "--size", "4", "--start", start, "--duration", f"{10 * (last - first)}m"

    a, b, c = (
        reserve(site, *window(*minutes))["reservation"] for minutes in ((0, 1), (2, 3), (0, 2))
    )
    job = site.submit("--reservation", str(b), "-n", "4", "-t", "1", "--wrap", "true")
    site.until(lambda: site.row(job)["state"] == "pending")
    (programs / "daemon").write_text(str(site.pid))
    (programs / "left").write_text(str(step))
    assert site.error("reserve", *window(1, 3), code=1).startswith("no answer")
    site.stop(signal.SIGKILL)
    assert not (programs / "left").exists()
    assert [len(cluster.natives_of(id)) for id in (a, b, c)] == [1, kept_of_moved, 1]
    assert len(cluster.reservations()) == 2 + kept_of_moved

    site.start()
    site.until(
        lambda: (
            [len(cluster.natives_of(id)) for id in (a, b, c, c + 1)] == [1] * 4
            and {site.reservation(id)["state"] for id in (a, b, c, c + 1)} == {"bound"}
        )
    )
    native = site.row(job)["native_id"]
    assert [cluster.reservation_of_job(native)] == cluster.natives_of(b)
    assert site.row(job)["state"] == "pending"
    site.run("cancel", str(job))
    site.until_ended(job)
    for id in (a, b, c, c + 1):
        site.run("reservation", "cancel", str(id))
    site.until(lambda: cluster.reservations() == {})
    assert site.stop() == 0
    site.replayed()


@contextmanager
def without_cell(site: Site) -> Iterator[None]:
    """Run the daemon without the cell for the `with` block."""
    site.stop()
    whole = site.config.read_text()
    site.configure()
    site.start()
    yield
    site.stop()
    site.config.write_text(whole)
    site.start()


@pytest.mark.slow("starts a daemon three times, with and without its cell")
def test_a_reservation_outlives_a_configuration_without_its_cell(
    cluster: GridEngineReservations, reserving_site: Site
) -> None:
    site = reserving_site
    reservation = reserve(site, "--size", "3", *IN_AN_HOUR)
    id, [native] = reservation["reservation"], cluster.reservations()
    inside = site.submit("--reservation", str(id), "-n", "3", "-t", "1", "--wrap", "true")
    site.until(lambda: site.row(inside)["state"] == "pending")
    with without_cell(site):
        assert site.reservation(id)["cause"] == "cluster cell is not configured"
        message = f"reservation {id}: cluster cell is not configured"
        assert message in site.run("explain", str(inside)).stdout
    site.until(lambda: site.row(inside)["state"] == "pending")
    assert site.reservation(id)["cause"] == "cluster cell is configured again"
    assert site.reservation(id)["state"] == "bound"
    assert [*cluster.reservations()] == [native]
    site.run("cancel", str(inside))
    site.until_ended(inside)
    site.run("reservation", "cancel", str(id))
    site.until(lambda: cluster.reservations() == {})
    assert site.stop() == 0
    site.replayed()


@pytest.mark.slow("starts a daemon three times, with and without its cell")
def test_a_reservation_cancelled_without_its_cell_is_deleted_once_the_cell_is_back(
    cluster: GridEngineReservations, reserving_site: Site
) -> None:
    """A reservation is deleted only after its pending jobs were recalled."""
    site = reserving_site
    reservation = reserve(site, "--size", "3", *IN_AN_HOUR)
    id = reservation["reservation"]
    inside = site.submit("--reservation", str(id), "-t", "1", "--wrap", "true")
    site.until(lambda: site.row(inside)["state"] == "pending")
    with without_cell(site):
        site.run("reservation", "cancel", str(id))
    site.until(lambda: cluster.reservations() == {})
    site.until(lambda: site.row(inside)["state"] == "queued")
    assert site.row(inside)["reason"] == "reservation_wait"
    site.run("cancel", str(inside))
    assert site.stop() == 0
    site.replayed()


@pytest.mark.slow("a window begins after 15 s, and five jobs run in it")
def test_a_job_sent_after_the_window_began_gets_the_remaining_time_as_its_limit(
    cluster: GridEngineReservations, reserving_site: Site
) -> None:
    """Grid Engine rejects a job whose time limit ends after its reservation."""
    site = reserving_site
    reservation = reserve(site, "--size", "2", "--start", "+15s", "--duration", "1m")
    within = ("--reservation", str(reservation["reservation"]))
    first = site.submit(*within, "--wrap", "sleep 2")
    after = ("--dependency", f"afterok:{first}")
    jobs = [
        site.submit(*within, *after, "--wrap", "true"),
        site.submit(*within, *after, "-t", "1:00", "--wrap", "true"),
        site.submit(*within, "--array", "0-1%1", "--wrap", "sleep 2"),
    ]
    rows = site.until_ended(first, *jobs)
    assert {row["state"] for row in rows} == {"completed"}
    assert len(rows) == 5
    site.run("reservation", "cancel", str(reservation["reservation"]))
    site.until(lambda: cluster.reservations() == {})
    assert site.stop() == 0
    site.replayed()


@pytest.mark.slow("starts a daemon twice; a job waits until it is pulled")
def test_a_job_that_waits_in_a_reservation_keeps_no_other_from_being_pulled(
    cluster: GridEngineReservations, reserving_site: Site
) -> None:
    """A pull leaves room for the head of the queue; a job in a reservation is not the head."""
    site = reserving_site
    site.stop()
    local = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 1\npoll_interval = 0.2\n'
    site.config.write_text(site.config.read_text() + local)
    site.start()
    reservation = reserve(site, "--size", "8", *IN_AN_HOUR)
    id = reservation["reservation"]
    inside = site.submit("--reservation", str(id), "-n", "8", "-t", "5", "--wrap", "true")
    site.until(lambda: site.row(inside)["state"] == "pending")
    site.run("cluster", "drain", "cell", "--keep-pending")
    holds = site.submit("-t", "10", "--wrap", "sleep 600")
    site.until(lambda: site.row(holds)["state"] == "running")
    waits = site.submit("-t", "1", "--wrap", "true")
    site.until(lambda: site.row(waits)["state"] == "pending")
    assert site.row(waits)["cluster"] == "left"
    site.run("cluster", "resume", "cell")
    [row] = site.until_ended(waits)
    assert (row["state"], row["cluster"]) == ("completed", "cell")
    [row] = [row for row in site.cluster_rows() if row["cluster"] == "cell"]
    assert row["state"] == "up"
    site.run("cancel", str(inside), str(holds))
    site.until_ended(inside, holds)
    site.run("reservation", "cancel", str(id))
    site.until(lambda: cluster.reservations() == {})
    assert site.stop() == 0
    site.replayed()


@pytest.mark.slow("six jobs run or are refused in a window that has to begin")
def test_the_cell_keeps_licences_that_it_counts_for_the_window(
    cluster: GridEngineReservations, site: Site
) -> None:
    licences = '[[licence]]\nname = "mat"\ntotal = 3\n[[licence]]\nname = "nx"\ntotal = 3\n'
    names = "[cluster.map.licence]\nmat = 'matlab'\n"
    site.configure(licences + cluster.table(site.folder, names))
    site.start()
    window = ("reserve", "--size", "3", "--duration", "2m", "--deadline", "+130s")
    bare = site.json(*window[:2], "1", *window[3:])["reservation"]
    reservation = site.json(*window, "-L", "mat:2,nx")
    [id] = cluster.natives_of(reservation["reservation"])
    shown = cluster.cell.run("qrstat", "-ar", id)
    assert re.search(r"resource_list +matlab=2\n", shown)
    assert "mat:2 cannot be kept for it" in site.error(*window, "-L", "mat:2", code=3)
    site.until(lambda: site.reservation(reservation["reservation"])["state"] == "active")
    command = ("-b", "y", "-o", "/dev/null", "-j", "y", "true")
    cluster.cell.run("qsub", "-N", "outside", "-l", "matlab=2,h_rt=30", *command)
    work = ("-t", "1", "--wrap", "sleep 1")
    inside = [
        site.submit("--reservation", str(reservation["reservation"]), *arguments, *work)
        for arguments in (("-L", "mat"), ("-L", "mat:2,nx"), ("-n", "2", "-L", "mat"))
    ]
    barred = site.submit("--reservation", str(bare), "-L", "mat", *work)
    assert {row["state"] for row in site.until_ended(*inside)} == {"completed"}
    site.until(lambda: site.rows(barred)[0]["state"] == "rejected")
    shown = site.run("story", str(barred)).stdout
    assert "1 matlab requested, but its reservation has 0" in shown
    assert "outside" in cluster.cell.run("qstat", "-u", "*", "-s", "p")
    site.run("reservation", "cancel", str(reservation["reservation"]))
    site.until(lambda: "outside" not in cluster.cell.run("qstat", "-u", "*"))
    assert site.stop() == 0
    site.replayed()


@pytest.mark.slow("five jobs run or are refused in a window that has to begin")
def test_each_reserved_slot_has_its_share_of_the_memory(
    cluster: GridEngineReservations, site: Site
) -> None:
    site.configure(cluster.table(site.folder, MEMORY_COUNTED))
    site.start()
    # a job takes 40 of 64 GiB for 8 slots; the remaining memory is enough for 3 slots
    start_outside(cluster.cell, "-l", f"{MEMORY}=40G,h_rt=300")
    assert "cell has 3 processors from " in site.error(*SOON, "4", code=3)
    reservation = site.json(*SOON, "3")
    assert reservation["state"] in ("bound", "active")
    shown = cluster.cell.run("qrstat", "-ar", next(iter(cluster.reservations())))
    assert re.search(rf"resource_list +{MEMORY}=8192M\n", shown)
    id = str(reservation["reservation"])
    site.until(lambda: site.reservation(reservation["reservation"])["state"] == "active")
    outside = site.submit("--mem", "1G", "-t", "1", "--wrap", "true")
    barred = site.submit("--reservation", id, "--mem", "25G", "-t", "1", "--wrap", "true")
    jobs = [
        site.submit("--reservation", id, *arguments, "-t", "1", "--wrap", "true")
        for arguments in (("--mem", "24G"), ("-n", "3", "--mem-per-cpu", "8G"), ())
    ]
    assert {row["state"] for row in site.until_ended(*jobs)} == {"completed"}
    site.until(lambda: site.rows(barred)[0]["state"] == "rejected")
    shown = site.run("story", str(barred)).stdout
    assert "25600 MiB requested, but its reservation has 24576 MiB" in shown
    [row] = site.rows(outside)
    assert row["started"] is None
    site.run("reservation", "cancel", id)
    assert site.until_ended(outside)[0]["state"] == "completed"


@pytest.fixture
def default_memory(cluster: GridEngineReservations) -> Iterator[None]:
    """A job without a memory request gets 1 GiB; the host has 4 GiB for its 8 slots."""
    whole = cluster.cell.run("qconf", "-sc")
    host = re.sub(r"\\\n\s*", "", cluster.cell.run("qconf", "-se", cluster.cell.host))
    [values] = re.findall(r"(?m)^complex_values +(\S+)", host)
    cluster.cell.load("-Mc", re.sub(rf"(?m)^({MEMORY} .*YES +)0( +0)", r"\g<1>1G\2", whole))
    few = re.sub(rf"{MEMORY}=[^,]+", f"{MEMORY}=4G", values)
    cluster.cell.run("qconf", "-rattr", "exechost", "complex_values", few, cluster.cell.host)
    yield
    cluster.tidy()
    cluster.cell.run("qconf", "-rattr", "exechost", "complex_values", values, cluster.cell.host)
    cluster.cell.load("-Mc", whole)


@pytest.mark.slow("jobs run and are cancelled one by one in a window that has to begin")
@pytest.mark.usefixtures("default_memory")
def test_jobs_without_a_memory_request_get_the_default_in_a_reservation(
    cluster: GridEngineReservations, site: Site
) -> None:
    site.configure(cluster.table(site.folder, MEMORY_COUNTED))
    site.start()
    assert "cell has 4 processors from " in site.error(*SOON, "8", code=3)
    account = cluster.cell.run("id", "-un").strip()
    other = ("-N", "others", "-u", account, "-pe", "smp", "2", "-d", "600")
    cluster.cell.run("qrsub", *other)  # the qmaster applies the default memory to it
    assert "cell has 2 processors from " in site.error(*SOON, "4", code=3)
    reservation = site.json(*SOON, "2")
    site.until(lambda: site.reservation(reservation["reservation"])["state"] == "active")
    within = ("--reservation", str(reservation["reservation"]), "-t", "1")
    jobs = [site.submit(*within, "--wrap", "sleep 600") for _ in range(2)]
    site.until(lambda: {row["state"] for row in site.rows(*jobs)} == {"running"})
    site.run("cancel", *map(str, jobs))
    site.until_ended(*jobs)
    whole = site.submit(*within, "-n", "2", "--wrap", "true")
    assert site.until_ended(whole)[0]["state"] == "completed"


@pytest.fixture
def uncounted(cluster: GridEngineReservations) -> Iterator[None]:
    """h_vmem is a consumable for which the host has no value."""
    whole = cluster.cell.run("qconf", "-sc")
    cluster.cell.load("-Mc", re.sub(r"(?m)^(h_vmem .*<= +YES +)NO ", r"\1YES ", whole))
    yield
    cluster.tidy()
    cluster.cell.run("qconf", "-rattr", "queue", "h_vmem", "INFINITY", "all.q")
    cluster.cell.load("-Mc", whole)


@pytest.mark.parametrize(("limit", "memory"), [("INFINITY", "6G"), ("4G", "4G")])
@pytest.mark.usefixtures("uncounted")
def test_a_reservation_has_the_memory_of_its_queue_if_no_host_counts_it(
    cluster: GridEngineReservations, site: Site, limit: str, memory: str
) -> None:
    cluster.cell.run("qconf", "-rattr", "queue", "h_vmem", limit, "all.q")
    site.configure(cluster.table(site.folder, 'memory = "h_vmem"\n'))
    site.start()
    reservation = reserve(site, "--size", "2", "--duration", "2m", "--deadline", "+4m")
    within = ("--reservation", str(reservation["reservation"]), "-t", "1", "--wrap", "true")
    jobs = [site.submit("--mem", memory, *within), site.submit("-n", "2", *within)]
    assert {row["state"] for row in site.until_ended(*jobs)} == {"completed"}


@pytest.mark.usefixtures("divided")
def test_a_reservation_keeps_its_memory_when_its_queue_is_disabled(
    cluster: GridEngineReservations, site: Site
) -> None:
    site.configure(cluster.table(site.folder, MEMORY_COUNTED))
    site.start()
    reservation = reserve(site, "--size", "4", *IN_AN_HOUR)
    id, [native] = reservation["reservation"], cluster.reservations()
    [queue] = cluster.locations_of(id)
    cluster.disable(queue)
    site.until(lambda: native not in cluster.reservations())
    assert cluster.locations_of(id) not in ([], [queue])
    [other] = cluster.natives_of(id)
    assert re.search(rf"resource_list +{MEMORY}=8192M\n", cluster.cell.run("qrstat", "-ar", other))
    site.run("reservation", "cancel", str(id))
    site.until(lambda: cluster.reservations() == {})


@pytest.fixture
def offset_of_a_minute(cluster: GridEngineReservations) -> Iterator[None]:
    """The qmaster adds its default of a minute to each job's limit, not the harness's second."""
    quick = cluster.cell.run("qconf", "-ssconf")
    cluster.cell.load("-Msconf", re.sub(r"(?m)^params .*$", "params none", quick))
    yield
    cluster.cell.load("-Msconf", quick)


@pytest.mark.usefixtures("offset_of_a_minute")
def test_a_running_job_keeps_its_slots_as_long_beyond_its_limit_as_the_qmaster_counts(
    cluster: GridEngineReservations, site: Site
) -> None:
    site.configure(cluster.table(site.folder))
    site.start()
    begun = start_outside(cluster.cell, "-pe", "smp", "5", "-l", "h_rt=100")
    start_outside(cluster.cell, "-pe", "smp", "3")  # the queue would end it after a day
    shown = site.error("reserve", "--size", "6", "--duration", "1m", "--deadline", "+9h", code=3)
    assert "cell has 5 processors from " in shown
    reservation = reserve(site, "--size", "5", "--duration", "1m")
    assert (reservation["state"], reservation["cluster"]) == ("bound", "cell")
    assert datetime.fromisoformat(reservation["start"]) - begun == timedelta(seconds=160)
    assert len(cluster.reservations()) == 1


@pytest.mark.usefixtures("offset_of_a_minute")
def test_licences_are_promised_from_the_time_at_which_the_qmaster_frees_them(
    cluster: GridEngineReservations, site: Site
) -> None:
    licence = f'[[licence]]\nname = "matlab"\ntotal = {TOKENS}\n'
    site.configure(licence + cluster.table(site.folder))
    site.start()
    job = site.submit("-L", f"matlab:{TOKENS}", "-t", "2", "--wrap", "sleep 100")
    site.until(lambda: site.rows(job)[0]["state"] == "running")
    begun = datetime.fromisoformat(site.rows(job)[0]["started"])
    reservation = reserve(site, "--size", "1", "--duration", "1m", "-L", "matlab:2")
    assert (reservation["state"], reservation["cluster"]) == ("bound", "cell")
    waits = datetime.fromisoformat(reservation["start"]) - begun
    assert timedelta(seconds=180) <= waits <= timedelta(seconds=190)
    assert len(cluster.reservations()) == 1


def start_outside(cell: Cell, *arguments: str) -> datetime:
    """Start a job outside metasched; return its start time."""
    before = starts(cell)
    cell.run("qsub", *arguments, "-b", "y", "-o", "/dev/null", "-j", "y", "sleep", "300")
    wait_until(lambda: starts(cell).keys() > before.keys(), 20, "its start", str)
    after = starts(cell)
    [id] = after.keys() - before.keys()
    return after[id]


def starts(cell: Cell) -> dict[str, datetime]:
    """Return the start time of each running job of the cell."""
    listing = cell.run("env", "TZ=UTC", "qstat", "-xml", "-u", "*")
    pairs = re.findall(r"<JB_job_number>(\d+)<.*?<JAT_start_time>([^<]+)<", listing, re.DOTALL)
    return {id: datetime.fromisoformat(f"{start}+00:00") for id, start in pairs}
