"""Arrays and dependencies through the command line, over local and real Slurm clusters."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from tests.e2e.conftest import Site
from tests.harness.slurm import SlurmSite

GATE = 'while [ ! -e "$PWD/go" ]; do sleep 0.05; done'


def states(site: Site, *jobs: int | str) -> Counter[str]:
    return Counter(row["state"] for row in site.rows(*jobs))


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[1:]]


def test_each_task_runs_once_and_writes_its_own_file(running: Site) -> None:
    script = running.folder / "step.sh"
    script.write_text(
        "#!/bin/sh\n#$ -t 1-9:2\n#$ -tc 3\n"
        "echo $METASCHED_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT to $SGE_TASK_LAST,"
        " job $SLURM_ARRAY_JOB_ID\n[ $PBS_ARRAY_INDEX != 5 ] || exit 4\n"
    )
    job = running.submit(script)
    assert running.run("wait", str(job), code=4).stderr == ""
    rows = running.json("status", str(job))
    assert [(r["task"], r["array"], r["exit_code"]) for r in rows] == [
        (task, "1-9:2%3", 4 if task == 5 else 0) for task in (1, 3, 5, 7, 9)
    ]
    for task in (1, 3, 5, 7, 9):
        expected = f"{task} of 5 to 9, job {job}\n"
        assert (running.folder / f"metasched-{job}_{task}.out").read_text() == expected
        assert running.run("output", f"{job}_{task}").stdout == expected
    assert f"name a task, as {job}_1" in running.error("output", str(job), code=2)
    # a table has one line for tasks with equal columns
    assert lines(running.run("wait", str(job), code=4).stdout) == [
        [f"{job}_[1,3,7,9]", "completed", "0"],
        [f"{job}_5", "failed", "4"],
    ]
    running.stop()
    running.replayed()


def test_the_limit_holds_over_all_clusters_and_across_a_crash(running: Site) -> None:
    # two clusters with 12 processors could run all ten tasks at once
    mark = 'echo $(ls running | wc -l) >> seen; rm "running/$METASCHED_TASK"'
    (running.folder / "running").mkdir()
    job = running.submit(
        "--array=1-10%2", "--wrap", f'touch "running/$METASCHED_TASK"; sleep 0.3; {mark}'
    )
    running.until(lambda: states(running, job)["completed"] >= 2)
    rows = running.json("status", str(job))
    waiting = [row for row in rows if row["state"] == "queued"]
    assert all(row["reason"] == "limit_array" for row in waiting)
    running.stop(signal.SIGKILL)
    running.start()
    running.run("wait", str(job))
    assert max(map(int, (running.folder / "seen").read_text().split())) <= 2
    assert states(running, job) == {"completed": 10}
    running.stop()
    running.replayed()


def test_tasks_are_cancelled_held_and_released_one_by_one(running: Site) -> None:
    job = running.submit("--array=1-6%1", "--chdir", running.folder, "--wrap", GATE)
    running.until(lambda: states(running, f"{job}_1")["running"])
    running.run("hold", f"{job}_[4-5]")
    running.run("cancel", f"{job}_3")
    assert states(running, job) == {"running": 1, "queued": 2, "held": 2, "cancelled": 1}
    assert [line[0] for line in lines(running.run("status", str(job)).stdout)] == [
        f"{job}_1",
        f"{job}_[2,6]",
        f"{job}_3",
        f"{job}_[4-5]",
    ]
    explanation = running.json("explain", f"{job}_6")
    assert explanation["reason"] == "limit_array"
    assert "1-6%1" in explanation["text"]
    assert "2 held" in running.json("explain", str(job))["text"]
    events = running.json("story", f"{job}_3")
    assert {event["task"] for event in events} == {3}
    running.run("release", f"{job}_5")
    (running.folder / "go").touch()
    running.run("wait", f"{job}_[1,2,5,6]")
    assert states(running, job) == {"completed": 4, "held": 1, "cancelled": 1}
    assert lines(running.run("cancel", str(job)).stdout)[-1][:2] == [f"{job}_4", "held"]
    running.run("wait", str(job), code=130)
    assert f"no job {job}_7" in running.error("status", f"{job}_7", code=5)
    assert "is no job" in running.error("cancel", f"{job}_[3-", code=2)


@pytest.mark.slow("2,000 tasks are listed and changed by ten commands, over a crash")
def test_requests_to_a_large_array_and_to_some_of_its_tasks(running: Site) -> None:
    """Requests to an array of 2,000 tasks, some of them named, a crash, and a whole replay."""
    (running.folder / "go").touch()
    options = ("--array=1-3999:2%1", "--hold", "--chdir", running.folder)
    job = running.submit(*options, "--wrap", GATE)
    running.run("cancel", f"{job}_[3,3999]")
    running.run("release", f"{job}_[1,7]")
    running.run("wait", f"{job}_[1,7]")
    running.run("modify", str(job), "--name", "renamed")
    running.stop(signal.SIGKILL)
    running.start()
    assert states(running, job) == {"completed": 2, "cancelled": 2, "held": 1996}
    indices = [row["task"] for row in running.rows(job)]
    assert indices == list(range(1, 4000, 2))
    assert {row["name"] for row in running.rows(job)} == {"renamed"}
    explanation = running.json("explain", str(job))
    assert (explanation["task"], explanation["state"]) == (5, "held")
    assert explanation["text"].startswith("Of 2000 tasks are 1996 held, ")
    (running.folder / "go").unlink()
    running.run("release", str(job))
    running.until(lambda: states(running, f"{job}_5")["running"])
    [waiting] = running.rows(f"{job}_2001")
    assert (waiting["state"], waiting["reason"]) == ("queued", "limit_array")
    assert running.json("explain", f"{job}_2001")["reason"] == "limit_array"
    running.run("hold", str(job))
    assert states(running, job) == {"completed": 2, "cancelled": 2, "running": 1, "held": 1995}
    dependent = running.submit("-d", f"afterany:{job}", "--wrap", "true")
    changed = running.json("cancel", f"{job}_[9-3997:2]")
    assert [row["task"] for row in changed] == list(range(9, 3998, 2))
    assert {(row["was"], row["state"]) for row in changed} == {("held", "cancelled")}
    assert states(running, job) == {"completed": 2, "cancelled": 1997, "running": 1}
    (running.folder / "go").touch()
    running.run("wait", str(dependent))
    story = [(e["from"], e["to"]) for e in running.json("story", f"{job}_3001")]
    assert story == [
        (None, "held"),
        ("held", "held"),
        ("held", "queued"),
        ("queued", "held"),
        ("held", "cancelled"),
    ]
    running.run("requeue", f"{job}_[11,3001]")
    running.run("wait", f"{job}_[11,3001]")
    assert states(running, job) == {"completed": 5, "cancelled": 1995}
    running.stop()
    running.replayed()
    running.run("db", "check")


def test_a_chain_of_dependencies(running: Site) -> None:
    first = running.submit("--chdir", running.folder, "--wrap", f"{GATE}; exit $(cat go)")
    good = running.submit("-d", f"afterok:{first}", "--wrap", "true")
    bad = running.submit("-d", f"afternotok:{first}", "--wrap", "true")
    on_both = running.submit("-d", f"afterok:{good},afterany:{first}", "--wrap", "true")
    either = running.submit("-d", f"afterok:{good}?afterok:{bad}", "--wrap", "true")
    on_failure = running.submit(
        "-d", f"afterok:{good}", "--kill-on-invalid-dep=yes", "--wrap", "true"
    )
    rows = running.json("status", *map(str, (good, bad, on_both, either, on_failure)))
    assert {(row["state"], row["reason"]) for row in rows} == {("queued", "dependency")}
    assert f"afterok:{first} is not met yet" in running.json("explain", str(good))["text"]
    running.stop()
    running.start()
    (running.folder / "go").write_text("3")
    running.run("wait", str(first), code=3)
    running.run("wait", str(bad))
    running.run("wait", str(either))
    # the job stays queued, and the dependency that can never be met is reported
    explanation = running.json("explain", str(good))
    assert (explanation["state"], explanation["reason"]) == ("queued", "dependency")
    assert f"afterok:{first} can never be met: {first} ended without success" in explanation["text"]
    assert states(running, on_both, on_failure) == {"queued": 2}
    running.run("cancel", str(good))
    running.run("wait", str(on_failure), code=130)
    assert f"afterok:{good} can never be met" in running.json("story", str(on_failure))[-1]["cause"]
    running.run("cancel", str(on_both))
    late = running.submit("-d", f"afterany:{on_failure}:{first},afterok:{bad}", "--wrap", "true")
    running.run("wait", str(late))
    running.stop()
    running.replayed()


def test_task_by_task_and_one_at_a_time(running: Site) -> None:
    fails = running.folder / "fails"
    first = running.submit(
        *("--array=1-3", "-o", "/dev/null", "--chdir", running.folder),
        *("--wrap", f'{GATE}; [ "$SLURM_ARRAY_TASK_ID" != 2 ]'),
    )
    second = running.submit(
        "--array=1-3", "-d", f"aftercorr:{first}", "-o", "/dev/null", "--wrap", f"touch {fails}.$$"
    )
    solo = running.submit("--name", "solo", "-d", f"after:{first}", "--wrap", "true")
    next_one = running.submit("--name", "solo", "-d", "singleton", "--wrap", "true")
    running.run("wait", str(solo))  # `first` has started but not ended
    running.run("wait", str(next_one))
    assert states(running, second) == {"queued": 3}
    (running.folder / "go").touch()
    running.run("wait", str(first), code=1)
    running.run("wait", f"{second}_1", f"{second}_3")
    assert states(running, f"{second}_2") == {"queued": 1}
    assert f"aftercorr:{first} can never be met" in running.json("explain", f"{second}_2")["text"]
    message = running.error(
        "submit", "--array=3-4", "-d", f"aftercorr:{first}", "--wrap", "true", code=2
    )
    assert f"job {first} has no task 4" in message


def test_what_makes_no_sense_is_refused(shared: Site) -> None:
    payload = ("--wrap", "true")
    for dependency in ("afterok:999", "afterany:999_3", "singleton,after:999+5"):
        message = shared.error("submit", "-d", dependency, *payload, code=5)
        assert "no job 999" in message
    job = shared.submit("--hold", *payload)
    assert f"no job {job}_3" in shared.error("submit", "-d", f"afterok:{job}_3", *payload, code=5)
    message = shared.error("submit", "--array=1-9", "--strict", "-o", "one.txt", *payload, code=2)
    assert "all tasks write to the same file" in message
    shared.run("cancel", str(job))


def test_one_array_over_two_slurm_clusters_and_this_host(site: Site, slurm_site: SlurmSite) -> None:
    tasks = 24
    for cluster in slurm_site:
        cluster.empty()
    clusters = "".join(
        slurm_site[name].table("settle = 1.0\npoll_interval = 0.3\n") for name in ("alpha", "beta")
    )
    local_table = '[[cluster]]\nname = "here"\nadapter = "local"\ncpus = 16\npoll_interval = 0.3\n'
    site.configure(clusters + local_table)
    site.start()
    out = site.folder / "out"
    out.mkdir()
    (site.folder / "running").mkdir()
    job = site.submit(
        *(f"--array=1-{tasks}%6", "-c", "8", "-t", "5", "-o", f"{out}/%x-%A_%a", "--name", "wide"),
        *("--chdir", site.folder, "--wrap"),
        'touch "running/$SLURM_ARRAY_TASK_ID"; sleep 0.5; ls running | wc -l >> seen; '
        'rm "running/$SLURM_ARRAY_TASK_ID"; echo $METASCHED_CLUSTER $SLURM_ARRAY_JOB_ID '
        "$SLURM_ARRAY_TASK_ID $SGE_TASK_FIRST-$SGE_TASK_LAST $PBS_ARRAYID",
    )
    after = site.submit("-d", f"afterok:{job}", "-t", "5", "--wrap", "true")
    rows = site.until_ended(job, after)
    assert {row["state"] for row in rows} == {"completed"}
    assert all(row["started"] <= rows[-1]["started"] for row in rows[:-1])
    assert {row["cluster"] for row in rows[:-1]} == {"alpha", "beta", "here"}
    for row in rows[:-1]:
        text = (out / f"wide-{job}_{row['task']}").read_text()
        task = row["task"]
        assert text == f"{row['cluster']} {job} {task} 1-{tasks} {task}\n"
    assert max(map(int, (site.folder / "seen").read_text().split())) <= 6
    site.stop()
    site.replayed()
