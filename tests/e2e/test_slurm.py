"""Two real Slurm clusters behind one daemon, through the command line."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest

from tests.conftest import require
from tests.e2e.conftest import Site
from tests.harness.slurm import ClusterSpec, SlurmSite, missing

JOBS = 200


@pytest.mark.slow("200 jobs run")
def test_200_jobs_run_once_each_on_the_cluster_that_the_core_chose(over_slurm: Site) -> None:
    run_log = over_slurm.folder / "ran"
    script = over_slurm.folder / "job.sh"
    script.write_text(f'#!/bin/sh\n#SBATCH -t 1\necho $METASCHED_JOB_ID >> "{run_log}"\nexit $1\n')

    def submit(number: int) -> tuple[int, int, str]:
        code = number % 5 if number % 3 == 0 else 0
        options = ["-n", str(1 + number % 8), "--urgency", str(number % 4)]
        if number % 4 == 0:
            options += ["--deadline", f"+{number + 60}s"]
        done = over_slurm.run("submit", "--json", *options, "-o", "/dev/null", script, str(code))
        answer = json.loads(done.stdout)
        return answer["job"], code, answer["cluster"]

    with ThreadPoolExecutor(4) as several:
        submitted = list(several.map(submit, range(JOBS)))
    rows = {row["job"]: row for row in over_slurm.until_ended()}

    assert sorted(rows) == sorted(job for job, _, _ in submitted)
    assert Counter(run_log.read_text().split()) == Counter(str(job) for job in rows)
    for job, code, _ in submitted:
        assert rows[job]["exit_code"] == code, rows[job]
        assert rows[job]["state"] == ("completed" if code == 0 else "failed")
        assert rows[job]["native_id"]
        assert rows[job]["started"] <= rows[job]["ended"]
    clusters = Counter(row["cluster"] for row in rows.values())
    assert set(clusters) == {"alpha", "beta"}
    assert over_slurm.stop() == 0
    over_slurm.replayed()


def test_life_of_a_job_on_slurm(over_slurm: Site) -> None:
    job = over_slurm.submit("--wrap", "echo hello; sleep 600", "-t", "10", "--cluster", "beta")
    over_slurm.until(lambda: over_slurm.row(job)["state"] == "running")
    assert over_slurm.row(job)["cluster"] == "beta"
    over_slurm.until(lambda: over_slurm.run("output", str(job)).stdout == "hello\n")
    over_slurm.run("cancel", str(job))
    [row] = over_slurm.until_ended(job)
    assert row["state"] == "cancelled"
    events = [e["event"] for e in over_slurm.json("story", str(job))]
    assert events[-1] == "kill"


def test_hold_takes_a_pending_job_back_and_release_sends_it_again(over_slurm: Site) -> None:
    full = over_slurm.submit("--wrap", "sleep 600", "-n", "24", "--cluster", "beta")
    over_slurm.until(lambda: over_slurm.row(full)["state"] == "running")
    waiting = over_slurm.submit("--wrap", "true", "-n", "8", "--cluster", "beta", "-t", "5")
    over_slurm.until(lambda: over_slurm.row(waiting)["reason"].startswith("manager:"))
    over_slurm.run("hold", str(waiting))
    over_slurm.until(lambda: over_slurm.row(waiting)["state"] == "held")
    over_slurm.run("cancel", str(full))
    over_slurm.until_ended(full)
    assert over_slurm.row(waiting)["state"] == "held"
    over_slurm.run("release", str(waiting))
    [row] = over_slurm.until_ended(waiting)
    assert (row["state"], row["exit_code"]) == ("completed", 0)


def test_the_managers_expected_start_is_explained_and_makes_no_story(
    over_slurm: Site, slurm_site: SlurmSite
) -> None:
    full = over_slurm.submit("--wrap", "sleep 600", "-n", "24", "--cluster", "beta", "-t", "10")
    over_slurm.until(lambda: over_slurm.row(full)["state"] == "running")
    job = over_slurm.submit("--wrap", "true", "-n", "8", "--cluster", "beta", "-t", "5")
    first = over_slurm.until(lambda: over_slurm.row(job)["expected_start"])
    end = datetime.fromisoformat(over_slurm.row(full)["started"]) + timedelta(minutes=10)
    assert abs(datetime.fromisoformat(first) - end) < timedelta(minutes=2)
    explanation = over_slurm.json("explain", str(job))
    assert explanation["expected_start"] == first
    text = f"beta expects it to start at {first} (reported at {explanation['expected_told']})."
    assert explanation["text"].endswith(text)
    story = over_slurm.json("story", str(job))
    native = over_slurm.row(full)["native_id"]
    slurm_site["beta"].run("scontrol", "update", f"jobid={native}", "timelimit=30")
    over_slurm.until(lambda: (over_slurm.row(job)["expected_start"] or first) > first)
    assert over_slurm.json("story", str(job)) == story
    over_slurm.run("cancel", str(full))
    [row] = over_slurm.until_ended(job)
    assert row["expected_start"] is None


@pytest.mark.slow("fills two clusters, and waits until a job is pulled")
def test_pulled_from_a_full_cluster_to_the_one_that_can_start_it(
    over_slurm: Site, slurm_site: SlurmSite
) -> None:
    def busy(name: str, *nodes: str) -> None:
        slurm_site[name].run("sbatch", "-t", "30", *nodes, "--exclusive", "--wrap", "sleep 600")

    busy("alpha", "-N4")
    busy("beta", "-N3")
    over_slurm.until(lambda: all(c["cpus"] == c["used"] for c in over_slurm.cluster_rows()))
    job = over_slurm.submit("--wrap", "sleep 1", "-n", "8", "-t", "2")
    first = over_slurm.until(
        lambda: over_slurm.row(job)["reason"].startswith("manager:") and over_slurm.row(job)
    )["cluster"]
    other = "beta" if first == "alpha" else "alpha"
    slurm_site[other].run("scancel", "--name=wrap", "--state=RUNNING")
    [row] = over_slurm.until_ended(job)
    assert (row["state"], row["cluster"]) == ("completed", other)
    events = over_slurm.json("story", str(job))
    assert [e["to"] for e in events if e["event"] == "withdraw"] == ["queued"]
    assert over_slurm.stop() == 0
    over_slurm.replayed()


@pytest.mark.slow("observes for six seconds that a job is not pulled, then waits until it is")
def test_nothing_is_pulled_into_a_window_that_is_to_come(
    over_slurm: Site, slurm_site: SlurmSite
) -> None:
    """Free nodes have maintenance in 10 minutes; only jobs that end before it are pulled."""

    def busy(name: str, nodes: int) -> None:
        cluster = slurm_site[name]
        cluster.run("sbatch", "-t", "60", f"-N{nodes}", "--exclusive", "--wrap", "sleep 600")

    busy("alpha", 4)
    busy("beta", 3)
    over_slurm.until(lambda: all(c["cpus"] == c["used"] for c in over_slurm.cluster_rows()))
    long, short = (over_slurm.submit("--wrap", "sleep 1", "-n", "8", "-t", t) for t in ("30", "2"))
    first = over_slurm.until(
        lambda: over_slurm.row(long)["reason"].startswith("manager:") and over_slurm.row(long)
    )["cluster"]
    other = slurm_site["beta" if first == "alpha" else "alpha"]
    other.run(
        *("scontrol", "create", "reservation", "ReservationName=care", "StartTime=now+10minutes"),
        *("Duration=60", "Nodes=ALL", "Users=root", "Flags=MAINT,IGNORE_JOBS"),
    )
    try:
        other.run("scancel", "--name=wrap", "--state=RUNNING")
        [row] = over_slurm.until_ended(short)
        assert (row["state"], row["cluster"]) == ("completed", other.name)
        # longer than a pull, which the next poll of the free cluster would request
        for _ in range(24):
            time.sleep(0.25)
            assert over_slurm.row(long)["cluster"] == first
    finally:
        other.run("scontrol", "delete", "ReservationName=care")
    [row] = over_slurm.until_ended(long)
    assert (row["state"], row["cluster"]) == ("completed", other.name)


@pytest.mark.slow("boots a cluster, and waits until it has forgotten an ended job")
def test_jobs_that_ended_and_were_forgotten_while_the_daemon_was_down(
    site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if (reason := missing()) is not None:
        require("slurm", reason)
    folder = tmp_path_factory.mktemp("forgetful")
    completions = folder / "completions"
    settings = ("MinJobAge=2", "JobCompType=jobcomp/filetxt", f"JobCompLoc={completions}")
    with SlurmSite(folder, [ClusterSpec("gamma", "g", 1, 4, settings=settings)]) as slurm:
        gamma = slurm["gamma"]
        site.configure(gamma.table("poll_interval = 1\nsettle = 1\n"))
        site.start()
        go = site.folder / "go"
        job = site.submit("--wrap", f'while [ ! -e "{go}" ]; do sleep 0.05; done; exit 7')
        site.until(lambda: site.row(job)["state"] == "running")
        site.stop(signal.SIGKILL)
        go.touch()
        site.until(lambda: gamma.run("squeue", "-h", "-t", "all") == "" and completions.exists())
        site.start()
        [row] = site.until_ended(job)
        assert (row["state"], row["exit_code"]) == ("failed", 7)
        causes = [line["cause"] for line in site.json("story", str(job))]
        assert "found in the manager's accounting" in causes
        assert site.json("clusters")[0]["records"].startswith("jobcomp/filetxt")
        assert site.stop() == 0
        site.replayed()


@pytest.mark.slow("empties two clusters; jobs wait until a poll shows a changed node")
def test_a_node_locked_licence_is_used_on_its_machine_only(
    site: Site, slurm_site: SlurmSite
) -> None:
    alpha, *_ = clusters = list(slurm_site)
    for cluster in clusters:
        cluster.empty()
    locked = alpha.nodes[1]
    site.configure(
        "".join(c.table("poll_interval = 1\n") for c in clusters),
        '[[licence]]\nname = "nx"\ntotal = 2\nmachines = { alpha = "cad" }\n',
    )
    site.start()
    arguments = ("-L", "nx", "-t", "5", "--wrap", "echo $SLURMD_NODENAME")
    assert "no set of nodes has" in site.error(
        "submit", *arguments, code=3
    )  # no node has "cad" yet
    try:
        for parameter in ("AvailableFeatures", "ActiveFeatures"):
            alpha.run("scontrol", "update", f"NodeName={locked}", f"{parameter}=any,cad")
        jobs = [site.until(lambda: site.submit(*arguments)), site.submit(*arguments)]
        for row in site.until_ended(*jobs):
            assert (row["state"], row["cluster"]) == ("completed", "alpha")
            assert site.run("output", str(row["job"])).stdout == f"{locked}\n"
    finally:
        for parameter in ("ActiveFeatures", "AvailableFeatures"):
            alpha.run("scontrol", "update", f"NodeName={locked}", f"{parameter}=any")


@pytest.mark.slow("five jobs, and five counts of licences that polls must see")
def test_licences_that_slurm_counts_too_are_asked_for_there(
    site: Site, slurm_site: SlurmSite
) -> None:
    """metasched leases five tokens; alpha counts three of them, beta counts none.

    Tokens that others use on alpha are not free for beta, either.
    """
    for cluster in slurm_site:
        cluster.empty()
    site.configure(
        "".join(c.table("poll_interval = 1\n") for c in slurm_site),
        '[[licence]]\nname = "matlab"\ntotal = 5\n',
    )
    site.start()

    def has_counts(**on_alpha: int) -> bool:
        [row] = site.json("licences")
        [manager] = row["managers"]
        assert row["outside"] == manager["others"]
        expected = {"cluster": "alpha", "total": 3, "used": 0, "others": 0} | on_alpha
        return bool(manager.pop("observed")) and manager == expected

    site.until(has_counts)
    arguments = ("-L", "matlab:4", "--cluster", "alpha", "--wrap", "true")
    assert "its manager counts 3 matlab in all, the job requests 4" in site.error(
        "submit", *arguments, code=3
    )
    elsewhere = site.submit("-L", "matlab:4", "--wrap", "true")
    assert site.until_ended(elsewhere)[0]["cluster"] == "beta"

    holder = site.submit("-L", "matlab:2", "--cluster", "alpha", "--wrap", "sleep 600")
    site.until(lambda: has_counts(used=2))
    assert "Used=2" in slurm_site["alpha"].run("scontrol", "-o", "show", "licenses")
    waiting = site.submit("-L", "matlab:2", "--cluster", "alpha", "--wrap", "true")
    site.until(lambda: site.row(waiting)["reason"] == "licence_busy")
    assert "its manager counts 2 of 3 matlab as used" in site.run("explain", str(waiting)).stdout
    assert "it gives out 3, there are 5" in site.run("doctor").stdout
    outside_job = ("sbatch", "--parsable", "-L", "matlab:1", "--wrap", "sleep 600")
    native = slurm_site["alpha"].run(*outside_job).strip()
    site.until(lambda: has_counts(used=3, others=1))
    assert "1 are used there outside metasched" in site.run("doctor").stdout
    on_beta = site.submit("-L", "matlab:3", "--cluster", "beta", "--wrap", "true")
    assert site.row(on_beta)["reason"] == "licence_busy"
    explanation = site.run("explain", str(on_beta)).stdout
    assert "matlab: 3 wanted, 2 of 5 free; 2 of matlab with job" in explanation
    assert "1 of matlab in use by others" in explanation
    slurm_site["alpha"].run("scancel", native)
    site.until_ended(on_beta)
    site.run("cancel", str(holder))
    assert [row["state"] for row in site.until_ended(waiting, on_beta)] == ["completed"] * 2
    site.stop()
    site.replayed()


def test_slurm_is_asked_for_the_chosen_licence(site: Site, slurm_site: SlurmSite) -> None:
    alpha = slurm_site["alpha"]
    alpha.empty()
    pools = "".join(
        f'[[licence]]\nname = "{name}"\ntotal = {total}\n'
        for name, total in (("octave", 1), ("matlab", 3))
    )
    site.configure(alpha.table("poll_interval = 1\n"), pools)
    site.start()
    site.until(lambda: all(row["managers"] for row in site.json("licences")[:1]))
    script = "echo $METASCHED_LICENCES $SLURM_JOB_LICENSES; sleep 600"
    options = ("-L", "octave|matlab:2", "-o", "%j.out", "--wrap", script)
    jobs = [site.submit(*options) for _ in range(2)]
    site.until(lambda: all(site.row(job)["state"] == "running" for job in jobs))
    natives = [
        alpha.run("scontrol", "-o", "show", "job", site.row(job)["native_id"]) for job in jobs
    ]
    assert ["Licenses=(null)" in natives[0], "Licenses=matlab:2" in natives[1]] == [True, True]
    outputs = [site.folder / f"{job}.out" for job in jobs]
    site.until(lambda: all(output.read_text() for output in outputs))
    assert [output.read_text() for output in outputs] == [
        *("octave:1 octave:1\n", "matlab:2 matlab:2\n")
    ]
    assert site.stop() == 0
    site.replayed()


def test_nodes_are_named(over_slurm: Site, slurm_site: SlurmSite) -> None:
    site, alpha = over_slurm, slurm_site["alpha"]
    refused = site.error("submit", "--gres", "gpu:3", "--cluster", "alpha", "--wrap", "x", code=3)
    assert "4 of 4 nodes have fewer than 3 gpu (a[1-3],a4)" in refused
    alpha.run("scontrol", "update", "NodeName=a2", "State=DRAIN", "Reason=test")
    try:
        options = ("--cluster", "alpha", "--nodes", "4", "--wrap", "true")
        waiting = site.submit(*options)

        def excluded() -> list[dict[str, object]]:
            [verdict] = [
                c for c in site.json("explain", str(waiting))["clusters"] if c["cluster"] == "alpha"
            ]
            return list(verdict["nodes"]["excluded"])

        site.until(lambda: [(e["requirement"], e["names"]) for e in excluded()] == [("up", "a2")])
        assert "1 of 4 nodes are down or drained (a2)" in site.run("explain", str(waiting)).stdout
        running = site.submit("--cluster", "alpha", "--nodes", "2", "--wrap", "sleep 600")
        site.until(lambda: site.row(running)["state"] == "running")
        shown = site.run("status", str(running)).stdout
        nodes = site.details(running)["node_list"]
        assert nodes in ("a[1,3]", "a[1,4]", "a[3-4]")
        assert f"alpha {nodes}" in shown
        columns = site.run("status", "--format", "job,node_list", str(running)).stdout.split()
        assert columns == ["JOB", "NODE_LIST", str(running), nodes]
    finally:
        alpha.run("scontrol", "update", "NodeName=a2", "State=RESUME")
    site.run("cancel", str(waiting), str(running))
    site.until_ended(waiting, running)
    assert site.stop() == 0
    site.replayed()
