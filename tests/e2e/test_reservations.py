"""Advance reservations on real Slurm clusters, through the command line."""

from __future__ import annotations

import contextlib
import json
import math
import re
import signal
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from metasched.client.client import BadRequest, Client
from tests.booted import BootError
from tests.conftest import require
from tests.e2e.conftest import COMMAND, Site
from tests.slurm import ClusterSpec, SlurmCluster, SlurmSite, missing

_CLASSIC = ((0, 1), (2, 3), (0, 2), (1, 3))  # windows that no static choice of two nodes survives
GAMMA = ClusterSpec("gamma", "g", nodes=3, cpus=4)


@pytest.fixture(scope="module")
def gamma_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    """A cluster of its own: its nodes are drained and its controller is killed."""
    if (reason := missing()) is not None:
        require("slurm", reason)
    with SlurmSite(tmp_path_factory.mktemp("gamma"), [GAMMA]) as made:
        yield made


@pytest.fixture
def gamma(gamma_site: SlurmSite) -> Iterator[SlurmCluster]:
    """The cluster, empty and with all its nodes; what a test did to it is undone."""
    cluster = gamma_site["gamma"]
    yield cluster
    cluster.empty()
    for name in re.findall(r"ReservationName=(\S+)", shown(cluster)):
        with contextlib.suppress(BootError):  # it has just ended
            cluster.run("scontrol", "delete", f"ReservationName={name}")
    for node in cluster.nodes:
        if "drain" in cluster.run("sinfo", "-h", "-n", node, "-o", "%T"):
            cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    cluster.wait_ready()


@pytest.fixture
def over_gamma(gamma: SlurmCluster, site: Site) -> Site:
    # in this order: the daemon ends before its cluster is put in order
    site.configure(
        f'[[cluster]]\nname = "gamma"\nadapter = "slurm"\nconfig = "{gamma.conf}"\n'
        "poll_interval = 1\n"
    )
    site.start()
    return site


@pytest.fixture
def late_gamma(gamma: SlurmCluster, site: Site) -> Site:
    (site.folder / "policy.toml").write_text('send = "late"\n')
    site.configure(
        f'[[cluster]]\nname = "gamma"\nadapter = "slurm"\nconfig = "{gamma.conf}"\n'
        'poll_interval = 1\nexclusive = true\nbinding = "late"\nlead = 10\n',
        '[policy]\nfile = "policy.toml"\n',
    )
    site.start()
    return site


def shown(cluster: SlurmCluster, *name: str) -> str:
    return cluster.run("scontrol", "--oneliner", "show", "reservation", *name)


def reserve(site: Site, *words: str) -> dict[str, Any]:
    answer = site.json("reserve", *words)
    assert isinstance(answer, dict)
    return answer


def state(site: Site, id: int) -> dict[str, Any]:
    [row] = [r for r in site.json("reservations", "--all") if r["reservation"] == id]
    assert isinstance(row, dict)
    return row


def nodes_in_slurm(cluster: SlurmCluster) -> list[str]:
    return re.findall(r" Nodes=(\S+)", shown(cluster))


def test_a_job_waits_for_its_reservation_and_runs_in_it(
    over_gamma: Site, gamma: SlurmCluster
) -> None:
    made = reserve(over_gamma, "--size", "5", "--start", "+8s", "--duration", "2m")
    assert made["state"] == "bound"
    assert (made["cluster"], made["size"], len(made["nodes"])) == ("gamma", 8, 2)
    id = str(made["reservation"])
    assert len(nodes_in_slurm(gamma)) == 1
    job = over_gamma.submit("--reservation", id, "-n", "8", "--wrap", "sleep 1")
    over_gamma.until(lambda: over_gamma.row(job)["reason"].startswith("manager:Reservation"))
    [row] = over_gamma.until_ended(job)
    assert row["state"] == "completed"
    start = datetime.fromisoformat(made["start"])
    late = (datetime.fromisoformat(row["started"]) - start).total_seconds()
    assert late >= 0
    assert state(over_gamma, made["reservation"])["state"] == "active"
    ended = json.loads(over_gamma.run("reservation", "cancel", id, "--json").stdout)
    assert ended["state"] == "cancelled"
    over_gamma.until(lambda: nodes_in_slurm(gamma) == [])
    assert over_gamma.stop() == 0
    over_gamma.replayed()
    assert "fail" not in over_gamma.run("db", "check").stdout


def test_licences_are_kept_for_the_window_over_a_death_and_free_after_it(
    gamma: SlurmCluster, site: Site
) -> None:
    site.configure(
        '[[licence]]\nname = "matlab"\ntotal = 2\n'
        f'[[cluster]]\nname = "gamma"\nadapter = "slurm"\nconfig = "{gamma.conf}"\n'
        "poll_interval = 1\n"
    )
    site.start()
    hour = ("--size", "1", "--start", "+25s", "--duration", "1h")
    told = site.error("reserve", *hour, "--licence", "matlap:1", code=3)
    assert told == "no licence 'matlap' is known; did you mean matlab?"
    assert "ask for at most 2" in site.error("reserve", *hour, "-L", "matlab:3", code=3)
    made = reserve(site, *hour, "--licence", "matlab:2")
    assert made["licences"] == {"matlab": 2}
    id = str(made["reservation"])
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
    start = datetime.fromisoformat(made["start"])
    assert datetime.fromisoformat(row["started"]) >= start
    [licence] = site.json("licences")
    assert (licence["reserved"], licence["free"], licence["ours"]) == (2, 0, 0)
    assert [window["reservation"] for window in licence["windows"]] == [made["reservation"]]
    assert site.row(without)["reason"] == "licence_busy"
    site.run("reservation", "cancel", id)
    [row] = site.until_ended(without)
    assert row["state"] == "completed"
    assert site.json("licences")[0]["windows"] == []
    assert site.stop() == 0
    site.replayed()
    assert "fail" not in site.run("db", "check").stdout


def test_a_drained_node_is_replaced_and_a_controller_that_forgets_is_told_again(
    over_gamma: Site, gamma: SlurmCluster
) -> None:
    made = reserve(over_gamma, "--size", "1", "--start", "+1h", "--duration", "10m")
    id, [node] = made["reservation"], made["nodes"]
    gamma.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    over_gamma.until(lambda: nodes_in_slurm(gamma) not in ([], [node]))
    over_gamma.until(lambda: state(over_gamma, id)["nodes"] == nodes_in_slurm(gamma))
    assert state(over_gamma, id)["state"] == "bound"
    gamma.run("scontrol", "update", f"NodeName={node}", "State=RESUME")

    with gamma.forgetting():
        over_gamma.until(lambda: over_gamma.json("clusters")[0]["state"] == "up")
        over_gamma.run("reservation", "cancel", str(id))
        over_gamma.until(lambda: nodes_in_slurm(gamma) == [])
        other = over_gamma.until(
            lambda: reserve(over_gamma, "--size", "1", "--start", "+2h", "--duration", "10m")
        )
        assert other["state"] == "bound"
        over_gamma.stop(signal.SIGKILL)
    # the deletion is forgotten, and the other one with it
    assert f"-r{id} " in shown(gamma)
    assert f"-r{other['reservation']} " not in shown(gamma)
    over_gamma.start()
    over_gamma.until(lambda: f"-r{id} " not in shown(gamma))
    over_gamma.until(lambda: f"-r{other['reservation']} " in shown(gamma))
    over_gamma.until(lambda: state(over_gamma, other["reservation"])["state"] == "bound")
    assert over_gamma.stop() == 0
    over_gamma.replayed()


def lasts_where_the_clock_is_changed(site: Site) -> timedelta:
    """What could be reserved from 01:30 to 03:30 on a day on which 3 follows on 2."""
    day = datetime.now() + timedelta(days=2)
    changes = (day.timetuple().tm_yday - 1, (day + timedelta(days=9)).timetuple().tm_yday - 1)
    zone = "CET-1CEST,{}/2,{}/3".format(*changes)
    window = ("--start", f"{day:%Y-%m-%d}T01:30", "--end", f"{day:%Y-%m-%d}T03:30")
    words = ("reserve", "--size", "4", *window, "--dry-run", "--json")
    [offer] = json.loads(site.run(*words, env={"TZ": zone}).stdout)["offers"]
    start, end = (datetime.fromisoformat(offer[side]) for side in ("start", "end"))
    return end - start


def test_what_cannot_be_reserved_or_run_there_is_one_line_and_changes_nothing(
    over_gamma: Site, gamma: SlurmCluster
) -> None:
    for words, told, code in (
        (("--start", "2020-01-01T08:00", "--duration", "1h"), "has passed", 2),
        (("--start", "+400d", "--duration", "1h"), "beyond the horizon", 3),
        (("--start", "+1h", "--duration", "59s"), "a job there takes at least 60 s", 3),
        (("--start", "+1h", "--duration", "31d"), "is more than the 2592000 s", 3),
        (("--ready", "+2h", "--deadline", "+1h", "--duration", "1h"), "is not after the start", 2),
        (("--deadline", "+1h", "--duration", "2h"), "do not fit between", 2),
        (("--duration", "1h", "--cluster", "nowhere"), "there is no cluster nowhere", 5),
    ):
        assert told in over_gamma.error("reserve", "--size", "4", *words, code=code)
    assert "no reservation 99" in over_gamma.error("reservation", "cancel", "99", code=5)
    wish = {"least": 1, "most": 1, "shortest": 60, "longest": 60, "ready": math.nan}
    with pytest.raises(BadRequest, match="ready is out of range"):
        Client(over_gamma.folder / "ms.sock").reserve(wish)
    hour = ("--start", "+1h", "--duration", "1h")
    told = over_gamma.error("reserve", "--size", "13", *hour, code=3)
    assert told == "no cluster has 13 processors, the largest is gamma with 12; ask for fewer"
    trial = over_gamma.json("reserve", "--size", "2", "--nodes", *hour, "--dry-run")
    assert [(o["cluster"], o["nodes"]) for o in trial["offers"]] == [("gamma", 2)]
    assert over_gamma.json("reservations") == []

    assert lasts_where_the_clock_is_changed(over_gamma) == timedelta(hours=1)

    made = reserve(over_gamma, "--size", "2", "--nodes", *hour)
    told = over_gamma.error("reserve", "--size", "2", "--nodes", *hour, code=3)
    assert told.startswith("that is not free; gamma has 2 nodes from ")
    id = str(made["reservation"])
    job = ("submit", "--reservation", id, "--wrap", "true")
    told = over_gamma.error(*job, "-t", "2:00:00", code=3)
    assert f"the job may run for 7200 s, reservation {id} lasts 3600 s" in told
    assert f"reservation {id} has 8 on 2" in over_gamma.error(*job, "-n", "9", code=3)
    assert f"reservation {id} ends at" in over_gamma.error(*job, "--begin", "+3h", code=3)
    told = over_gamma.error(*job, "--begin", "+90m", "-t", "45", code=3)
    assert f"may run for 2700 s, reservation {id} lasts" in told
    told = over_gamma.error("submit", "--reservation", "99", "--wrap", "true", code=5)
    assert "no reservation 99" in told

    told = over_gamma.error("reserve", "--size", "1", *hour, "--let-run", "1m", code=3)
    assert "may go on for 0 s after its end, not for 60 s" in told
    waits = over_gamma.submit("--reservation", id, "--wrap", "true")
    for change, told in (
        (("--time", "61"), f"the job may run for 3660 s, reservation {id} lasts 3600 s"),
        (("--time", "none"), "where it needs a time limit"),
        (("--cluster", "none"), f"reservation {id}, which is on gamma"),
        (("--begin", "+3h"), f"reservation {id} ends at"),
    ):
        assert told in over_gamma.error("modify", str(waits), *change, code=3)
    over_gamma.until(lambda: over_gamma.row(waits)["state"] == "pending")
    over_gamma.run("reservation", "cancel", id)
    over_gamma.until(lambda: over_gamma.row(waits)["reason"] == "reservation_wait")
    over_gamma.until(lambda: nodes_in_slurm(gamma) == [])
    assert f"gamma: reservation {id} is " in over_gamma.run("explain", str(waits)).stdout
    told = over_gamma.error("submit", "--reservation", id, "--wrap", "true", code=3)
    assert f"reservation {id} is cancelled: cancelled by" in told

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
            command, env=over_gamma.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(5)
    ]
    for process in racing:
        process.communicate(timeout=120)
    assert sorted(process.returncode for process in racing) == [0, 0, 0, 3, 3]
    assert sorted(nodes_in_slurm(gamma)) == ["g1", "g2", "g3"]
    assert over_gamma.stop() == 0
    over_gamma.replayed()


def test_a_static_partition_keeps_batch_jobs_and_reservations_apart(
    site: Site, gamma: SlurmCluster
) -> None:
    local = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 2\npoll_interval = 0.2\n'
    table = (
        f'[[cluster]]\nname = "gamma"\nadapter = "slurm"\nconfig = "{gamma.conf}"\n'
        "poll_interval = 1\n"
    )
    site.configure(local + table + 'takes = "reservations"\n')
    site.start()
    told = site.error("submit", "-n", "3", "--wrap", "true", code=3)
    assert "gamma: only jobs in a reservation may use the cluster" in told
    assert site.until_ended(site.submit("--wrap", "true"))[0]["cluster"] == "left"
    id = reserve(site, "--size", "4", "--duration", "5m")["reservation"]
    inside = site.submit("--reservation", str(id), "-n", "3", "--wrap", "true")
    [row] = site.until_ended(inside)
    assert (row["cluster"], row["state"]) == ("gamma", "completed")
    site.run("reservation", "cancel", str(id))
    site.until(lambda: nodes_in_slurm(gamma) == [])
    assert site.stop() == 0
    site.replayed()

    site.configure(local + table + 'takes = "jobs"\n')
    site.start()
    told = site.error("reserve", "--size", "4", "--start", "+1h", "--duration", "5m", code=3)
    assert "gamma: the site keeps it for jobs without a reservation" in told
    assert site.until_ended(site.submit("-n", "3", "--wrap", "true"))[0]["cluster"] == "gamma"


def test_requests_that_slurm_binds_and_refuses_fit_since_what_is_bound_moves(
    over_gamma: Site, gamma: SlurmCluster
) -> None:
    """Of two nodes A[0,1) B[2,3) C[0,2) X[1,3): by amounts all fit."""
    gamma.run("scontrol", "update", "NodeName=g3", "State=DRAIN", "Reason=test")
    hour = datetime.fromtimestamp(datetime.now().timestamp() // 60 * 60 + 3600)
    wishes = [(hour + timedelta(minutes=10 * b), 10 * (e - b)) for b, e in _CLASSIC]
    for number, (start, minutes) in enumerate(wishes):
        words = (
            *("scontrol", "create", "reservation", f"ReservationName=static{number}", "NodeCnt=1"),
            *("Users=root", f"StartTime={start.isoformat()}", f"Duration={minutes}"),
        )
        if number < 3:
            gamma.run(*words)
        else:
            with pytest.raises(BootError, match="Requested nodes are busy"):
                gamma.run(*words)
    for number in range(3):
        gamma.run("scontrol", "delete", f"ReservationName=static{number}")

    made = [
        reserve(
            *(over_gamma, "--nodes", "--size", "1", "--start", start.isoformat()),
            *("--duration", f"{minutes}m"),
        )
        for start, minutes in wishes
    ]
    assert {one["state"] for one in made} == {"bound"}
    over_gamma.until(lambda: len(nodes_in_slurm(gamma)) == 4)
    over_gamma.until(
        lambda: all(state(over_gamma, one["reservation"])["state"] == "bound" for one in made)
    )
    told = dict(re.findall(r"ReservationName=\S+-r(\d+) .*? Nodes=(\S+)", shown(gamma)))
    has = [told[str(one["reservation"])] for one in made]
    # C and X overlap with all others but each their own, and so share its node
    assert set(has) == {"g1", "g2"}
    a, b, c, x = has
    assert (a, b) == (x, c)
    assert state(over_gamma, made[1]["reservation"])["cause"] == f"moved to {b}"
    assert over_gamma.stop() == 0
    over_gamma.replayed()
    assert "wrong" not in over_gamma.run("db", "check").stdout


def test_late_binding_keeps_nodes_free_by_what_is_sent_and_chooses_them_last(
    late_gamma: Site, gamma: SlurmCluster
) -> None:
    site = late_gamma
    made = reserve(site, "--size", "2", "--nodes", "--start", "+30s", "--duration", "10m")
    assert (made["state"], made["nodes"]) == ("confirmed", [])
    whole = ("-n", "1", "--cpus-per-task", "4", "-t", "5", "--wrap", "sleep 300")
    first, second = site.submit(*whole), site.submit(*whole)
    inside = site.submit("--reservation", str(made["reservation"]), "-n", "8", "--wrap", "sleep 1")
    site.until(lambda: site.row(first)["state"] == "running")
    assert site.row(second)["reason"] == "reservation_near"
    site.until(lambda: site.row(inside)["reason"] == "reservation_wait")
    assert nodes_in_slurm(gamma) == []
    told = site.run("explain", str(second)).stdout
    assert "it would still run when a reservation begins" in told
    [row] = site.until_ended(inside)
    assert row["state"] == "completed"
    bound = state(site, made["reservation"])
    [taken] = gamma.run("squeue", "-h", "-o", "%N").split()
    assert bound["nodes"] == [node for node in gamma.nodes if node != taken]
    late = datetime.fromisoformat(row["started"]) - datetime.fromisoformat(made["start"])
    assert late.total_seconds() >= 0
    assert site.row(second)["started"] is None
    site.run("reservation", "cancel", str(made["reservation"]))
    site.until(lambda: site.row(second)["state"] == "running")
    assert site.stop() == 0
    site.replayed()
    assert "wrong" not in site.run("db", "check").stdout


@pytest.mark.slow  # no window of Slurm's is shorter than a minute
def test_at_its_end_what_runs_is_killed_or_let_run_as_was_asked(
    over_gamma: Site, gamma: SlurmCluster
) -> None:
    site = over_gamma
    site.stop()
    site.config.write_text(site.config.read_text() + '[reservations]\nlet_run = "2m"\n')
    site.start()
    window = ("--nodes", "--size", "1", "--duration", "1m")
    kills, lets = reserve(site, *window, "--let-run", "0"), reserve(site, *window)
    assert (kills["let_run"], lets["let_run"]) == (0, 120)
    jobs = []
    for made, lasts in ((kills, 80), (lets, 25)):
        within = ("--reservation", str(made["reservation"]), "--cpus-per-task", "4")
        site.submit(*within, "--wrap", "sleep 45")
        # it begins late, and by its limit of a minute would go on after the window
        jobs.append(site.submit(*within, "--wrap", f"sleep {lasts}; : > done$METASCHED_JOB_ID"))
    waits = site.submit("--reservation", str(lets["reservation"]), "-n", "4", "--wrap", "true")
    killed, let = site.until_ended(*jobs)
    assert (killed["state"], let["state"]) == ("timeout", "completed")
    end = datetime.fromisoformat(lets["end"])
    assert end < datetime.fromisoformat(let["ended"])
    # its limit would have let it run for 45 s after the end, and Slurm looks every 30 s
    assert datetime.fromisoformat(killed["ended"]) < end + timedelta(seconds=5)
    told = site.run("explain", str(killed["job"])).stdout
    assert "timeout (its reservation ended)" in told
    assert [path.name for path in site.folder.glob("done*")] == [f"done{let['job']}"]
    for made in (kills, lets):
        assert state(site, made["reservation"])["state"] == "ended"
    row = site.row(waits)
    assert (row["state"], row["reason"]) == ("queued", "reservation_wait")
    site.until(lambda: nodes_in_slurm(gamma) == [])
    assert site.stop() == 0
    site.replayed()
    assert "wrong" not in site.run("db", "check").stdout


def test_the_owner_of_one_that_breaks_is_told_why_and_what_is_free_instead(
    over_gamma: Site, gamma: SlurmCluster
) -> None:
    site = over_gamma
    site.stop()
    program, told = site.folder / "mail", site.folder / "told"
    program.write_text(
        f'#!/bin/sh\nprintf "%s|" "$@" >{told}.new\ncat >>{told}.new\nmv {told}.new {told}\n'
    )
    program.chmod(0o755)
    site.config.write_text(
        site.config.read_text().replace("[daemon]", f'[daemon]\nmail_program = "{program}"')
    )
    site.start()
    window = ("--nodes", "--size", "3", "--duration", "1m")
    made = reserve(site, *window, "--start", "+8s", "--mail", "ada@example.org")
    assert made["mail"] == "ada@example.org"
    gamma.run("scontrol", "update", "NodeName=g2", "State=DRAIN", "Reason=test")
    site.until(lambda: "no other node is free" in state(site, made["reservation"])["cause"])
    assert not told.exists()
    site.until(told.exists)
    words = told.read_text()
    id = made["reservation"]
    assert words.startswith(f"-s|metasched: reservation {id} is broken|ada@example.org|")
    assert f"Your reservation {id} on gamma cannot be kept.\n" in words
    assert "Cause: g2 cannot be used, and no other node is free\n" in words
    row = state(site, id)
    assert row["state"] == "broken"
    assert site.stop() == 0
    site.replayed()
