"""Reservations of whole Slurm nodes: behaviour specific to them or to metasched's rules."""

from __future__ import annotations

import json
import math
import signal
import subprocess
from datetime import datetime, timedelta

import pytest

from metasched.client.client import Client
from metasched.client.connection import BadRequest
from tests.e2e.conftest import COMMAND, Site, reserve
from tests.e2e.reservable_clusters import SlurmReservations
from tests.harness.daemons import BootError

pytestmark = pytest.mark.parametrize("reservable", ["slurm-nodes"], indirect=True)
_CLASSIC = ((0, 1), (2, 3), (0, 2), (1, 3))  # on two nodes, the last needs a move
LOCAL = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 2\npoll_interval = 0.2\n'


def reserved_nodes(cluster: SlurmReservations) -> list[str]:
    """Return the nodes of all reservations of the cluster."""
    return [
        node for native in cluster.reservations() for node in cluster.locations_of_native(native)
    ]


@pytest.mark.slow("a window begins after 25 s")
def test_licences_of_a_window_are_kept_over_a_crash_and_free_after_it(
    cluster: SlurmReservations, site: Site
) -> None:
    site.configure('[[licence]]\nname = "matlab"\ntotal = 2\n' + cluster.table(site.folder))
    site.start()
    hour = ("--size", "1", "--start", "+25s", "--duration", "1h")
    message = site.error("reserve", *hour, "--licence", "matlap:1", code=3)
    assert message == "no licence 'matlap' is known; did you mean matlab?"
    assert "ask for at most 2" in site.error("reserve", *hour, "-L", "matlab:3", code=3)
    reservation = reserve(site, *hour, "--licence", "matlab:2")
    assert reservation["licences"] == {"matlab": 2}
    id = str(reservation["reservation"])
    again = site.error("reserve", *hour, "--licence", "matlab:1", code=3)
    assert f"reservation {id} has 2 of matlab from" in again

    without = site.submit("-L", "matlab", "-t", "2:00:00", "--wrap", "true")
    inside = site.submit("-L", "matlab:2", "--reservation", id, "--wrap", "true")
    site.until(lambda: site.row(without)["reason"] == "licence_busy")
    assert f"reserved for reservation {id}" in site.run("explain", str(without)).stdout
    site.stop(signal.SIGKILL)
    site.start()
    [row] = site.until_ended(inside)
    assert row["state"] == "completed"
    start = datetime.fromisoformat(reservation["start"])
    assert datetime.fromisoformat(row["started"]) >= start
    [licence] = site.json("licences")
    assert (licence["reserved"], licence["free"], licence["ours"]) == (2, 0, 0)
    assert [window["reservation"] for window in licence["windows"]] == [reservation["reservation"]]
    assert site.row(without)["reason"] == "licence_busy"
    site.run("reservation", "cancel", id)
    [row] = site.until_ended(without)
    assert row["state"] == "completed"
    assert site.json("licences")[0]["windows"] == []
    assert site.stop() == 0
    site.replayed()
    assert "fail" not in site.run("db", "check").stdout


def lasts_where_the_clock_is_changed(site: Site) -> timedelta:
    """Return the length of an offer from 01:30 to 03:30 on the day summer time starts."""
    day = datetime.now() + timedelta(days=2)
    changes = (day.timetuple().tm_yday - 1, (day + timedelta(days=9)).timetuple().tm_yday - 1)
    zone = "CET-1CEST,{}/2,{}/3".format(*changes)
    window = ("--start", f"{day:%Y-%m-%d}T01:30", "--end", f"{day:%Y-%m-%d}T03:30")
    arguments = ("reserve", "--size", "4", *window, "--dry-run", "--json")
    [offer] = json.loads(site.run(*arguments, env={"TZ": zone}).stdout)["offers"]
    start, end = (datetime.fromisoformat(offer[side]) for side in ("start", "end"))
    return end - start


def test_what_cannot_be_reserved_or_run_there_is_one_line_and_changes_nothing(
    reserving_site: Site, cluster: SlurmReservations
) -> None:
    site = reserving_site
    for arguments, message, code in (
        (("--start", "2020-01-01T08:00", "--duration", "1h"), "has passed", 2),
        (("--start", "+400d", "--duration", "1h"), "beyond the horizon", 3),
        (("--start", "+1h", "--duration", "59s"), "a job there takes at least 60 s", 3),
        (("--start", "+1h", "--duration", "31d"), "is more than the 2592000 s", 3),
        (("--ready", "+2h", "--deadline", "+1h", "--duration", "1h"), "is not after the start", 2),
        (("--deadline", "+1h", "--duration", "2h"), "do not fit between", 2),
        (("--duration", "1h", "--cluster", "nowhere"), "there is no cluster nowhere", 5),
    ):
        assert message in site.error("reserve", "--size", "4", *arguments, code=code)
    assert "no reservation 99" in site.error("reservation", "cancel", "99", code=5)
    request = {"least": 1, "most": 1, "shortest": 60, "longest": 60, "ready": math.nan}
    with pytest.raises(BadRequest, match="ready is out of range"):
        Client(site.folder / "ms.sock").reserve(request)
    hour = ("--start", "+1h", "--duration", "1h")
    message = site.error("reserve", "--size", "13", *hour, code=3)
    assert message == "no cluster has 13 processors, the largest is gamma with 12; ask for fewer"
    trial = site.json("reserve", "--size", "2", "--nodes", *hour, "--dry-run")
    assert [(o["cluster"], o["nodes"]) for o in trial["offers"]] == [("gamma", 2)]
    assert site.json("reservations") == []

    assert lasts_where_the_clock_is_changed(site) == timedelta(hours=1)

    reservation = reserve(site, "--size", "2", "--nodes", *hour)
    site.run("reservations", "--plot", "chart.png")
    assert (site.folder / "chart.png").read_bytes().startswith(b"\x89PNG")
    message = site.error("reservations", "--plot", "chart.xyz", code=2)
    assert "has no supported suffix, --plot" in message
    message = site.error("reserve", "--size", "2", "--nodes", *hour, code=3)
    assert message.startswith("that is not free; gamma has 2 nodes from ")
    id = str(reservation["reservation"])
    job = ("submit", "--reservation", id, "--wrap", "true")
    message = site.error(*job, "-t", "2:00:00", code=3)
    assert f"the job may run for 7200 s, reservation {id} lasts 3600 s" in message
    assert f"reservation {id} has 8 on 2" in site.error(*job, "-n", "9", code=3)
    assert f"reservation {id} ends at" in site.error(*job, "--begin", "+3h", code=3)
    message = site.error(*job, "--begin", "+90m", "-t", "45", code=3)
    assert f"may run for 2700 s, reservation {id} lasts" in message
    message = site.error("submit", "--reservation", "99", "--wrap", "true", code=5)
    assert "no reservation 99" in message

    message = site.error("reserve", "--size", "1", *hour, "--let-run", "1m", code=3)
    assert "may go on for 0 s after its end, not for 60 s" in message
    waits = site.submit("--reservation", id, "--wrap", "true")
    for change, message in (
        (("--time", "61"), f"the job may run for 3660 s, reservation {id} lasts 3600 s"),
        (("--time", "none"), "where it needs a time limit"),
        (("--cluster", "none"), f"reservation {id}, which is on gamma"),
        (("--begin", "+3h"), f"reservation {id} ends at"),
    ):
        assert message in site.error("modify", str(waits), *change, code=3)
    site.until(lambda: site.row(waits)["state"] == "pending")
    site.run("reservation", "cancel", id)
    site.until(lambda: site.row(waits)["reason"] == "reservation_wait")
    site.until(lambda: reserved_nodes(cluster) == [])
    assert f"gamma: reservation {id} is " in site.run("explain", str(waits)).stdout
    message = site.error("submit", "--reservation", id, "--wrap", "true", code=3)
    assert f"reservation {id} is cancelled: cancelled by" in message

    start = datetime.fromtimestamp(datetime.now().timestamp() // 60 * 60 + 7200).isoformat()
    command = [
        str(COMMAND),
        "reserve",
        "--size",
        "4",
        "--start",
        start,
        "--duration",
        "10m",
        "--json",
    ]
    racing = [
        subprocess.Popen(
            command, env=site.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(5)
    ]
    for process in racing:
        process.communicate(timeout=120)
    assert sorted(process.returncode for process in racing) == [0, 0, 0, 3, 3]
    assert sorted(reserved_nodes(cluster)) == ["g1", "g2", "g3"]
    assert site.stop() == 0
    site.replayed()


def test_a_static_partition_keeps_batch_jobs_and_reservations_apart(
    cluster: SlurmReservations, site: Site
) -> None:
    site.configure(LOCAL + cluster.table(site.folder, 'takes = "reservations"\n'))
    site.start()
    message = site.error("submit", "-n", "3", "--wrap", "true", code=3)
    assert "gamma: only jobs in a reservation may use the cluster" in message
    assert site.until_ended(site.submit("--wrap", "true"))[0]["cluster"] == "left"
    id = reserve(site, "--size", "4", "--duration", "5m")["reservation"]
    inside = site.submit("--reservation", str(id), "-n", "3", "--wrap", "true")
    [row] = site.until_ended(inside)
    assert (row["cluster"], row["state"]) == ("gamma", "completed")
    site.run("reservation", "cancel", str(id))
    site.until(lambda: reserved_nodes(cluster) == [])
    assert site.stop() == 0
    site.replayed()

    site.configure(LOCAL + cluster.table(site.folder, 'takes = "jobs"\n'))
    site.start()
    message = site.error("reserve", "--size", "4", "--start", "+1h", "--duration", "5m", code=3)
    reserved_text = "gamma: the site keeps it for jobs without a reservation"
    assert f"no cluster has 4 processors, the largest is left with 2 ({reserved_text})" in message
    assert site.until_ended(site.submit("-n", "3", "--wrap", "true"))[0]["cluster"] == "gamma"


def test_slurm_itself_refuses_the_last_of_four_windows_that_fit(
    cluster: SlurmReservations,
) -> None:
    """A[0,1) B[2,3) C[0,2) X[1,3) on two nodes; metasched moves B (test_reservations.py)."""
    cluster.disable("g3")
    hour = datetime.fromtimestamp(datetime.now().timestamp() // 60 * 60 + 3600)
    for number, (first, last) in enumerate(_CLASSIC):
        arguments = (
            *("scontrol", "create", "reservation", f"ReservationName=static{number}", "NodeCnt=1"),
            *("Users=root", f"StartTime={(hour + timedelta(minutes=10 * first)).isoformat()}"),
            f"Duration={10 * (last - first)}",
        )
        if number < 3:
            cluster.slurm.run(*arguments)
        else:
            with pytest.raises(BootError, match="Requested nodes are busy"):
                cluster.slurm.run(*arguments)


@pytest.fixture
def late_gamma(cluster: SlurmReservations, site: Site) -> Site:
    """A running site that dispatches late and chooses nodes ten seconds before the window."""
    (site.folder / "policy.toml").write_text('send = "late"\n')
    late = 'exclusive = true\nbinding = "late"\nlead = 10\n'
    site.configure(cluster.table(site.folder, late), '[policy]\nfile = "policy.toml"\n')
    site.start()
    return site


@pytest.mark.slow("a window begins after 30 s")
def test_late_binding_keeps_nodes_free_by_what_is_sent_and_chooses_them_last(
    late_gamma: Site, cluster: SlurmReservations
) -> None:
    site = late_gamma
    reservation = reserve(site, "--size", "2", "--nodes", "--start", "+30s", "--duration", "10m")
    assert (reservation["state"], reservation["nodes"]) == ("confirmed", [])
    whole = ("-n", "1", "--cpus-per-task", "4", "-t", "5", "--wrap", "sleep 300")
    first, second = site.submit(*whole), site.submit(*whole)
    inside = site.submit(
        "--reservation", str(reservation["reservation"]), "-n", "8", "--wrap", "sleep 1"
    )
    site.until(lambda: site.row(first)["state"] == "running")
    assert site.row(second)["reason"] == "reservation_near"
    site.until(lambda: site.row(inside)["reason"] == "reservation_wait")
    assert reserved_nodes(cluster) == []
    explanation = site.run("explain", str(second)).stdout
    assert "it would still run when a reservation begins" in explanation
    [row] = site.until_ended(inside)
    assert row["state"] == "completed"
    bound = site.reservation(reservation["reservation"])
    [busy_node] = cluster.slurm.run("squeue", "-h", "-o", "%N").split()
    assert bound["nodes"] == [node for node in cluster.locations if node != busy_node]
    late = datetime.fromisoformat(row["started"]) - datetime.fromisoformat(reservation["start"])
    assert late.total_seconds() >= 0
    assert site.row(second)["started"] is None
    site.run("reservation", "cancel", str(reservation["reservation"]))
    site.until(lambda: site.row(second)["state"] == "running")
    assert site.stop() == 0
    site.replayed()
    assert "wrong" not in site.run("db", "check").stdout


@pytest.mark.slow("a window begins after 20 s")
def test_the_owner_of_a_broken_reservation_is_notified_of_cause_and_free_windows(
    reserving_site: Site, cluster: SlurmReservations
) -> None:
    site = reserving_site
    site.stop()
    program, mail = site.folder / "mail", site.folder / "told"
    program.write_text(
        f'#!/bin/sh\nprintf "%s|" "$@" >{mail}.new\ncat >>{mail}.new\nmv {mail}.new {mail}\n'
    )
    program.chmod(0o755)
    site.config.write_text(
        site.config.read_text().replace(
            "[daemon]",
            f'[mail]\ndomains = ["example.org"]\n[daemon]\nmail_program = "{program}"',
        )
    )
    site.start()
    window = ("--nodes", "--size", "3", "--duration", "1m")
    reservation = reserve(site, *window, "--start", "+20s", "--mail", "ada@example.org")
    assert reservation["mail"] == "ada@example.org"
    cluster.disable("g2")
    site.until(
        lambda: "no other node is free" in site.reservation(reservation["reservation"])["cause"]
    )
    assert not mail.exists()
    site.until(mail.exists)
    text = mail.read_text()
    id = reservation["reservation"]
    assert text.startswith(f"-s|metasched: reservation {id} is broken|ada@example.org|")
    assert f"Your reservation {id} on gamma cannot be kept.\n" in text
    assert "Cause: g2 cannot be used, and no other node is free\n" in text
    row = site.reservation(id)
    assert row["state"] == "broken"
    assert site.stop() == 0
    site.replayed()
