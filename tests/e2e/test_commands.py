"""Every command against a real daemon with two local clusters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.e2e.conftest import COMMAND, Site


def script(site: Site, text: str, name: str = "job.sh") -> Path:
    path = site.folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    return path


def test_submit_answers_at_once_and_wait_gives_the_jobs_own_code(running: Site) -> None:
    answer = running.json("submit", "--wrap", "exit 7")
    unknown = dict.fromkeys(("expected_start", "expected_early", "expected_late"))
    assert answer == {"job": 1, "priority": 1, "cluster": "left", **unknown}
    running.run("wait", "1", code=7)
    row = running.row(1)
    assert (row["state"], row["exit_code"], row["cluster"]) == ("failed", 7, "left")
    assert row["array"] is row["task"] is None
    assert row["submitted"] <= row["started"] <= row["ended"]
    assert row["submitted"].endswith("+00:00")
    running.run("submit", "--wait", "--wrap", "exit 3", code=3)
    running.run("submit", "--wait", "--wrap", "kill -9 $$", code=137)


def test_script_arguments_environment_directory_and_output(running: Site) -> None:
    work = running.folder / "a folder"
    work.mkdir()
    path = script(running, '#MS -o "out %j.txt" -J näme\npwd; echo "$MINE"; printf "<%s>" "$@"')
    done = running.run(
        "submit", "--wait", "-D", work, path, "one two", "drei", env={"MINE": "a 'b'\nc"}
    )
    assert done.stderr == ""
    expected = f"{work}\na 'b'\nc\n<one two><drei>"
    assert (work / "out 1.txt").read_text() == expected
    assert running.run("output", "1").stdout == expected
    assert running.row(1)["name"] == "näme"


def test_sbatch_directives_are_read_and_unknown_ones_named_once(running: Site) -> None:
    path = script(
        running,
        "#SBATCH --ntasks=2 --cpus-per-task=2\n#SBATCH -t 5 --mail-type=END\n"
        "#SBATCH --job-name=old\n#MS --name new\necho $METASCHED_CPUS",
    )
    done = running.run("submit", "--wait", path)
    [warning] = done.stderr.splitlines()
    assert warning.startswith("metasched: warning: ")
    assert "--mail-type" in warning
    assert "--ntasks" not in warning
    assert running.run("output", "1").stdout == "4\n"
    assert running.row(1)["name"] == "new"


def test_urgent_jobs_get_a_higher_priority(running: Site) -> None:
    plain = running.json("submit", "--hold", "--wrap", "true")
    urgent = running.json(
        "submit", "--hold", "--wrap", "true", "--urgency", "3", "-t", "10", "--deadline", "+11m"
    )
    assert urgent["priority"] > plain["priority"]
    explained = running.json("explain", str(urgent["job"]))
    parts = {p["heuristic"]: p["contribution"] for p in explained["parts"]}
    assert set(parts) == {"deadline", "licence", "user"}
    assert explained["reason"] == "held"


def test_hold_release_and_cancel_at_every_state(running: Site) -> None:
    held = running.submit("--hold", "--wrap", "true")
    assert running.row(held)["state"] == "held"
    running.run("release", str(held))
    assert running.until_ended(held)[0]["state"] == "completed"

    long = running.submit("--wrap", "sleep 300", "-n", "8")
    running.until(lambda: running.row(long)["state"] == "running")
    waiting = running.submit("--wrap", "true", "-n", "8")
    running.until(lambda: running.row(waiting)["state"] == "pending")
    running.run("hold", str(waiting))
    running.until(lambda: running.row(waiting)["state"] == "held")
    output = running.run("cancel", str(waiting), str(long))
    assert output.stderr == "" or "metasched" in output.stderr
    rows = running.until_ended(long, waiting)
    assert [row["state"] for row in rows] == ["cancelled", "cancelled"]
    running.run("wait", str(long), code=130)


def test_time_limit_ends_the_whole_tree_of_a_job(running: Site) -> None:
    job = running.submit("-t", "00:00:01", "--wrap", "sh -c 'sleep 299 & wait'")
    [row] = running.until_ended(job)
    assert row["state"] == "timeout"
    assert (
        "sleep 299"
        not in subprocess.run(
            ["ps", "-eo", "args"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    )


def test_story_lists_each_step_with_its_cause(running: Site) -> None:
    job = running.submit("--wrap", "true")
    running.until_ended(job)
    events = running.json("story", str(job))
    assert [e["to"] for e in events][:3] == ["queued", "dispatching", "pending"]
    assert events[-1]["to"] == "completed"
    assert all(e["time"] for e in events)
    assert events[1]["cause"] == "load and ordering"
    assert "dispatching" in running.run("story", str(job)).stdout


def test_explain_gives_the_cause_of_a_refusal(running: Site) -> None:
    job = running.submit("--wrap", "sleep 300", "-n", "6")
    running.until(lambda: running.row(job)["state"] == "running")
    explained = running.json("explain", str(job))
    verdicts = {c["cluster"]: c for c in explained["clusters"]}
    assert verdicts["left"]["eligible"]
    assert verdicts["left"]["chosen"]
    assert verdicts["right"]["reason"] == "no_cluster_fits"
    assert "4 processors" in verdicts["right"]["text"]
    running.run("cancel", str(job))


def test_explain_names_the_requirement_that_excludes_nodes(running: Site) -> None:
    job = running.submit("--wrap", "true", "-c", "6", "--hold")
    nodes = {c["cluster"]: c["nodes"] for c in running.json("explain", str(job))["clusters"]}
    assert nodes["left"]["text"] == ""
    [excluded] = nodes["right"]["excluded"]
    assert (excluded["requirement"], excluded["nodes"]) == ("cpus", 1)
    text = "1 of 1 nodes have fewer than 6 processors"
    assert f"right, partition local: {text}" in running.run("explain", str(job)).stdout
    running.run("cancel", str(job))
    refused = running.error("submit", "--wrap", "true", "--gres", "gpu:1", code=3)
    assert "left: no set of nodes has" in refused
    assert "(partition local: 1 of 1 nodes have fewer than 1 gpu (" in refused  # its name


def test_usage_of_an_ended_job(running: Site) -> None:
    work = "import time; data = bytearray(80 << 20); end = time.process_time() + 0.2"
    loop = "\nwhile time.process_time() < end: pass"
    job = running.submit("--wrap", f"{sys.executable} -c '{work}{loop}'")
    running.until_ended(job)
    usage = running.json("explain", str(job))["usage"]
    assert 0.2 <= usage["cpu_seconds"] < 30
    assert 80 <= usage["max_memory"] < 800
    assert usage["elapsed"] >= 0.2
    assert "of processor time, at most" in running.run("explain", str(job)).stdout
    [row] = running.json("status", str(job), "--long")
    assert (row["cpu_seconds"], row["max_memory"]) == (usage["cpu_seconds"], usage["max_memory"])
    header, line = running.run("status", str(job), "--long").stdout.splitlines()
    assert f"{usage['max_memory']}M" == line.split()[header.split().index("MAX_MEMORY")]


def test_clusters_lists_load_and_count_by_priority(running: Site) -> None:
    rows = running.json("clusters")
    assert [row["cluster"] for row in rows] == ["left", "right"]
    assert [row["cpus"] for row in rows] == [8, 4]
    assert all(len(row["load"]) == len(row["count"]) == 10 for row in rows)


def test_begin_time_is_kept(running: Site) -> None:
    job = running.submit("--begin", "+1h", "--wrap", "true")
    row = running.row(job)
    assert (row["state"], row["reason"]) == ("queued", "begin_time")
    running.run("modify", str(job), "--begin", "+1s")
    [row] = running.until_ended(job)
    assert row["state"] == "completed"
    assert row["started"] > row["submitted"]


def test_dry_run_stores_nothing(running: Site) -> None:
    running.run("submit", "--dry-run", "--wrap", "true")
    assert running.json("status", "--all") == []


def test_follow_an_output_to_its_end(running: Site) -> None:
    job = running.submit("--wrap", "for i in 1 2 3; do echo $i; sleep 0.3; done")
    assert running.run("output", str(job), "--follow").stdout == "1\n2\n3\n"


def test_ctrl_c_ends_a_wait_without_a_traceback(running: Site) -> None:
    job = running.submit("--wrap", "sleep 300")
    waiting = subprocess.Popen(
        [COMMAND, "wait", str(job)], env=running.environment, stderr=subprocess.PIPE, text=True
    )
    files = Path(f"/proc/{waiting.pid}/fd")
    running.until(  # the command has connected
        lambda: any("socket:" in os.path.realpath(f) for f in files.iterdir() if int(f.name) > 2)
    )
    waiting.send_signal(signal.SIGINT)
    _, output = waiting.communicate(timeout=60)
    assert waiting.returncode == 130
    assert "Traceback" not in output
    running.run("cancel", str(job))


def test_pulled_between_local_clusters(running: Site) -> None:
    """Both clusters are full; the pending job is pulled once the other cluster has room."""
    first = running.submit("--wrap", "sleep 300", "-n", "8", "--cluster", "left")
    right = running.submit("--wrap", "sleep 300", "-n", "4", "--cluster", "right")
    running.until(lambda: all(running.row(j)["state"] == "running" for j in (first, right)))
    job = running.submit("--wrap", "true", "-n", "2")
    running.until(lambda: running.row(job)["state"] == "pending")
    time.sleep(3.5)  # a new job is not pulled yet
    home = running.row(job)["cluster"]
    running.run("cancel", str(right if home == "left" else first))
    [row] = running.until_ended(job)
    assert row["state"] == "completed"
    assert row["cluster"] != home
    running.run("cancel", str(first), str(right))
    running.until_ended()
    running.stop()
    running.replayed()
