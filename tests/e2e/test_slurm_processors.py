"""Advance reservations of processors on a real Slurm cluster, through the command line."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conftest import require
from tests.e2e.conftest import Site
from tests.e2e.promises import cores
from tests.slurm import ClusterSpec, SlurmCluster, SlurmSite, missing

RHO = ClusterSpec("rho", "r", nodes=2, cpus=4)
WHOLE = ClusterSpec(
    "sigma",
    "s",
    nodes=1,
    cpus=4,
    settings=(
        "SelectType=select/linear",
        "SelectTypeParameters=CR_Memory",
    ),
)


@pytest.fixture(scope="module")
def rho_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    """A cluster of its own: its nodes are drained and its controller is killed."""
    if (reason := missing()) is not None:
        require("slurm", reason)
    with SlurmSite(tmp_path_factory.mktemp("rho"), [RHO]) as made:
        yield made


@pytest.fixture
def rho(rho_site: SlurmSite) -> Iterator[SlurmCluster]:
    """The cluster; afterwards empty and with all its nodes."""
    cluster = rho_site["rho"]
    yield cluster
    cluster.empty()
    for name in kept(cluster):
        cluster.run("scontrol", "delete", f"ReservationName={name}")
    for node in cluster.nodes:
        if "drain" in cluster.run("sinfo", "-h", "-n", node, "-o", "%T"):
            cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    cluster.wait_ready()


@pytest.fixture
def over_rho(rho: SlurmCluster, site: Site) -> Site:
    # in this order: the daemon ends before its cluster is put in order
    site.configure(table(rho))
    site.start()
    return site


def table(cluster: SlurmCluster) -> str:
    return (
        f'[[cluster]]\nname = "{cluster.name}"\nadapter = "slurm"\nconfig = "{cluster.conf}"\n'
        'poll_interval = 1\nreservation_unit = "processor"\n'
    )


def kept(cluster: SlurmCluster) -> dict[str, dict[str, set[int]]]:
    """The cores of each reservation on each node, as Slurm tells them after some seconds."""
    told = cluster.run("scontrol", "--oneliner", "show", "reservation").splitlines()
    named = [(re.search(r"ReservationName=(\S+)", line), line) for line in told]
    return {name[1]: cores(line, "NodeName", "CoreIDs") for name, line in named if name}


def of_job(cluster: SlurmCluster, native: str) -> dict[str, set[int]]:
    """The cores of a job on each node, in Slurm's own detail."""
    return cores(cluster.run("scontrol", "-d", "-o", "show", "job", native))


def state(site: Site, id: int) -> dict[str, Any]:
    [row] = [r for r in site.json("reservations", "--all") if r["reservation"] == id]
    assert isinstance(row, dict)
    return row


def test_two_windows_and_a_batch_job_share_a_node(over_rho: Site, rho: SlurmCluster) -> None:
    window = ("--start", "+10s", "--duration", "2m")
    [offer] = over_rho.json("reserve", "--size", "3", *window, "--dry-run")["offers"]
    assert (offer["nodes"], offer["processors"]) == (None, 3)
    small, large = (over_rho.json("reserve", "--size", str(n), *window) for n in (1, 2))
    assert [(made["state"], made["size"]) for made in (small, large)] == [
        ("bound", 1),
        ("bound", 2),
    ]
    inside = [
        over_rho.submit("--reservation", str(made["reservation"]), "-n", n, "--wrap", "sleep 20")
        for made, n in ((small, "1"), (large, "2"))
    ]

    told = over_rho.error("reserve", "--size", "6", *window, code=3)
    assert told.startswith("that is not free; ")
    assert "rho has 5 processors from " in told
    told = over_rho.error("reserve", "--size", "9", *window, code=3)
    assert told == "no cluster has 9 processors, the largest is rho with 8; ask for fewer"
    told = over_rho.error("reserve", "--nodes", "--size", "1", *window, code=3)
    assert told == "only processors can be reserved on rho; leave out --nodes"
    job = ("submit", "--reservation", str(large["reservation"]), "--wrap", "true")
    assert "has 2 processors; ask for fewer" in over_rho.error(*job, "-n", "3", code=3)

    over_rho.until(lambda: all(over_rho.row(job)["state"] == "running" for job in inside))
    rest = over_rho.submit("-n", "5", "-t", "1", "--wrap", "sleep 10")
    more = over_rho.submit("-n", "1", "-t", "1", "--wrap", "true")
    over_rho.until(lambda: over_rho.row(rest)["state"] == "running")
    assert [over_rho.row(job)["state"] for job in inside] == ["running", "running"]
    assert over_rho.row(more)["state"] == "pending"
    [row] = over_rho.cluster_rows()
    assert (row["cpus"], row["used"]) == (8, 8)
    first, second, batch = (of_job(rho, over_rho.row(job)["native_id"]) for job in (*inside, rest))
    names = {int(name.rpartition("-r")[2]): some for name, some in kept(rho).items()}
    assert (first, second) == (names[small["reservation"]], names[large["reservation"]])
    assert [*first] == [*second] == ["r1"]
    assert sorted(first["r1"] | second["r1"] | batch["r1"]) == [0, 1, 2, 3]
    assert not first["r1"] & second["r1"]
    assert (len(batch["r1"]), len(batch["r2"])) == (1, 4)

    assert {row["state"] for row in over_rho.until_ended(*inside, rest, more)} == {"completed"}
    for made in (small, large):
        over_rho.run("reservation", "cancel", str(made["reservation"]))
    over_rho.until(lambda: kept(rho) == {})
    assert over_rho.stop() == 0
    over_rho.replayed()
    assert "fail" not in over_rho.run("db", "check").stdout


@pytest.mark.slow  # no window of Slurm's is shorter than a minute
def test_a_window_begins_in_time_on_cores_on_which_a_job_would_run_on(
    over_rho: Site, rho: SlurmCluster
) -> None:
    """By itself Slurm ends the job up to 30 s late. At the second end the daemon is not there."""
    start = datetime.now(UTC) + timedelta(seconds=8)
    begins = [start + number * timedelta(minutes=1) for number in range(3)]
    windows = [
        over_rho.json("reserve", "--size", "8", "--start", at.isoformat(), "--duration", "1m")
        for at in begins
    ]
    within = [("--reservation", str(made["reservation"]), "-n", "8") for made in windows]
    jobs = []
    for words in within[:2]:
        jobs.append(over_rho.submit(*words, "--wrap", "sleep 15"))
        jobs.append(over_rho.submit(*words, "-t", "1", "--wrap", "sleep 100"))
    jobs.append(over_rho.submit(*within[2], "--wrap", "true"))
    over_rho.until(lambda: over_rho.row(jobs[3])["state"] == "running", patience=120)
    over_rho.stop(signal.SIGKILL)
    time.sleep(max(0.0, (begins[2] - datetime.now(UTC)).total_seconds()))
    over_rho.start()
    rows = over_rho.until_ended(*jobs)
    assert [row["state"] for row in rows] == [*["completed", "timeout"] * 2, "completed"]
    late = []
    for row, due in zip(rows[::2], begins, strict=True):
        told = rho.run("scontrol", "-o", "show", "job", row["native_id"])
        at = datetime.fromisoformat(told.partition(" StartTime=")[2].partition(" ")[0])
        late.append(at.timestamp() - due.timestamp())
    assert max(late) <= 10, late
    for job in (jobs[1], jobs[3]):
        said = over_rho.run("explain", str(job)).stdout
        assert "It has ended on rho: timeout (its reservation ended)." in said
        assert over_rho.run("story", str(job)).stdout.count("is over: it is to end") == 1
    assert over_rho.stop() == 0
    over_rho.replayed()
    assert "fail" not in over_rho.run("db", "check").stdout


def test_what_slurm_has_lost_drained_or_changed_is_made_again(
    over_rho: Site, rho: SlurmCluster
) -> None:
    hour = ("--start", "+1h", "--duration", "10m")
    made = over_rho.json("reserve", "--size", "3", *hour)
    id = made["reservation"]
    [name] = kept(rho)
    over_rho.until(lambda: [*kept(rho)[name]] == ["r1"])
    waits = over_rho.submit("--reservation", str(id), "-n", "3", "-t", "1", "--wrap", "true")
    over_rho.until(lambda: over_rho.row(waits)["state"] == "pending")

    rho.run("scontrol", "update", "NodeName=r1", "State=DRAIN", "Reason=test")
    over_rho.until(lambda: [*kept(rho)] == [f"{name}-again"])
    native = over_rho.row(waits)["native_id"]
    assert f"Reservation={name}-again" in rho.run("scontrol", "-o", "show", "job", native)
    over_rho.until(lambda: [*kept(rho)[f"{name}-again"]] == ["r2"])
    rho.run("scontrol", "update", "NodeName=r2", "State=DRAIN", "Reason=test")
    over_rho.until(lambda: "no other node is free" in state(over_rho, id)["cause"])
    assert state(over_rho, id)["state"] == "bound"
    rho.run("scontrol", "update", "NodeName=r2", "State=RESUME")
    over_rho.until(lambda: state(over_rho, id)["cause"] == "its nodes can be used again")
    rho.run("scontrol", "update", "NodeName=r1", "State=RESUME")

    over_rho.run("cancel", str(waits))
    over_rho.until_ended(waits)
    (other,) = kept(rho)
    rho.run("scontrol", "delete", f"ReservationName={other}")
    words = ("StartTime=now+60minutes", "Duration=10", "Users=root", "CoreCnt=1")
    rho.run("scontrol", "create", "reservation", f"ReservationName={name}", *words)
    over_rho.until(lambda: [*kept(rho)] == [f"{name}-again"])
    over_rho.until(lambda: sum(map(len, kept(rho)[f"{name}-again"].values())) == 3)
    assert state(over_rho, id)["state"] == "bound"

    with rho.forgetting():
        over_rho.until(lambda: over_rho.json("clusters")[0]["state"] == "up")
        over_rho.run("reservation", "cancel", str(id))
        over_rho.until(lambda: kept(rho) == {})
        later = ("--size", "2", "--start", "+2h", "--duration", "10m")
        second = over_rho.until(lambda: over_rho.json("reserve", *later))
        assert second["state"] == "bound"
        over_rho.stop(signal.SIGKILL)
    assert [*kept(rho)] == [f"{name}-again"]  # the deletion is forgotten, and the new one with it
    over_rho.start()
    over_rho.until(
        lambda: [one.rpartition("-")[2] for one in kept(rho)] == [f"r{second['reservation']}"]
    )
    over_rho.until(lambda: state(over_rho, second["reservation"])["state"] == "bound")
    assert over_rho.stop() == 0
    over_rho.replayed()


def test_what_is_lost_is_made_again_once_the_controller_has_heard_from_its_nodes(
    over_rho: Site, rho: SlurmCluster
) -> None:
    """Until then Slurm finds no cores for anything."""
    made = over_rho.json("reserve", "--size", "3", "--start", "+1h", "--duration", "10m")
    [name] = kept(rho)
    for node in rho.nodes:
        rho.kill_node(node)
    rho.stop_controller()
    for what in ("resv_state", "node_state"):
        for saved in (rho.folder / "state").glob(f"{what}*"):
            saved.unlink()
    rho.start_controller(wait=False)
    over_rho.until(lambda: "not created" in over_rho.told())
    assert state(over_rho, made["reservation"])["state"] == "confirmed"
    for node in rho.nodes:
        rho.start_node(node)
    rho.wait_ready()
    over_rho.until(lambda: [*kept(rho)] == [name])
    over_rho.until(lambda: state(over_rho, made["reservation"])["state"] == "bound")


def test_what_has_not_begun_is_moved_to_other_cores_for_another(
    over_rho: Site, rho: SlurmCluster
) -> None:
    """Four windows on two nodes that any choice for good fails to hold (see the other tests)."""
    now = datetime.now(UTC).replace(microsecond=0)

    def asked(start: int, minutes: int) -> Any:
        begin = (now + timedelta(minutes=start)).isoformat()
        words = ("--size", "4", "--start", begin, "--duration", f"{minutes}m")
        made = over_rho.json("reserve", *words)
        assert made["state"] == "bound"
        return made["reservation"]

    made = [asked(60, 10), asked(80, 10), asked(60, 20)]
    over_rho.until(lambda: [len(some) for some in kept(rho).values()] == [1, 1, 1])
    waits = over_rho.submit("--reservation", str(made[1]), "-n", "4", "-t", "1", "--wrap", "true")
    over_rho.until(lambda: over_rho.row(waits)["state"] == "pending")
    before = {name: [*some] for name, some in kept(rho).items()}
    assert sorted(before.values()) == [["r1"], ["r1"], ["r2"]]
    fourth = asked(70, 20)
    moved = f"-r{made[1]}-again"
    over_rho.until(lambda: [len(some) for some in kept(rho).values()] == [1, 1, 1, 1])
    after = {re.sub(r".*-r", "-r", name): [*some] for name, some in kept(rho).items()}
    assert after == {
        f"-r{made[0]}": ["r1"],
        f"-r{made[2]}": ["r2"],
        moved: ["r2"],
        f"-r{fourth}": ["r1"],
    }
    native = over_rho.row(waits)["native_id"]
    assert f"{moved}\n" in rho.run("scontrol", "-o", "show", "job", native).replace(" ", "\n")
    assert {state(over_rho, id)["state"] for id in made} == {"bound"}

    for id in (made[0], made[2], fourth):  # and back to the first node, of those left
        over_rho.run("reservation", "cancel", str(id))
    over_rho.until(lambda: len(kept(rho)) == 1)
    asked(60, 20), asked(60, 10), asked(70, 20)
    moved = f"-r{made[1]}"
    over_rho.until(
        lambda: [[*some] for name, some in kept(rho).items() if name.endswith(moved)] == [["r1"]]
    )
    assert f"{moved}\n" in rho.run("scontrol", "-o", "show", "job", native).replace(" ", "\n")


def test_while_one_is_open_its_cluster_keeps_the_unit_that_was_promised(
    over_rho: Site, rho: SlurmCluster
) -> None:
    """Else two processors would become two nodes, or a node a processor."""
    processors = over_rho.config.read_text()
    nodes = processors.replace('"processor"', '"node"')
    for before, after, was in ((processors, nodes, "processors"), (nodes, processors, "nodes")):
        made = over_rho.json("reserve", "--size", "2", "--start", "+1h", "--duration", "1h")
        id = made["reservation"]
        over_rho.stop()
        shown = [*kept(rho)]
        over_rho.config.write_text(after)
        told = over_rho.error("serve", code=2)
        assert told.startswith(f"reservation {id} is of {was}")
        assert 'cluster "rho"; put its reservation_unit and binding back' in told
        assert [*kept(rho)] == shown
        over_rho.config.write_text(before)
        over_rho.start()
        over_rho.run("reservation", "cancel", str(id))
        over_rho.until(lambda: kept(rho) == {})
        over_rho.stop()
        over_rho.config.write_text(after)
        over_rho.start()


def test_a_cluster_that_reserves_no_cores_says_what_to_write(
    site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if (reason := missing()) is not None:
        require("slurm", reason)
    with SlurmSite(tmp_path_factory.mktemp("sigma"), [WHOLE]) as slurm:
        site.configure(table(slurm["sigma"]))
        site.start()
        told = site.error("reserve", "--size", "1", "--start", "+1h", "--duration", "1h", code=3)
        mend = 'its SelectType reserves no cores; write reservation_unit = "node"'
        assert told.startswith(f"sigma cannot keep it: its manager refused: {mend}")
        found = {f["check"]: f for f in json.loads(site.run("doctor", "--json", code=1).stdout)}
        manager = found["manager of sigma"]
        assert manager["text"] == "it runs select/linear, which reserves no processors"
        assert manager["mend"].startswith('write reservation_unit = "node"')
        site.stop()
        site.config.write_text(site.config.read_text().replace('"processor"', '"node"'))
        site.start()
        site.run("doctor")
        assert site.stop() == 0
