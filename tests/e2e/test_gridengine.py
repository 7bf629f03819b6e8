"""A real Grid Engine cell and a local cluster behind one daemon, through the command line."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import date, timedelta
from pathlib import Path

import pytest

from metasched.laboratory.simulate.accounting_history import read_accounting
from metasched.laboratory.simulate.submissions import array_arrivals
from tests.e2e.conftest import Site
from tests.harness.gridengine import Cell
from tests.harness.looks import looks

JOBS = 30
LOCAL = """
[[cluster]]
name = "left"
adapter = "local"
cpus = 4
poll_interval = 0.2
"""


@pytest.fixture
def over_cell(site: Site, gridengine_cell: Cell) -> Site:
    gridengine_cell.empty()
    python = gridengine_cell.python(site.folder / "python")
    site.configure(LOCAL + gridengine_cell.table(python, "poll_interval = 0.5\nsettle = 1\n"))
    site.start()
    return site


@pytest.mark.slow("a cell of few slots runs many jobs")
def test_jobs_run_exactly_once_each_and_report_their_exit_codes(over_cell: Site) -> None:
    run_log = over_cell.folder / "ran"
    script = over_cell.folder / "job.sh"
    script.write_text(f'#!/bin/sh\n#$ -l h_rt=60\necho $METASCHED_JOB_ID >> "{run_log}"\nexit $1\n')
    codes: dict[int, int] = {}
    for number in range(JOBS):
        code = (0, 3, 99, 100, 255, 0)[number % 6]
        options = ["--cluster", "cell"] if number % 6 in (2, 3) else []
        done = over_cell.run(
            "submit",
            "--json",
            "-n",
            str(1 + number % 4),
            *options,
            "-o",
            "/dev/null",
            script,
            str(code),
        )
        codes[json.loads(done.stdout)["job"]] = code
    rows = {row["job"]: row for row in over_cell.until_ended()}

    assert set(rows) == set(codes)
    assert Counter(run_log.read_text().split()) == Counter(map(str, codes))
    for job, code in codes.items():
        assert rows[job]["exit_code"] == code, rows[job]
        assert rows[job]["state"] == ("completed" if code == 0 else "failed")
        assert rows[job]["started"] <= rows[job]["ended"]
    assert {row["cluster"] for row in rows.values()} == {"left", "cell"}
    assert over_cell.stop() == 0
    over_cell.replayed()


@pytest.mark.slow("a job waits until it is pulled, and a full cell is emptied")
def test_pulled_from_the_full_cell_to_a_cluster_that_can_start_it(over_cell: Site) -> None:
    full = over_cell.submit("--wrap", "sleep 300", "-n", "8", "--cluster", "cell", "-t", "10")
    local = over_cell.submit("--wrap", "sleep 300", "-n", "4", "--cluster", "left", "-t", "60")
    over_cell.until(lambda: all(over_cell.row(j)["state"] == "running" for j in (full, local)))
    job = over_cell.submit("--wrap", "echo done", "-n", "4", "-t", "1")
    first = over_cell.until(lambda: over_cell.row(job)["cluster"])
    other = {"cell": local, "left": full}[first]
    over_cell.until(lambda: over_cell.row(job)["state"] == "pending")
    over_cell.run("cancel", str(other))
    [row] = over_cell.until_ended(job)
    assert (row["state"], row["exit_code"]) == ("completed", 0)
    assert row["cluster"] != first
    over_cell.run("cancel", str(full), str(local))
    assert {r["state"] for r in over_cell.until_ended(full, local)} == {"cancelled"}
    assert over_cell.stop() == 0
    over_cell.replayed()


def test_patterns_and_names_of_nodes(over_cell: Site) -> None:
    site = over_cell
    at_cell = ("--cluster", "cell")
    files = ("-o", f"{site.folder}/%A-%a-%12j-%J-%t.out")
    array = site.submit(*at_cell, "--array", "4-5", *files, "--wrap", "echo $METASCHED_TASK")
    site.until_ended(array)
    outputs = [
        site.folder / f"{array}-{index}-{number:012}-{number}-0.out"
        for index, number in ((4, array), (5, array + 1))
    ]
    texts = [output.read_text() for output in outputs]
    assert texts == ["4\n", "5\n"]
    assert site.json("output", f"{array}_5")["output"] == str(outputs[1])
    node = f"{array}_5"
    [row] = site.json("status", "--long", node)
    refused = site.error("submit", "--cluster", "cell", "--gres", "x:1", "--wrap", "x", code=3)
    assert re.search(rf"nodes have fewer than 1 x \(.*{re.escape(row['node_list'])}", refused)
    assert site.stop() == 0
    site.replayed()


@pytest.mark.slow("the accounting reports ends seconds later")
def test_jobs_that_their_owner_renames_are_neither_lost_nor_run_twice(
    over_cell: Site, gridengine_cell: Cell
) -> None:
    """`qalter -N` takes the tag off a job, while it waits and while it runs."""
    site, run_log, go_on = over_cell, over_cell.folder / "ran", over_cell.folder / "go-on"

    def submit(word: str, *options: str) -> int:
        script = f"echo {word} >> '{run_log}'; until [ -e '{go_on}' ]; do sleep 0.2; done"
        return site.submit("--wrap", script, "-t", "5", "--cluster", "cell", *options)

    def rename(job: int, name: str) -> None:
        gridengine_cell.run("qalter", "-N", name, site.row(job)["native_id"])

    def state(job: int) -> str:
        return str(site.row(job)["state"])

    running = submit("first")
    site.until(lambda: state(running) == "running")
    slots = str(site.cluster_rows()[-1]["cpus"])
    pending, cancelled = (submit(w, "-n", slots) for w in ("second", "third"))
    site.until(lambda: site.row(pending)["native_id"] and site.row(cancelled)["native_id"])
    site.until(lambda: state(pending) == state(cancelled) == "pending")
    name_of_another = gridengine_cell.run("qstat", "-xml", "-r", "-u", "*")
    tag = re.findall(rf"ms-{site.instance}-{cancelled}-\d+", name_of_another)[0]
    rename(running, "mine")
    rename(pending, tag)
    rename(cancelled, "mine")
    other = submit("fourth")  # shows that a listing has come since
    site.until(lambda: state(other) == "running")
    assert site.stop() == 0
    site.start()
    site.until(
        lambda: [state(j) for j in (running, pending, other)] == ["running", "pending", "running"]
    )
    site.run("cancel", str(cancelled))
    site.until(lambda: state(cancelled) == "cancelled")
    site.run("hold", str(pending))
    site.until(lambda: state(pending) == "held")
    site.run("release", str(pending))
    go_on.touch()
    ended = site.until_ended(running, pending, cancelled, other)
    assert [row["state"] for row in ended] == ["completed", "completed", "cancelled", "completed"]
    assert sorted(run_log.read_text().split()) == ["first", "fourth", "second"]
    assert site.stop() == 0
    site.replayed()


@pytest.mark.slow("three jobs of seconds, whose accounting comes after their ends")
def test_reports_agree_with_qacct(over_cell: Site, gridengine_cell: Cell) -> None:
    quick = ("--cluster", "cell", "-t", "5", "-o", "/dev/null", "--wrap")
    jobs = [
        over_cell.submit("-n", "2", *quick, "sleep 2"),
        over_cell.submit("-n", "1", *quick, "exit 3"),
        over_cell.submit("-n", "3", *quick, "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"),
    ]
    natives = [row["native_id"] for row in over_cell.until_ended(*jobs)]
    period = ("--since", "2d", "--until", (date.today() + timedelta(days=1)).isoformat())
    counted = over_cell.json("report", "use", "--by", "cluster", *period)["total"]

    def figures(native: str) -> dict[str, str]:
        lines = gridengine_cell.run("qacct", "-j", native).splitlines()
        return dict(line.split(maxsplit=1) for line in lines if len(line.split()) > 1)

    blocks = "".join(gridengine_cell.run("qacct", "-j", native) for native in natives)
    (over_cell.folder / "cell.txt").write_text(blocks)
    (over_cell.folder / "other.toml").write_text("pull = false\n")
    answer = over_cell.json("policy", "try", "other.toml", "--qacct", "cell.txt")
    assert (answer["jobs"], answer["left_out"]) == (3, {})
    records = [figures(native) for native in natives]
    seconds = [float(record["ru_wallclock"].rstrip("s")) for record in records]
    slots = [int(record["slots"]) for record in records]
    assert sorted(slots) == [1, 2, 3]
    assert (counted["jobs"], counted["completed"], counted["failed"]) == (3, 2, 1)
    # qacct rounds the wall clock of each job to whole seconds
    assert counted["elapsed"] == pytest.approx(sum(seconds), abs=len(jobs))
    allocated = sum(s * n for s, n in zip(seconds, slots, strict=True))
    assert counted["cpu_seconds"] == pytest.approx(allocated, abs=sum(slots))
    used = sum(float(record["cpu"].rstrip("s")) for record in records)
    assert counted["cpu_seconds_used"] == pytest.approx(used, abs=0.01)


def test_an_array_in_qacct_is_simulated_as_one(tmp_path: Path, gridengine_cell: Cell) -> None:
    gridengine_cell.empty()
    options = ("-N", "swept", "-b", "y", "-o", "/dev/null", "-j", "y", "-l", "h_rt=300")
    for indices in (["-t", "2-8:3"], []):
        gridengine_cell.run("qsub", "-sync", "y", *indices, *options, "true")
    # blocks may come after the end of their job, and without any qacct fails
    command = ("sh", "-c", "qacct -j swept || true")
    blocks = (gridengine_cell.run(*command) for _ in looks(60))
    path = tmp_path / "cell.txt"
    path.write_text(next(text for text in blocks if text.count("\ntaskid ") == 4))
    period = read_accounting([], [path], {})
    assert sorted(task.task for task in period.tasks) == [0, 2, 5, 8]
    [array] = array_arrivals(period.workload.entries).values()
    assert (array.job.array, array.job.held, array.job.time_limit) == ("2-8:3", False, 300.0)
