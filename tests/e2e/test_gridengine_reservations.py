"""Advance reservations in a real Grid Engine cell, through the command line."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.booted import BootError, wait_until
from tests.conftest import require
from tests.e2e.conftest import Site
from tests.gridengine import MEMORY, TOKENS, Cell, missing


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """A cell of its own: its queue is disabled and its reservations are deleted."""
    if (reason := missing()) is not None:
        require("gridengine", reason)
    with Cell(tmp_path_factory.mktemp("reserving")) as made:
        yield made


@pytest.fixture
def over_cell(site: Site, cell: Cell) -> Iterator[Site]:
    python = cell.python(site.folder / "python")
    site.configure(cell.table(python, "poll_interval = 0.5\nsettle = 1\n"))
    site.start()
    yield site
    cell.run("qmod", "-e", "*")
    cell.empty()
    for id in kept(cell):
        cell.run("qrdel", id)


def kept(cell: Cell) -> dict[str, str]:
    """The names of the cell's advance reservations, by their ids."""
    told = cell.run("qrstat", "-xml", "-u", "*")
    return dict(re.findall(r"<id>(\d+)</id>\s*<name>([^<]*)</name>", told))


def state(site: Site, id: int) -> dict[str, Any]:
    [row] = [r for r in site.json("reservations", "--all") if r["reservation"] == id]
    assert isinstance(row, dict)
    return row


def test_jobs_wait_for_their_processors_and_run_in_them(over_cell: Site, cell: Cell) -> None:
    window = ("--start", "+12s", "--duration", "2m")
    trial = over_cell.json("reserve", "--size", "5", *window, "--dry-run")
    [offer] = trial["offers"]
    assert (offer["cluster"], offer["nodes"], offer["processors"]) == ("cell", None, 5)
    begins, [(first, last)] = offer["start"], offer["starts"]
    assert begins == first == last
    within = ("--deadline", "+1h", "--dry-run")
    for words, size, seconds in (
        (("--size", "3", "--duration", "10m"), 3, 600),
        (("--at-least", "2", "--at-most", "20", "--duration", "10m"), 8, 600),
        (("--size", "8", "--at-least", "1m", "--at-most", "30m"), 8, 1800),
    ):
        [offer] = over_cell.json("reserve", *words, *within)["offers"]
        start, end = (datetime.fromisoformat(offer[side]) for side in ("start", "end"))
        assert (offer["processors"], (end - start).total_seconds()) == (size, seconds)
        [(first, last)] = offer["starts"]
        assert first == offer["start"]
        assert datetime.fromisoformat(last) > datetime.fromisoformat(first)
    assert over_cell.json("reservations") == []
    made = over_cell.json("reserve", "--size", "5", *window)
    assert (made["state"], made["cluster"], made["size"]) == ("bound", "cell", 5)
    assert [name.rpartition("-")[2] for name in kept(cell).values()] == ["r1"]
    id = str(made["reservation"])

    told = over_cell.error("reserve", "--size", "4", *window, code=3)
    assert told.startswith("that is not free; cell has 4 processors from ")
    told = over_cell.error("reserve", "--size", "9", *window, code=3)
    assert told == "no cluster has 9 processors, the largest is cell with 8; ask for fewer"
    told = over_cell.error("reserve", "--nodes", "--size", "1", *window, code=3)
    assert told == ("only processors can be reserved on cell; leave out --nodes")
    job = ("submit", "--reservation", id, "--wrap", "true")
    told = over_cell.error(*job, "-n", "6", code=3)
    assert f"reservation {id} has 5 processors; ask for fewer" in told
    assert f"reservation {id} lasts" in over_cell.error(*job, "-t", "1:00:00", code=3)

    jobs = [
        over_cell.submit("--reservation", id, "-n", cpus, "-t", "1", "--wrap", "sleep 1")
        for cpus in ("4", "1")
    ]
    rows = over_cell.until_ended(*jobs)
    assert {row["state"] for row in rows} == {"completed"}
    begins = datetime.fromisoformat(made["start"])
    assert all(datetime.fromisoformat(row["started"]) >= begins for row in rows)
    over_cell.until(lambda: state(over_cell, made["reservation"])["state"] == "active")

    over_cell.run("reservations", "--plot", "chart.png")
    assert (over_cell.folder / "chart.png").read_bytes().startswith(b"\x89PNG")
    told = over_cell.error("reservations", "--plot", "chart.xyz", code=2)
    assert "has no supported suffix, --plot" in told
    over_cell.run("reservation", "cancel", id)
    over_cell.until(lambda: kept(cell) == {})
    assert over_cell.stop() == 0
    over_cell.replayed()
    assert "fail" not in over_cell.run("db", "check").stdout


def test_what_the_cell_has_lost_is_made_again_and_what_cannot_run_is_told(
    over_cell: Site, cell: Cell
) -> None:
    hour = ("--start", "+1h", "--duration", "10m")
    made = over_cell.json("reserve", "--size", "8", *hour)
    id, [native] = made["reservation"], kept(cell)
    cell.run("qmod", "-d", "all.q")
    over_cell.until(lambda: "no other node is free" in state(over_cell, id)["cause"])
    assert state(over_cell, id)["state"] == "bound"
    cell.run("qmod", "-e", "all.q")
    over_cell.until(lambda: state(over_cell, id)["cause"] == "its nodes can be used again")
    # wholly reserved for later, it is free now
    before = over_cell.submit("-n", "8", "-t", "1", "--wrap", "true")
    assert over_cell.until_ended(before)[0]["state"] == "completed"
    over_cell.until(lambda: over_cell.cluster_rows()[0]["used"] == 0)

    waits = over_cell.submit("--reservation", str(id), "-t", "1", "--wrap", "true")
    over_cell.until(lambda: over_cell.row(waits)["state"] == "pending")
    over_cell.stop(signal.SIGKILL)
    cell.empty()
    cell.run("qrdel", native)
    over_cell.start()
    over_cell.until(lambda: [*kept(cell)] not in ([], [native]))
    over_cell.until(lambda: state(over_cell, id)["state"] == "bound")
    over_cell.run("reservation", "cancel", str(id))
    over_cell.until(lambda: kept(cell) == {})
    assert over_cell.stop() == 0
    over_cell.replayed()


@pytest.fixture
def second(cell: Cell, tmp_path: Path) -> Iterator[None]:
    """A second queue on the same host; made before the daemon, and gone after its jobs."""
    queue = tmp_path / "second"
    told = re.sub(r"\\\n\s*", "", cell.run("qconf", "-sq", "all.q"))
    queue.write_text(re.sub(r"^qname .*", "qname second.q", told, flags=re.MULTILINE))
    cell.run("qconf", "-Aq", str(queue))
    yield

    def gone() -> bool:
        try:
            cell.run("qconf", "-dq", "second.q")
        except BootError:  # a job of it has just ended
            return False
        return True

    wait_until(gone, 30, "the end of second.q", lambda: cell.run("qstat", "-f", "-u", "*"))


def queue_of(cell: Cell, native: str) -> str:
    [queue] = re.findall(r'queue_instance="(\S+)@', cell.run("qrstat", "-xml", "-ar", native))
    assert isinstance(queue, str)
    return queue


@pytest.mark.usefixtures("second")
def test_where_its_queue_goes_down_another_has_it_first_and_what_waits_comes_along(
    over_cell: Site, cell: Cell
) -> None:
    made = over_cell.json("reserve", "--size", "3", "--start", "+1h", "--duration", "5m")
    id, [native] = made["reservation"], kept(cell)
    inside = over_cell.submit("--reservation", str(id), "-n", "3", "-t", "1", "--wrap", "true")
    over_cell.until(lambda: over_cell.row(inside)["state"] == "pending")
    waits = over_cell.row(inside)["native_id"]
    queue = queue_of(cell, native)
    cell.run("qmod", "-d", queue)
    over_cell.until(lambda: native not in kept(cell))
    [other] = kept(cell)
    assert queue_of(cell, other) != queue
    over_cell.until(lambda: state(over_cell, id)["cause"] == "moved to other nodes")
    row = over_cell.row(inside)
    assert (row["state"], row["native_id"]) == ("pending", waits)
    told = cell.run("qstat", "-j", waits)
    assert re.search(rf"^ar_id: +{other}$", told, re.MULTILINE)
    over_cell.run("reservation", "cancel", str(id))
    over_cell.until(lambda: kept(cell) == {})
    assert over_cell.stop() == 0
    over_cell.replayed()


@pytest.fixture
def halves(cell: Cell, second: None) -> Iterator[None]:
    """Each of the two queues has half of the host's processors."""
    for queue, slots in (("all.q", "4"), ("second.q", "4")):
        cell.run("qconf", "-rattr", "queue", "slots", slots, queue)
    yield
    cell.run("qconf", "-rattr", "queue", "slots", "8", "all.q")


def of_each(cell: Cell) -> dict[int, list[str]]:
    """The queues of all that the cell keeps of each reservation."""
    found: dict[int, list[str]] = {}
    for native, name in kept(cell).items():
        found.setdefault(int(name.rpartition("-r")[2]), []).append(queue_of(cell, native))
    return found


def asked(site: Site, begin: datetime, start: float, seconds: int) -> int:
    """A window of half of the processors, which every choice for good fails to hold with others."""
    at = (begin + timedelta(seconds=start)).isoformat()
    words = ("--size", "4", "--start", at, "--duration", f"{seconds}s")
    made = site.json("reserve", *words)
    assert made["state"] == "bound"
    assert isinstance(made["reservation"], int)
    return made["reservation"]


@pytest.mark.usefixtures("halves")
def test_what_has_not_begun_is_moved_so_that_another_has_its_slots_throughout(
    over_cell: Site, cell: Cell
) -> None:
    begin = datetime.now(UTC).replace(microsecond=0)
    made = [asked(over_cell, begin, *window) for window in ((50, 10), (70, 20), (50, 20))]
    one, other = of_each(cell)[made[0]], of_each(cell)[made[2]]
    assert of_each(cell) == {made[0]: one, made[1]: one, made[2]: other}
    waits = over_cell.submit("--reservation", str(made[1]), "-n", "4", "-t", "5s", "--wrap", "true")
    over_cell.until(lambda: over_cell.row(waits)["state"] == "pending")
    native = over_cell.row(waits)["native_id"]

    made.append(asked(over_cell, begin, 60, 20))
    assert of_each(cell) == {made[0]: one, made[1]: other, made[2]: other, made[3]: one}
    [moved] = [n for n, name in kept(cell).items() if name.endswith(f"-r{made[1]}")]
    told = cell.run("qstat", "-j", native)
    assert re.search(rf"^ar_id: +{moved}$", told, re.MULTILINE)
    assert {state(over_cell, id)["state"] for id in made} == {"bound"}
    begun = (begin + timedelta(seconds=55)).isoformat()
    words = ("--size", "4", "--start", begun, "--duration", "20s")
    assert "not free" in over_cell.error("reserve", *words, code=3)

    [row] = over_cell.until_ended(waits)
    assert (row["state"], row["native_id"]) == ("completed", native)
    late = datetime.fromisoformat(row["started"]) - begin
    assert 70 <= late.total_seconds() <= 80
    assert over_cell.stop() == 0
    over_cell.replayed()
    assert "wrong" not in over_cell.run("db", "check").stdout


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


def mortal(folder: Path) -> Path:
    """A `bin_dir` whose programs kill the worker and the daemon before they change anything.

    They do so when the number in `left` has come down to nothing; there is none at first.
    """
    folder.mkdir()
    dies = (
        f'if [ -e "{folder}/left" ]; then\n'
        f'  left=$(cat "{folder}/left"); echo $((left - 1)) >"{folder}/left"\n'
        f'  [ "$left" = 0 ] && rm "{folder}/left" && kill -KILL $(cat "{folder}/daemon") $PPID\n'
        "fi\n"
    )
    for name in PROGRAMS:
        program = folder / name
        more = dies if name in CHANGES else ""
        program.write_text(f'#!/bin/sh\n{more}exec /usr/bin/{name} "$@"\n')
        program.chmod(0o755)
    return folder


@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize(("before", "of_the_moved"), [(1, 1), (2, 2), (3, 2), (4, 1)])
def test_who_dies_between_two_steps_of_a_move_loses_no_promise_and_goes_on(
    over_cell: Site, cell: Cell, tmp_path: Path, before: int, of_the_moved: int
) -> None:
    """Steps: refused, granted elsewhere, jobs brought along, the old one deleted, granted."""
    site = over_cell
    site.stop()
    programs = mortal(tmp_path / "programs")
    site.config.write_text(site.config.read_text() + f'bin_dir = "{programs}"\n')
    site.start()
    begin = datetime.now(UTC).replace(microsecond=0)
    hour = 3600
    windows = ((hour, 600), (hour + 1200, 600), (hour, 1200))
    made = [asked(site, begin, *window) for window in windows]
    waits = site.submit("--reservation", str(made[1]), "-n", "4", "-t", "1", "--wrap", "true")
    site.until(lambda: site.row(waits)["state"] == "pending")
    (programs / "daemon").write_text(str(site.pid))
    (programs / "left").write_text(str(before))
    at = (begin + timedelta(seconds=hour + 600)).isoformat()
    words = ("--size", "4", "--start", at, "--duration", "20m")
    assert site.error("reserve", *words, code=1).startswith("no answer")
    site.stop(signal.SIGKILL)
    assert not (programs / "left").exists()
    there = {id: len(queues) for id, queues in of_each(cell).items()}
    assert there == {made[0]: 1, made[1]: of_the_moved, made[2]: 1}

    site.start()
    site.until(lambda: {r["state"] for r in site.json("reservations")} == {"bound"})
    site.until(lambda: len(kept(cell)) == len(of_each(cell)) == 4)
    [moved] = [n for n, name in kept(cell).items() if name.endswith(f"-r{made[1]}")]
    told = cell.run("qstat", "-j", site.row(waits)["native_id"])
    assert re.search(rf"^ar_id: +{moved}$", told, re.MULTILINE)
    assert site.row(waits)["state"] == "pending"
    site.run("cancel", str(waits))
    site.until_ended(waits)
    for row in site.json("reservations"):
        site.run("reservation", "cancel", str(row["reservation"]))
    site.until(lambda: kept(cell) == {})
    assert site.stop() == 0
    site.replayed()


@contextmanager
def left_out(site: Site) -> Iterator[None]:
    """The daemon runs without the cell, and then with it again."""
    site.stop()
    whole = site.config.read_text()
    site.configure()
    site.start()
    yield
    site.stop()
    site.config.write_text(whole)
    site.start()


def test_a_cell_that_was_left_out_by_mistake_is_put_back_and_nothing_is_lost(
    over_cell: Site, cell: Cell
) -> None:
    site = over_cell
    made = site.json("reserve", "--size", "3", "--start", "+1h", "--duration", "5m")
    id, [native] = made["reservation"], kept(cell)
    inside = site.submit("--reservation", str(id), "-n", "3", "-t", "1", "--wrap", "true")
    site.until(lambda: site.row(inside)["state"] == "pending")
    with left_out(site):
        assert state(site, id)["cause"] == "cluster cell is not configured"
        gone = f"reservation {id}: cluster cell is not configured"
        assert gone in site.run("explain", str(inside)).stdout
    site.until(lambda: site.row(inside)["state"] == "pending")
    assert state(site, id)["cause"] == "cluster cell is configured again"
    assert state(site, id)["state"] == "bound"
    assert [*kept(cell)] == [native]
    site.run("cancel", str(inside))
    site.until_ended(inside)
    site.run("reservation", "cancel", str(id))
    site.until(lambda: kept(cell) == {})
    assert site.stop() == 0
    site.replayed()


def test_one_that_was_cancelled_while_its_cell_was_left_out_is_deleted_when_that_is_back(
    over_cell: Site, cell: Cell
) -> None:
    """Nothing is deleted that a job waits in: that comes back to us before."""
    site = over_cell
    made = site.json("reserve", "--size", "3", "--start", "+1h", "--duration", "5m")
    id = made["reservation"]
    inside = site.submit("--reservation", str(id), "-t", "1", "--wrap", "true")
    site.until(lambda: site.row(inside)["state"] == "pending")
    with left_out(site):
        site.run("reservation", "cancel", str(id))
    site.until(lambda: kept(cell) == {})
    site.until(lambda: site.row(inside)["state"] == "queued")
    assert site.row(inside)["reason"] == "reservation_wait"
    site.run("cancel", str(inside))
    assert site.stop() == 0
    site.replayed()


def test_what_is_sent_when_the_window_has_begun_may_run_for_what_is_left_of_it(
    over_cell: Site, cell: Cell
) -> None:
    """Grid Engine refuses a job that by its limit would go on after its reservation."""
    site = over_cell
    made = site.json("reserve", "--size", "2", "--start", "+3s", "--duration", "30s")
    within = ("--reservation", str(made["reservation"]))
    first = site.submit(*within, "--wrap", "sleep 2")
    after = ("--dependency", f"afterok:{first}")
    jobs = [
        site.submit(*within, *after, "--wrap", "true"),
        site.submit(*within, *after, "-t", "0:30", "--wrap", "true"),
        site.submit(*within, "--array", "0-1%1", "--wrap", "sleep 2"),
    ]
    rows = site.until_ended(first, *jobs)
    assert {row["state"] for row in rows} == {"completed"}
    assert len(rows) == 5
    site.run("reservation", "cancel", str(made["reservation"]))
    site.until(lambda: kept(cell) == {})
    assert site.stop() == 0
    site.replayed()


def test_who_waits_in_a_reservation_keeps_nobody_from_coming_before_it(
    over_cell: Site, cell: Cell
) -> None:
    """The head of a line is left what it needs by those that are pulled to its cluster."""
    site = over_cell
    site.stop()
    local = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 1\npoll_interval = 0.2\n'
    site.config.write_text(site.config.read_text() + local)
    site.start()
    made = site.json("reserve", "--size", "8", "--start", "+1h", "--duration", "10m")
    id = made["reservation"]
    inside = site.submit("--reservation", str(id), "-n", "8", "-t", "10", "--wrap", "true")
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
    [told] = [row for row in site.cluster_rows() if row["cluster"] == "cell"]
    assert told["state"] == "up"
    site.run("cancel", str(inside), str(holds))
    site.until_ended(inside, holds)
    site.run("reservation", "cancel", str(id))
    site.until(lambda: kept(cell) == {})
    assert site.stop() == 0
    site.replayed()


def test_at_its_end_what_runs_is_killed_or_let_run_as_was_asked(
    over_cell: Site, cell: Cell
) -> None:
    site = over_cell
    site.stop()
    site.config.write_text(site.config.read_text() + '[reservations]\nlet_run = "1m"\n')
    site.start()
    window = ("--size", "1", "--start", "+2s", "--duration", "10s")
    kills, lets = site.json("reserve", *window, "--let-run", "0"), site.json("reserve", *window)
    assert (kills["let_run"], lets["let_run"]) == (0, 60)
    jobs = []
    for made in (kills, lets):
        within = ("--reservation", str(made["reservation"]))
        site.submit(*within, "--wrap", "sleep 4")
        # it begins late, and by its limit of 10 s, as long as the window, would go on after it
        jobs.append(site.submit(*within, "--wrap", "sleep 8; : > done$METASCHED_JOB_ID"))
    waits = site.submit("--reservation", str(lets["reservation"]), "--wrap", "true")
    killed, let = site.until_ended(*jobs)
    end = datetime.fromisoformat(lets["end"])
    assert (killed["state"], let["state"]) == ("timeout", "completed")
    assert datetime.fromisoformat(killed["started"]) < end < datetime.fromisoformat(let["ended"])
    told = site.run("explain", str(killed["job"])).stdout
    assert "timeout (its reservation ended)" in told
    assert [path.name for path in site.folder.glob("done*")] == [f"done{let['job']}"]
    for made in (kills, lets):
        assert state(site, made["reservation"])["state"] == "ended"
    row = site.row(waits)
    assert (row["state"], row["reason"]) == ("queued", "reservation_wait")
    site.until(lambda: kept(cell) == {})
    assert site.stop() == 0
    site.replayed()
    assert "wrong" not in site.run("db", "check").stdout


def test_what_was_killed_at_its_end_while_no_daemon_was_there_is_out_of_time(
    over_cell: Site, cell: Cell
) -> None:
    """Grid Engine keeps no record of it: what is known is what was seen before."""
    site = over_cell
    made = site.json("reserve", "--size", "1", "--start", "+2s", "--duration", "8s")
    job = site.submit("--reservation", str(made["reservation"]), "--wrap", "sleep 60")
    site.until(lambda: site.row(job)["state"] == "running")
    started = site.row(job)["started"]
    site.stop(signal.SIGKILL)
    site.until(lambda: kept(cell) == {})
    site.start()
    [row] = site.until_ended(job)
    assert (row["state"], row["started"]) == ("timeout", started)
    assert "timeout (its reservation ended)" in site.run("explain", str(job)).stdout
    assert site.stop() == 0
    site.replayed()


def test_licences_that_the_cell_counts_are_kept_for_the_window_by_the_cell_itself(
    site: Site, cell: Cell
) -> None:
    python = cell.python(site.folder / "python")
    licences = '[[licence]]\nname = "mat"\ntotal = 3\n[[licence]]\nname = "nx"\ntotal = 3\n'
    more = "poll_interval = 0.5\nsettle = 1\n[cluster.map.licence]\nmat = 'matlab'\n"
    site.configure(licences + cell.table(python, more))
    site.start()
    window = ("reserve", "--size", "3", "--duration", "2m", "--deadline", "+130s")
    bare = site.json(*window[:2], "1", *window[3:])["reservation"]
    made = site.json(*window, "-L", "mat:2,nx")
    try:
        [id] = [k for k, name in kept(cell).items() if name.endswith(f"-r{made['reservation']}")]
        told = cell.run("qrstat", "-ar", id)
        assert re.search(r"resource_list +matlab=2\n", told)
        assert "mat:2 cannot be kept for it" in site.error(*window, "-L", "mat:2", code=3)
        site.until(lambda: state(site, made["reservation"])["state"] == "active")
        command = ("-b", "y", "-o", "/dev/null", "-j", "y", "true")
        cell.run("qsub", "-N", "outside", "-l", "matlab=2,h_rt=30", *command)
        work = ("-t", "1", "--wrap", "sleep 1")
        inside = [
            site.submit("--reservation", str(made["reservation"]), *words, *work)
            for words in (("-L", "mat"), ("-L", "mat:2,nx"), ("-n", "2", "-L", "mat"))
        ]
        barred = site.submit("--reservation", str(bare), "-L", "mat", *work)
        assert {row["state"] for row in site.until_ended(*inside)} == {"completed"}
        site.until(lambda: site.rows(barred)[0]["state"] == "rejected")
        told = site.run("story", str(barred)).stdout
        assert "1 matlab requested, but its reservation has 0" in told
        assert "outside" in cell.run("qstat", "-u", "*", "-s", "p")
        site.run("reservation", "cancel", str(made["reservation"]))
        site.until(lambda: "outside" not in cell.run("qstat", "-u", "*"))
    finally:
        cell.empty()
        for id in kept(cell):
            cell.run("qrdel", id)
    assert site.stop() == 0
    site.replayed()


def test_each_slot_has_its_share_of_the_memory_that_the_cell_counts(site: Site, cell: Cell) -> None:
    python = cell.python(site.folder / "python")
    site.configure(cell.table(python, f'memory = "{MEMORY}"\npoll_interval = 0.5\nsettle = 1\n'))
    site.start()
    soon = ("reserve", "--duration", "2m", "--deadline", "+4m", "--size")
    # of 64 GiB for 8 slots one job takes 40, and what is left is enough for 3
    start_outside(cell, "-l", f"{MEMORY}=40G,h_rt=300")
    try:
        assert "cell has 3 processors from " in site.error(*soon, "4", code=3)
        made = site.json(*soon, "3")
        assert made["state"] in ("bound", "active")
        told = cell.run("qrstat", "-ar", next(iter(kept(cell))))
        assert re.search(rf"resource_list +{MEMORY}=8192M\n", told)
        id = str(made["reservation"])
        site.until(lambda: state(site, made["reservation"])["state"] == "active")
        outside = site.submit("--mem", "1G", "-t", "1", "--wrap", "true")
        barred = site.submit("--reservation", id, "--mem", "25G", "-t", "1", "--wrap", "true")
        jobs = [
            site.submit("--reservation", id, *words, "-t", "1", "--wrap", "true")
            for words in (("--mem", "24G"), ("-n", "3", "--mem-per-cpu", "8G"), ())
        ]
        assert {row["state"] for row in site.until_ended(*jobs)} == {"completed"}
        site.until(lambda: site.rows(barred)[0]["state"] == "rejected")
        told = site.run("story", str(barred)).stdout
        assert "25600 MiB requested, but its reservation has 24576 MiB" in told
        [row] = site.rows(outside)
        assert row["started"] is None
        site.run("reservation", "cancel", id)
        assert site.until_ended(outside)[0]["state"] == "completed"
    finally:
        cell.empty()
        for id in kept(cell):
            cell.run("qrdel", id)


@pytest.fixture
def default_memory(cell: Cell) -> Iterator[None]:
    """A job that asks for no memory has 1 GiB, and the host has 4 for its 8 slots."""
    whole = cell.run("qconf", "-sc")
    host = re.sub(r"\\\n\s*", "", cell.run("qconf", "-se", cell.host))
    [values] = re.findall(r"(?m)^complex_values +(\S+)", host)
    load(cell, "-Mc", re.sub(rf"(?m)^({MEMORY} .*YES +)0( +0)", r"\g<1>1G\2", whole))
    few = re.sub(rf"{MEMORY}=[^,]+", f"{MEMORY}=4G", values)
    cell.run("qconf", "-rattr", "exechost", "complex_values", few, cell.host)
    yield
    cell.empty()
    for id in kept(cell):
        cell.run("qrdel", id)
    cell.run("qconf", "-rattr", "exechost", "complex_values", values, cell.host)
    load(cell, "-Mc", whole)


@pytest.mark.usefixtures("default_memory")
def test_jobs_that_ask_for_no_memory_have_their_default_in_a_reservation_too(
    site: Site, cell: Cell
) -> None:
    python = cell.python(site.folder / "python")
    site.configure(cell.table(python, f'memory = "{MEMORY}"\npoll_interval = 0.5\nsettle = 1\n'))
    site.start()
    soon = ("reserve", "--duration", "2m", "--deadline", "+4m", "--size")
    assert "cell has 4 processors from " in site.error(*soon, "8", code=3)
    other = ("-N", "others", "-u", cell.run("id", "-un").strip(), "-pe", "smp", "2", "-d", "600")
    cell.run("qrsub", *other)  # the qmaster takes the default for it
    assert "cell has 2 processors from " in site.error(*soon, "4", code=3)
    made = site.json(*soon, "2")
    site.until(lambda: state(site, made["reservation"])["state"] == "active")
    within = ("--reservation", str(made["reservation"]), "-t", "1")
    jobs = [site.submit(*within, "--wrap", "sleep 20") for _ in range(2)]
    site.until(lambda: {row["state"] for row in site.rows(*jobs)} == {"running"}, 15)
    site.run("cancel", *map(str, jobs))
    site.until_ended(*jobs)
    whole = site.submit(*within, "-n", "2", "--wrap", "true")
    assert site.until_ended(whole)[0]["state"] == "completed"


@pytest.fixture
def uncounted(cell: Cell) -> Iterator[None]:
    """h_vmem is a consumable, of which the host has no value."""
    whole = cell.run("qconf", "-sc")
    load(cell, "-Mc", re.sub(r"(?m)^(h_vmem .*<= +YES +)NO ", r"\1YES ", whole))
    yield
    cell.empty()
    for id in kept(cell):
        cell.run("qrdel", id)
    cell.run("qconf", "-rattr", "queue", "h_vmem", "INFINITY", "all.q")
    load(cell, "-Mc", whole)


@pytest.mark.parametrize(("limit", "memory"), [("INFINITY", "6G"), ("4G", "4G")])
@pytest.mark.usefixtures("uncounted")
def test_where_no_host_counts_memory_a_reservation_has_what_queues_give(
    site: Site, cell: Cell, limit: str, memory: str
) -> None:
    cell.run("qconf", "-rattr", "queue", "h_vmem", limit, "all.q")
    python = cell.python(site.folder / "python")
    site.configure(cell.table(python, 'memory = "h_vmem"\npoll_interval = 0.5\nsettle = 1\n'))
    site.start()
    made = site.json("reserve", "--size", "2", "--duration", "2m", "--deadline", "+4m")
    within = ("--reservation", str(made["reservation"]), "-t", "1", "--wrap", "true")
    jobs = [site.submit("--mem", memory, *within), site.submit("-n", "2", *within)]
    assert {row["state"] for row in site.until_ended(*jobs, patience=30)} == {"completed"}


@pytest.mark.usefixtures("halves")
def test_what_holds_memory_is_had_anew_where_its_queue_goes_down(site: Site, cell: Cell) -> None:
    python = cell.python(site.folder / "python")
    site.configure(cell.table(python, f'memory = "{MEMORY}"\npoll_interval = 0.5\nsettle = 1\n'))
    site.start()
    made = site.json("reserve", "--size", "4", "--start", "+1h", "--duration", "5m")
    id, [native] = made["reservation"], kept(cell)
    queue = queue_of(cell, native)
    cell.run("qmod", "-d", queue)
    try:
        site.until(lambda: native not in kept(cell))
        [other] = kept(cell)
        assert queue_of(cell, other) != queue
        told = cell.run("qrstat", "-ar", other)
        assert re.search(rf"resource_list +{MEMORY}=8192M\n", told)
        site.run("reservation", "cancel", str(id))
        site.until(lambda: kept(cell) == {})
    finally:
        cell.run("qmod", "-e", "*")
        for id in kept(cell):
            cell.run("qrdel", id)


def test_what_runs_keeps_its_slots_beyond_its_limit_as_the_qmaster_counts(
    site: Site, cell: Cell
) -> None:
    quick = cell.run("qconf", "-ssconf")
    set_scheduler(cell, re.sub(r"(?m)^params .*$", "params none", quick))  # a minute
    site.configure(cell.table(cell.python(site.folder / "python"), "poll_interval = 0.5\n"))
    site.start()
    try:
        begun = start_outside(cell, "-pe", "smp", "5", "-l", "h_rt=100")
        start_outside(cell, "-pe", "smp", "3")  # the queue would end it after a day
        told = site.error("reserve", "--size", "6", "--duration", "1m", "--deadline", "+9h", code=3)
        assert "cell has 5 processors from " in told
        made = site.json("reserve", "--size", "5", "--duration", "1m")
        assert (made["state"], made["cluster"]) == ("bound", "cell")
        assert datetime.fromisoformat(made["start"]) - begun == timedelta(seconds=160)
        assert len(kept(cell)) == 1
    finally:
        set_scheduler(cell, quick)
        cell.empty()
        for id in kept(cell):
            cell.run("qrdel", id)


def test_licences_are_promised_from_when_the_qmaster_counts_them_as_free(
    site: Site, cell: Cell
) -> None:
    quick = cell.run("qconf", "-ssconf")
    set_scheduler(cell, re.sub(r"(?m)^params .*$", "params none", quick))  # a minute
    python = cell.python(site.folder / "python")
    licence = f'[[licence]]\nname = "matlab"\ntotal = {TOKENS}\n'
    site.configure(licence + cell.table(python, "poll_interval = 0.5\nsettle = 1\n"))
    site.start()
    try:
        job = site.submit("-L", f"matlab:{TOKENS}", "-t", "2", "--wrap", "sleep 100")
        site.until(lambda: site.rows(job)[0]["state"] == "running")
        begun = datetime.fromisoformat(site.rows(job)[0]["started"])
        made = site.json("reserve", "--size", "1", "--duration", "1m", "-L", "matlab:2")
        assert (made["state"], made["cluster"]) == ("bound", "cell")
        waits = datetime.fromisoformat(made["start"]) - begun
        assert timedelta(seconds=180) <= waits <= timedelta(seconds=190)
        assert len(kept(cell)) == 1
    finally:
        set_scheduler(cell, quick)
        cell.empty()
        for id in kept(cell):
            cell.run("qrdel", id)


def start_outside(cell: Cell, *words: str) -> datetime:
    """When a job that metasched does not know has begun."""
    before = started(cell)
    cell.run("qsub", *words, "-b", "y", "-o", "/dev/null", "-j", "y", "sleep", "300")
    wait_until(lambda: started(cell).keys() > before.keys(), 20, "its start", str)
    now = started(cell)
    [id] = now.keys() - before.keys()
    return now[id]


def started(cell: Cell) -> dict[str, datetime]:
    told = cell.run("env", "TZ=UTC", "qstat", "-xml", "-u", "*")
    pairs = re.findall(r"<JB_job_number>(\d+)<.*?<JAT_start_time>([^<]+)<", told, flags=re.DOTALL)
    return {id: datetime.fromisoformat(f"{when}+00:00") for id, when in pairs}


def set_scheduler(cell: Cell, text: str) -> None:
    load(cell, "-Msconf", text)


def load(cell: Cell, option: str, text: str) -> None:
    """Have qconf read this."""
    (cell.folder / "loaded").write_text(text)
    cell.run("qconf", option, str(cell.folder / "loaded"))
