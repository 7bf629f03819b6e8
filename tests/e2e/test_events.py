"""`metasched events` and the log of a real daemon: acts, outages, refusals, and following them."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import COMMAND, ONE_LOCAL, Site
from tests.e2e.reservable_clusters import SlurmReservations
from tests.harness.ports import free_port
from tests.harness.slurm import SlurmSite


def kinds(site: Site, *options: str) -> list[str]:
    return [row["kind"] for row in site.json("events", *options)]


def stop_and_replay(site: Site) -> None:
    assert site.stop() == 0
    site.replayed()


@contextlib.contextmanager
def following(site: Site, *options: str) -> Iterator[Path]:
    """Run `events --follow --json` for the block; yield the file with its lines."""
    out = site.folder / "followed"
    with out.open("wb") as stdout:
        process = subprocess.Popen(
            [COMMAND, "events", "--follow", "--json", *options],
            env=site.environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
        )
    try:
        yield out
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_who_drained_a_cluster_is_known_after_it_was_resumed(running: Site) -> None:
    running.run("cluster", "drain", "left", "--reason", "fan broken")
    running.run("cluster", "resume", "left")
    running.run("cluster", "resume", "left")  # changes nothing
    running.stop(signal.SIGKILL)
    running.start()
    drained, resumed = running.json("events", "--cluster", "left")
    me = running.json("events", "--kind", "cluster_drained")[0]["actor"]
    assert (drained["kind"], drained["actor"], drained["cause"]) == (
        *("cluster_drained", me, "fan broken"),
    )
    assert resumed["cause"] == f"drained by {me}: fan broken"
    assert resumed["details"] == {"drained_at": drained["time"]}
    table = running.run("events", "--since", "1h").stdout
    assert "cluster_drained" in table
    assert "fan broken" in table
    assert kinds(running, "--since", "1h", "--until", "59m") == []
    assert kinds(running, "--user", me, "--cluster", "left") == [
        *("cluster_drained", "cluster_resumed"),
    ]
    stop_and_replay(running)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kind", "cluster_draind"), "did you mean cluster_drained?"),
        (("--since", "yesterdayish"), "--since"),
        (("--job", "x"), "is no job, --job"),
        (("--job", "99999999999999999999"), "job"),
    ],
)
def test_bad_filters_are_refused_in_a_line(
    shared: Site, arguments: tuple[str, ...], message: str
) -> None:
    assert message in shared.error("events", *arguments, code=2)


@pytest.mark.slow("starts a daemon four times; a follower connects again each time")
def test_followers_miss_and_repeat_nothing_over_restarts(running: Site) -> None:
    with following(running, "--since", "1h") as out:
        for round in range(3):
            running.run("cluster", "drain", "left", "--reason", f"round {round}")
            running.run("cluster", "resume", "left")
            running.stop(signal.SIGKILL if round % 2 else signal.SIGTERM)
            running.start()
        running.run("cluster", "drain", "right", "--reason", "last")
        running.until(lambda: any(row["cause"] == "last" for row in lines(out)))
    stored = running.json("events", "--since", "1h")
    assert lines(out) == stored
    assert Counter(row["kind"] for row in stored)["cluster_drained"] == 4
    stop_and_replay(running)


def test_an_event_reaches_a_follower_while_it_waits(running: Site) -> None:
    with following(running, "--kind", "cluster_resumed") as out:
        time.sleep(1)  # it waits by now, or will find the event at once
        running.run("cluster", "drain", "left")
        running.run("cluster", "resume", "left")
        running.until(lambda: lines(out), patience=20)
    assert [row["kind"] for row in lines(out)] == ["cluster_resumed"]


def test_followers_have_no_more_connections_than_others_who_wait(site: Site) -> None:
    site.configure(extra="connections = 16\n")  # 8 may wait, 3 of a peer
    site.start()
    connections, statuses = [], Counter[int]()
    for _ in range(12):
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(site.folder / "ms.sock"))
        target = "/events?newest=true&kind=defect&wait=5"
        client.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        client.settimeout(30)
        connections.append(client)
    for client in connections:
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            answer = client.recv(1000)
        statuses[int(answer.split()[1]) if answer else 0] += 1
        client.close()
    assert 1 <= statuses[200] <= 3
    assert site.run("status").returncode == 0


def test_the_log_is_json_if_the_site_says_so(site: Site) -> None:
    policy = site.folder / "policy.toml"
    policy.write_text("seed = 1\n")
    site.configure(ONE_LOCAL + '[policy]\nfile = "policy.toml"\n', 'log_format = "json"\n')
    site.start()
    site.run("cluster", "drain", "here", "--reason", "fan")
    site.stop()
    policy.write_text("seed = 2\n")
    site.start("drained")
    assert kinds(site) == ["policy_changed", "cluster_drained", "policy_changed"]
    [before, _, after] = site.json("events")
    assert before["actor"] == after["actor"] == policy.owner()
    assert before["details"]["digest"] == after["details"]["previous"]
    stop_and_replay(site)
    rows = [json.loads(line) for line in site.log.read_text().splitlines()]
    assert all({"time", "level", "message"} <= row.keys() for row in rows)
    [drained] = [row for row in rows if row.get("kind") == "cluster_drained"]
    assert (drained["cluster"], drained["cause"], drained["level"]) == ("here", "fan", "info")


def test_a_flood_of_bad_tokens_makes_few_rows(site: Site) -> None:
    port = free_port()
    site.configure(ONE_LOCAL + f'[tcp]\nlisten = "127.0.0.1:{port}"\n')
    site.start()
    for number in range(300):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/jobs", headers={"Authorization": f"Bearer forged{number}"})
        assert connection.getresponse().status == 401
        connection.close()
    site.until(lambda: kinds(site, "--kind", "credential_refused"))
    site.stop()  # what was counted is stored
    site.start()
    rows = site.json("events", "--kind", "credential_refused")
    assert len(rows) == 2
    assert sum(row["count"] for row in rows) == 300
    assert {row["details"]["peer"] for row in rows} == {"127.0.0.1"}
    assert "forged" not in json.dumps(rows)
    assert site.log.read_text().count("credential_refused") == 2
    token = site.json("token", "create")
    site.run("token", "revoke", str(token["id"]))
    assert kinds(site)[-2:] == ["token_created", "token_revoked"]
    assert token["token"] not in site.log.read_text()
    stop_and_replay(site)


@pytest.mark.slow("calls to a stopped controller fail; it and the daemon are started again")
def test_an_outage_of_a_real_controller(over_slurm: Site, slurm_site: SlurmSite) -> None:
    site, beta = over_slurm, slurm_site["beta"]
    job = site.submit("--wrap", "sleep 600", "--cluster", "beta", "-t", "30")
    site.until(lambda: site.row(job)["state"] == "running")
    beta.stop_controller()
    try:
        site.until(lambda: site.row(job)["state"] == "unknown")
        site.stop(signal.SIGKILL)  # in the midst of the outage
        site.start("down:")
    finally:
        beta.start_controller()
    site.until(lambda: site.row(job)["state"] == "running")
    site.run("cancel", str(job))
    site.until_ended(job)
    site.until(lambda: "breaker_closed" in kinds(site, "--cluster", "beta"))
    expected = ["breaker_open", "cluster_unreachable", "job_unknown"]
    expected += ["cluster_answers", "job_known", "breaker_closed"]
    assert sorted(kinds(site, "--cluster", "beta")) == sorted(expected)
    unknown, job_known = site.json("events", "--job", str(job))
    assert unknown["details"] == {"state": "running"}
    assert job_known["details"] == {"state": "running"}
    stop_and_replay(site)


@pytest.mark.slow("starts a daemon twice; a server is asked each second, five times")
def test_a_silent_licence_server(site: Site) -> None:
    program, answer = site.folder / "lmutil", site.folder / "answer"
    program.write_text(f"#!/bin/sh\ncat {answer}\n")
    program.chmod(0o755)

    def says(issued: int, used: int) -> None:
        answer.write_text(
            "License server status: 1@l\nl: license server UP (MASTER) v11\n"
            f"Users of matlab:  (Total of {issued} licenses issued;  "
            f"Total of {used} licenses in use)\n"
        )

    says(20, 0)
    site.configure(
        ONE_LOCAL + f'[[licence]]\nname = "matlab"\nserver = "lm"\nstale_after = 600\n'
        f'[[licence_server]]\nname = "lm"\nkind = "flexlm"\nlmutil = "{program}"\n'
        'servers = "1@l"\ninterval = 1\n'
    )
    site.start()
    site.until(lambda: "licence_total" in kinds(site))
    says(30, 0)
    site.until(lambda: kinds(site).count("licence_total") == 2)
    answer.unlink()
    site.until(lambda: "licence_server_silent" in kinds(site))
    site.stop(signal.SIGKILL)
    site.start()
    says(30, 0)
    site.until(lambda: "licence_server_answers" in kinds(site))
    site.run("licence", "set", "matlab", "5")
    assert kinds(site)[1:] == [
        *("licence_total", "licence_total", "licence_server_silent"),
        *("licence_server_answers", "licence_set"),
    ]
    assert site.json("events", "--kind", "licence_set")[0]["cause"] == "total 5; it was 30"
    stop_and_replay(site)


@pytest.mark.parametrize("reservable", ["slurm-nodes"], indirect=True)
def test_a_reservation_of_a_real_cluster(cluster: SlurmReservations, site: Site) -> None:
    site.configure(cluster.table(site.folder))
    site.start()
    row = site.json("reserve", "--size", "1", "--start", "+1h", "--duration", "1h")
    site.run("reservation", "cancel", str(row["reservation"]))
    events = [row for row in site.json("events") if row["reservation"]]
    assert [row["kind"] for row in events] == [
        *("reservation_promised", "reservation_bound", "reservation_cancelled"),
    ]
    me = events[0]["actor"]
    assert me
    assert [row["actor"] for row in events] == [me, None, me]
    assert {row["owner"] for row in events} == {me}
    assert events[0]["details"]["start"] == row["start"]
    stop_and_replay(site)


def test_events_are_deleted_after_their_retention(site: Site) -> None:
    site.configure(ONE_LOCAL, 'keep_events = "2s"\n')
    site.start()
    for _ in range(2):
        site.run("cluster", "drain", "here")
    site.run("cluster", "resume", "here")
    site.until(lambda: kinds(site) == ["cluster_resumed"], patience=30)  # the newest stays
