"""The drop-in commands beside jobs that metasched did not send, on two real Slurm clusters."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import metasched
from tests.conftest import require
from tests.e2e.conftest import Site
from tests.harness.slurm import ALPHA, BETA, SlurmCluster, SlurmSite, accounting_missing, missing

COMMANDS = Path(metasched.__file__).parent / "drop_in/slurm"
FIRST_ID = 100_000_001
SLEEP = ("-o", "/dev/null", "--wrap", "sleep 600")
UNKNOWN = (
    "squeue: error: No cluster 'gamma' known by database.\n"
    "squeue: error: 'gamma' can't be reached now, or it is an invalid entry for --cluster.  "
    "Use 'sacctmgr list clusters' to see available clusters.\n"
)


class Clusters:
    """Slurm's alpha and beta, `north` and `south` in metasched; alpha is the host's default."""

    def __init__(self, site: Site, slurm: SlurmSite) -> None:
        self.site, self.alpha, self.beta = site, slurm["alpha"], slurm["beta"]

    def call(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a drop-in command."""
        name, *rest = arguments
        config = {"SLURM_CONF": self.alpha.environment["SLURM_CONF"]}
        return subprocess.run(
            [*self.alpha.inside, COMMANDS / name, *rest],
            env=self.site.environment | config | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def lines(self, *arguments: str, **variables: str) -> list[str]:
        """Return what a command prints that succeeds without a warning."""
        done = self.call(*arguments, **variables)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout.splitlines()

    def submit(self, cluster: str, *options: str) -> int:
        """Submit a job of metasched; return its id once it runs."""
        job = self.site.submit("--cluster", cluster, *options, *SLEEP)
        self.site.until(lambda: self.site.rows(job)[0]["state"] == "running")
        return job

    def native_id(self, job: int) -> str:
        native_id: str = self.site.rows(job)[0]["native_id"]
        return native_id


@pytest.fixture(scope="module")
def slurm(common_folder: Path) -> Iterator[SlurmSite]:
    if (reason := missing() or accounting_missing()) is not None:
        require("slurm", reason)
    with SlurmSite(common_folder / "native-slurm", [ALPHA, BETA], accounting=True) as booted:
        yield booted


@pytest.fixture
def clusters(site: Site, slurm: SlurmSite) -> Iterator[Clusters]:
    for cluster in slurm:
        cluster.empty()
    tables = "".join(
        cluster.table("poll_interval = 1\nsettle = 1\n").replace(f'"{cluster.name}"', f'"{name}"')
        for name, cluster in (("north", slurm["alpha"]), ("south", slurm["beta"]))
    )
    site.before = slurm["alpha"].inside
    site.configure(tables, extra=f"first_id = {FIRST_ID}\n")
    site.start()
    yield Clusters(site, slurm)
    for cluster in slurm:
        cluster.empty()


def native(cluster: SlurmCluster, name: str, *options: str) -> str:
    """Submit a held job past metasched; return its id."""
    return cluster.run("sbatch", "--parsable", "-J", name, "--hold", *options, *SLEEP).strip()


@pytest.mark.slow("boots two clusters with slurmdbd, and runs ten commands over both")
def test_squeue_lists_native_jobs_by_cluster(clusters: Clusters) -> None:
    first = native(clusters.alpha, "first")
    array = native(clusters.beta, "second", "--array", "1-3", "--comment", "ms-other-1-1")
    north, south = clusters.submit("north"), clusters.submit("south", "-J", "own")
    own = [f"{north} wrap", f"{south} own"]
    others = [f"{first} first", f"{array}_[1-3] second"]
    listed = ("squeue", "-h", "-o", "%i %j")
    assert clusters.lines(*listed) == own + others
    assert clusters.lines(*listed, METASCHED_NATIVE_JOBS="0") == own
    assert clusters.lines(*listed, "-n", "second,own") == [own[1], others[1]]
    assert clusters.lines(*listed, "-t", "R") == own
    assert clusters.lines(*listed, "-u", "nobody") == []
    assert clusters.lines(*listed, "-r")[3:] == [f"{array}_{index} second" for index in (1, 2, 3)]
    names = clusters.lines("squeue", "-h", "-O", "cluster:6,name:")
    assert [line.split() for line in names] == [
        *(["north", "wrap"], ["south", "own"], ["north", "first"], ["south", "second"])
    ]
    tables = clusters.call("squeue").stdout.split("\n\n")
    assert [table.split()[:2] for table in tables] == [
        *(["JOBID", "PARTITION"], ["CLUSTER:", "north"], ["CLUSTER:", "south"])
    ]
    assert all("JOBID PARTITION     NAME" in table for table in tables)


def test_squeue_of_a_cluster(clusters: Clusters) -> None:
    job = native(clusters.beta, "b")
    native(clusters.alpha, "a")
    south = clusters.submit("south")
    for name in ("south", "beta", "BETA"):
        listed = clusters.lines("squeue", "-M", name, "-o", "%i")
        assert listed == ["CLUSTER: south", "JOBID", str(south), job]
    assert clusters.lines("squeue", "-h", "-o", "%i", SLURM_CLUSTERS="south") == [str(south), job]
    named = clusters.lines("squeue", "-h", "-M", "south", "-j", f"{job},{south}", "-o", "%i")
    assert named == [str(south), job]
    everywhere = clusters.lines("squeue", "-h", "-M", "all", "-o", "%j")
    assert everywhere == ["a", "wrap", "b"]
    missing = clusters.call("squeue", "-M", "gamma")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == UNKNOWN
    # as the real command, which asks slurmdbd
    assert clusters.call("squeue", "-M", "gamma", METASCHED_BYPASS="1").stderr == UNKNOWN


def test_a_native_id_is_that_of_the_hosts_default_cluster(clusters: Clusters) -> None:
    first = native(clusters.alpha, "on-alpha")
    own = clusters.submit("north")
    assert clusters.lines("squeue", "-h", "-j", first, "-o", "%i %j") == [f"{first} on-alpha"]
    both = clusters.lines("squeue", "-h", "-j", f"{own},{first}", "-o", "%i")
    assert both == [str(own), first]
    # a job of metasched has two ids
    sent = clusters.native_id(own)
    assert clusters.lines("squeue", "-h", "-j", sent, "-o", "%i") == [sent]
    absent = clusters.call("squeue", "-h", "-j", "99999")
    assert (absent.returncode, absent.stdout) == (1, "")
    assert absent.stderr == "slurm_load_jobs error: Invalid job id specified\n"
    named = clusters.call("squeue", "-h", "-M", "south", "-j", "99999")
    assert (named.returncode, named.stdout) == (1, "")
    assert "Invalid job id specified" in named.stderr


@pytest.mark.slow("commands wait for a stopped controller until their time limits")
def test_a_dead_controller_hides_no_other_jobs(clusters: Clusters) -> None:
    north = clusters.submit("north")
    job = native(clusters.beta, "b")
    listed = ("squeue", "-h", "-o", "%i")
    assert clusters.lines(*listed) == [str(north), job]
    os.kill(clusters.alpha.controller, 19)  # SIGSTOP: connections are accepted and not served
    try:
        begun = time.monotonic()
        done = clusters.call(*listed)
        assert time.monotonic() - begun < 9
        assert (done.returncode, done.stdout.split()) == (0, [str(north), job])
        problem = "squeue: warning: native jobs are not listed, cluster north: "
        assert done.stderr.startswith(problem)
        clusters.site.until(lambda: clusters.site.cluster_rows()[0]["state"] != "up")
        done = clusters.call(*listed)  # it is known to be down
        assert (done.returncode, done.stdout.split()) == (0, [str(north), job])
        assert done.stderr == f"{problem}it is down\n"
        named = clusters.call(*listed, "-M", "north")
        assert (named.returncode, named.stdout.split()) == (1, [str(north)])
        assert named.stderr.startswith("squeue: error: cluster north: ")
    finally:
        os.kill(clusters.alpha.controller, 18)


@pytest.mark.slow("slurmdbd hears of ended jobs after seconds; each command asks it")
def test_accounting_lists_native_jobs(clusters: Clusters) -> None:
    ended = clusters.beta.run("sbatch", "--parsable", "-J", "acct-ended", "--wrap", "true").strip()
    own = clusters.submit("south", "-J", "acct-own")
    clusters.site.run("cancel", str(own))
    clusters.site.until_ended(own)
    listed = ("sacct", "-X", "-n", "-P", "-o", "jobid,jobname,cluster,state", "-S", "now-1hour")
    expected = [f"{own}|acct-own|south|CANCELLED", f"{ended}|acct-ended|south|COMPLETED"]

    def names(*options: str) -> list[str]:
        wanted = ("--name", "acct-own,acct-ended")
        return clusters.lines(*listed, *wanted, *options)

    clusters.site.until(lambda: names() == expected, patience=20)
    assert names("-M", "beta") == expected
    assert names("-M", "alpha") == []
    assert names("-j", f"{own},{ended}", "-M", "south") == expected
    steps = clusters.lines("sacct", "-n", "-P", "-o", "jobid", "-M", "south", "-j", ended)
    assert steps == [ended, f"{ended}.batch"]
    # by its own name a job of metasched is shown
    sent = clusters.native_id(own)
    assert clusters.lines(*listed, "-M", "south", "-j", sent)[0].startswith(
        f"{sent}|acct-own|south|"
    )
    table = clusters.lines("sacct", "-X", "-S", "now-1hour")
    assert table[0].split()[-1] == "Cluster"


def test_slow_accounting_hides_no_job(clusters: Clusters, slurm: SlurmSite) -> None:
    own = clusters.submit("north", "-J", "own")
    slurm["alpha"].stop_accountant()
    try:
        done = clusters.call("sacct", "-X", "-n", "-P", "-o", "jobid,state", "-j", str(own))
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{own}|RUNNING\n", "")
        done = clusters.call("sacct", "-X", "-n", "-P", "-o", "jobid,state", "--name", "own")
        assert (done.returncode, done.stdout) == (0, f"{own}|RUNNING\n")
        problem = "sacct: warning: native jobs are not listed, cluster"
        assert [line.rpartition(":")[0] for line in done.stderr.splitlines()] != []
        assert done.stderr.count(problem) == 2
    finally:
        slurm["alpha"].start_accountant()


def test_a_wrapper_that_calls_a_drop_in_does_not_run_for_ever(clusters: Clusters) -> None:
    """Scripts on PATH may have the names of Slurm's commands."""
    folder = clusters.site.folder / "bin"
    folder.mkdir()
    for name in ("squeue", "srun"):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {COMMANDS}/{name} "$@"\n')
        script.chmod(0o755)
        path = f"{COMMANDS}:{folder}:{os.environ['PATH']}"
        done = clusters.call(name, "--version", METASCHED_BYPASS="1", PATH=path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"{name}: error: the {name} that follows on PATH calls this")


def state(cluster: SlurmCluster, job: str) -> str:
    return cluster.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T %r").strip()


def test_the_chosen_gres_are_those_of_the_real_job(clusters: Clusters) -> None:
    waiting = clusters.site.submit("--hold", "--gres", "gpu:h100:1|gpu:2", *SLEEP)
    job = clusters.submit("north", "--gres", "gpu:h100:1|gpu:2")

    def shown(lines: list[str]) -> tuple[list[str], list[str]]:
        words = [word for line in lines for word in line.split()]
        starts = ("TresPerNode=", "Licenses=")
        return tuple([word for word in words if word.startswith(start)] for start in starts)  # type: ignore[return-value]

    own = clusters.lines("scontrol", "-o", "show", "job", str(job))
    real = clusters.alpha.run("scontrol", "-o", "show", "job", clusters.native_id(job))
    assert shown(own) == shown([real]) == (["TresPerNode=gres:gpu:2"], ["Licenses=(null)"])
    gres = clusters.lines("squeue", "-h", "-j", f"{waiting},{job}", "-o", "%i %b")
    assert gres == [f"{waiting} gres:gpu:h100:1", f"{job} gres:gpu:2"]


def test_ids_of_both_kinds_in_a_command(clusters: Clusters) -> None:
    mine, other, kept = (native(clusters.alpha, name) for name in ("a", "b", "c"))
    same = native(clusters.beta, "d")
    own = [clusters.site.submit("--hold", *SLEEP) for _ in range(3)]
    shown = clusters.lines("scontrol", "-o", "show", "job", f"{own[0]},{mine}")
    assert [line.split()[:2] for line in shown] == [
        [f"JobId={own[0]}", "JobName=wrap"],
        [f"JobId={mine}", "JobName=a"],
    ]
    assert clusters.lines("scontrol", "release", str(own[2]), mine) == []
    assert clusters.lines("scontrol", "hold", mine, str(own[1])) == []
    assert clusters.lines("scontrol", "update", f"JobId={mine}", "TimeLimit=7") == []
    assert clusters.alpha.run("squeue", "-h", "-j", mine, "-o", "%l").strip() == "7:00"
    both = f"JobId={own[1]},{mine}"
    assert clusters.lines("scontrol", "update", both, "TimeLimit=0:09:00", "JobName=e") == []
    assert clusters.alpha.run("squeue", "-h", "-j", mine, "-o", "%l %j").strip() == "9:00 e"
    assert clusters.lines("squeue", "-h", "-j", str(own[1]), "-o", "%l %j") == ["9:00 e"]
    later = str(clusters.site.submit("--begin", "+1h", *SLEEP))
    assert clusters.lines("scontrol", "update", f"JobId={later}", "Priority=0") == []
    assert clusters.lines("squeue", "-h", "-j", later, "-o", "%r") == ["JobHeldUser"]
    assert clusters.lines("scancel", str(own[0]), mine, other) == []
    clusters.site.until_ended(own[0])
    clusters.site.until(
        lambda: all(state(clusters.alpha, job)[:9] == "CANCELLED" for job in (mine, other))
    )
    assert state(clusters.alpha, kept) == state(clusters.beta, same) == "PENDING JobHeldUser"
    # another cluster may have the same id
    assert clusters.lines("scancel", "-M", "south", same) == []
    assert state(clusters.beta, same).startswith("CANCELLED")
    assert state(clusters.alpha, kept) == "PENDING JobHeldUser"
    name = clusters.lines("scontrol", "-M", "beta", "-o", "show", "job", same)[0]
    assert name.startswith(f"JobId={same} JobName=d ")
    assert clusters.lines("scontrol", "-M", "south", "show", "node", "b1")[0].startswith("NodeName")


def test_commands_of_a_cluster(clusters: Clusters) -> None:
    north, south = clusters.submit("north"), clusters.submit("south")
    assert clusters.lines("scancel", "-M", "beta", "--me") == []
    clusters.site.until_ended(south)
    assert clusters.site.rows(north)[0]["state"] == "running"
    tables = clusters.lines("sinfo", "-M", "alpha,south", "-o", "%V")
    assert [line for line in tables if line] == [
        *("CLUSTER: north", "CLUSTER", "north", "CLUSTER: south", "CLUSTER", "south")
    ]
    [job] = clusters.lines("sbatch", "--parsable", "-H", "-M", "beta", *SLEEP)
    assert clusters.lines("scontrol", "release", job) == []
    clusters.site.until(lambda: clusters.site.rows(job)[0]["state"] == "running")
    assert clusters.site.rows(job)[0]["cluster"] == "south"
    for name in ("sbatch", "scancel", "scontrol", "sinfo"):
        words = {"sbatch": [*SLEEP], "scancel": [job], "scontrol": ["show", "job"], "sinfo": []}
        done = clusters.call(name, "-M", "gamma", *words[name])
        assert (done.returncode, done.stdout) == (1, ""), name
        assert done.stderr == UNKNOWN.replace("squeue", name)


def test_nodes_are_listed_by_name(clusters: Clusters) -> None:
    """As the real commands list them, over all clusters; metasched itself knows no names."""
    alpha, beta = clusters.alpha, clusters.beta
    listing = ("sinfo", "-N", "-o", "%N %c %T")
    expected = [*alpha.run(*listing).splitlines(), *beta.run(*listing).splitlines()[1:]]
    assert clusters.lines(*listing) == expected
    of_node = ("-h", "-n", "b1")
    assert clusters.lines(*listing, *of_node) == beta.run(*listing, *of_node).splitlines() != []
    assert clusters.lines(*listing, "-M", "south") == [
        "CLUSTER: south",
        *beta.run(*listing).splitlines(),
    ]
    beta.run("scontrol", "update", "nodename=b2", "state=drain", "reason=a fan")
    try:
        assert clusters.lines("sinfo", "-h", "-R", "-o", "%E %N") == ["a fan b2"]
    finally:
        beta.run("scontrol", "update", "nodename=b2", "state=resume")
    shown = clusters.lines("scontrol", "-o", "show", "node")
    names = [line.split()[0] for line in shown]
    assert names == [f"NodeName={name}" for name in [*alpha.nodes, *beta.nodes]]
    [line] = clusters.lines("scontrol", "-o", "show", "node", "b1")
    assert line.split()[:2] == beta.run("scontrol", "-o", "show", "node", "b1").split()[:2]
    assert (
        clusters.lines("scontrol", "show", "node=a1")[0]
        == (alpha.run("scontrol", "show", "node", "a1").splitlines()[0])
    )
    missing = clusters.call("scontrol", "-o", "show", "node", "b[1-2],x1")
    assert missing.returncode == 1
    assert [line.split()[0] for line in missing.stdout.splitlines()] == [
        *("NodeName=b1", "NodeName=b2", "Node")
    ]
    assert missing.stdout.endswith("Node x1 not found\n")


@pytest.mark.slow("commands wait for a stopped controller, which is then started again")
def test_nodes_of_a_dead_controller_hide_no_others(clusters: Clusters) -> None:
    clusters.beta.stop_controller()
    try:
        done = clusters.call("sinfo", "-h", "-N", "-o", "%N")
        assert done.returncode == 0
        assert done.stdout.split() == clusters.alpha.run("sinfo", "-h", "-N", "-o", "%N").split()
        assert done.stderr.startswith("sinfo: warning: nodes of cluster south are not listed: ")
        named = clusters.call("sinfo", "-h", "-N", "-M", "south", "-o", "%N")
        assert (named.returncode, named.stdout) == (1, "")
        assert named.stderr.startswith("sinfo: error: nodes of cluster south are not listed: ")
    finally:
        clusters.beta.start_controller()


def test_a_job_that_waits_for_a_cluster_is_listed_and_cancelled(clusters: Clusters) -> None:
    """Tools take a job that an empty listing with exit code 0 leaves out for completed."""
    [pinned] = clusters.lines("sbatch", "--parsable", "-H", "-M", "beta", *SLEEP)
    [free] = clusters.lines("sbatch", "--parsable", "-H", *SLEEP)
    for cluster in ("south", "all"):
        for ids in ([], ["-j", pinned]):
            squeue = clusters.lines("squeue", "-h", "-M", cluster, *ids, "-o", "%i")
            assert pinned in squeue
            sacct = clusters.lines("sacct", "-n", "-X", "-P", "-M", cluster, *ids, "-o", "jobid")
            assert pinned in sacct
    everywhere = clusters.lines("squeue", "-h", "-M", "north,south", "-o", "%i")
    assert sorted(everywhere) == [pinned, free]
    assert clusters.lines("scontrol", "-o", "-M", "south", "show", "job", free) != []
    elsewhere = clusters.call("squeue", "-h", "-M", "north", "-j", pinned)
    assert (elsewhere.returncode, elsewhere.stdout) == (1, "")
    assert clusters.lines("scancel", "-M", "north", pinned) == []
    assert clusters.lines("scancel", "-M", "south", "--me") == []
    clusters.site.until_ended(int(pinned))
    assert clusters.site.rows(int(free))[0]["state"] == "held"
    shown = clusters.lines("sacct", "-n", "-X", "-P", "-M", "south", "-j", pinned, "-o", "state")
    assert shown == ["CANCELLED"]
    assert clusters.lines("scancel", "-M", "south", free) == []
    clusters.site.until_ended(int(free))


def test_tools_go_to_the_cluster_of_a_job(clusters: Clusters) -> None:
    held = clusters.site.submit("--hold", *SLEEP)
    waiting = native(clusters.alpha, "a")
    south = clusters.site.submit("--cluster", "south", "--wrap", "srun sleep 600")

    def layout() -> list[str]:
        return clusters.lines("sattach", "--layout", f"{south}.0")

    clusters.site.until(lambda: layout()[:2] == ["Job step layout:", "\t1 tasks, 1 nodes (b1)"], 30)
    sent = clusters.native_id(south)
    done = clusters.call("sstat", "-a", "-n", "-P", "-o", "jobid", "-j", str(south))
    assert done.stdout.split() == [f"{south}.batch", f"{south}.0"], done
    show_job = ("sh", "-c", "echo $SLURMD_NODENAME $SLURM_JOB_ID")
    step = ("srun", f"--jobid={south}", "-n1", "--overlap")
    assert clusters.lines(*step, *show_job) == [f"b1 {sent}"]
    absent = clusters.call("srun", f"--jobid={held}", "true")
    assert (absent.returncode, absent.stderr) == (1, f"srun: error: job {held} is on no cluster\n")
    absent = clusters.call("sstat", "-j", str(held))
    assert (absent.returncode, absent.stdout) == (1, "")
    assert absent.stderr == f"sstat: error: job {held} is on no cluster\n"
    if shutil.which("seff") is None:  # no package of Debian 12 has it
        done = clusters.call("seff", str(south))
        place = "this host has no seff for cluster south; ask its admin for it"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"seff: error: {place}\n")
    shares = clusters.lines("sshare", "-M", "south", "-n", "-P", "-o", "account")
    assert "root" in [line.strip() for line in shares], shares
    accounts = clusters.lines("sacctmgr", "-n", "-P", "list", "cluster", "format=cluster")
    assert sorted(accounts) == ["alpha", "beta"]
    assert state(clusters.alpha, waiting) == "PENDING JobHeldUser"


def test_use_is_shown_under_ids_of_metasched(clusters: Clusters) -> None:
    words = ("--cluster", "south", "-n", "1", "-o", "/dev/null")
    array = clusters.site.submit(*words, "--array", "5-7", "--wrap", "srun sleep 600")
    single = clusters.site.submit(*words, "--wrap", "srun sleep 600")
    tasks = [f"{array}_{index}" for index in (5, 6, 7)]

    def steps(*ids: str) -> list[str]:
        done = clusters.call("sstat", "-a", "-n", "-P", "-o", "jobid", "-j", ",".join(ids))
        return done.stdout.split()

    every = [f"{id}.{step}" for id in (*tasks, str(single)) for step in ("batch", "0")]
    clusters.site.until(lambda: sorted(steps(str(array), str(single))) == sorted(every), 40)
    assert steps(tasks[1]) == [f"{tasks[1]}.batch", f"{tasks[1]}.0"]  # the real one lists all
    assert steps(f"{tasks[2]}.0", f"{single}.batch") == [f"{tasks[2]}.0", f"{single}.batch"]
    native = clusters.native_id(single)
    # columns, headings and figures are those of the real command
    for options in (["-o", "jobid%20,ntasks,pids"], ["-P"], ["-p", "-o", "ntasks,jobid"], ["-i"]):
        command = ("sstat", *options)
        expected = clusters.beta.run(*command, "-j", f"{native}.0")
        shown = clusters.call(*command, "-j", f"{single}.0")
        assert (shown.returncode, shown.stderr) == (0, "")
        own, real = (text.split() for text in (shown.stdout, expected))
        assert own == [word.replace(f"{native}.0", f"{single}.0") for word in real], options
    command = ("sstat", "-n", "-o", "ntasks,nodelist")
    expected = clusters.beta.run(*command, "-j", f"{native}.0")
    assert clusters.call(*command, "-j", f"{single}.0").stdout == expected


def test_srun_and_salloc_outside_of_a_job(clusters: Clusters) -> None:
    print_cluster = ("sh", "-c", "echo $SLURM_CLUSTER_NAME $SLURM_NNODES")
    assert clusters.lines("srun", "-M", "south", "-N", "2", "-n", "2", *print_cluster) == [
        *("beta 2", "beta 2")
    ]
    # a node of alpha alone has that many processors
    assert clusters.lines("srun", "-n", "1", "-c", "12", *print_cluster) == ["alpha 1"]
    done = clusters.call("salloc", "-Q", "-M", "beta", "-N1", "srun", *print_cluster)
    assert (done.returncode, done.stdout) == (0, "beta 1\n"), done
    large = clusters.call("srun", "-N", "1", "-c", "99", "true")
    assert (large.returncode, large.stdout) == (1, "")
    assert large.stderr.startswith("srun: error: Unable to allocate resources: ")
    reserved = clusters.call("salloc", "--reservation=1", "true")
    assert reserved.stderr == (
        "salloc: error: reservation 1 is of metasched; submit a batch job by sbatch\n"
    )
    # an option of the program is none of srun
    assert clusters.lines("srun", "-M", "south", "echo", "-M", "north") == ["-M north"]


def test_a_step_of_a_native_job_goes_to_its_cluster(clusters: Clusters) -> None:
    print_id = ("sh", "-c", "echo ${SLURMD_NODENAME%[0-9]} $SLURM_JOB_ID")
    jobs = [c.run("sbatch", "--parsable", *SLEEP).strip() for c in (clusters.alpha, clusters.beta)]
    for cluster, job in zip((clusters.alpha, clusters.beta), jobs, strict=True):
        clusters.site.until(lambda c=cluster, j=job: state(c, j).startswith("RUNNING"), 30)  # type: ignore[misc]
    first, second = ((f"--jobid={job}", "-n1", "--overlap", *print_id) for job in jobs)
    assert clusters.lines("srun", *first) == [f"a {jobs[0]}"]
    assert clusters.lines("srun", "-M", "south", *second) == [f"b {jobs[1]}"]
    # no daemon is found by this configuration
    nowhere = {"METASCHED_CONFIG": "/nowhere"}
    for words in (first, ("-M", "south", *second)):
        assert "/nowhere" in clusters.call("srun", *words, **nowhere).stderr
    assert clusters.lines("srun", *first, **nowhere, METASCHED_BYPASS="1") == [f"a {jobs[0]}"]


def test_site_licences_need_a_batch_job(clusters: Clusters) -> None:
    clusters.site.stop()
    text = clusters.site.config.read_text()
    clusters.site.config.write_text(text + '[[licence]]\nname = "abaqus"\ntotal = 3\n')
    clusters.site.start()
    for name in ("srun", "salloc"):
        done = clusters.call(name, "-L", "abaqus:2", "true")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            f"{name}: error: licence abaqus is of the whole site; submit a batch job by sbatch\n"
        )
