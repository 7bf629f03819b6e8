"""Jobs that a real Slurm preempts, requeues or suspends: none is lost, none runs twice at once.

`urgent` jobs are native. They preempt by the priority of their partition or by their QOS.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import metasched
from tests.conftest import require
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.harness import slurm
from tests.harness.payload_records import PayloadRecords
from tests.harness.slurm import ClusterSpec, SlurmCluster, SlurmSite

COMMANDS = Path(metasched.__file__).parent / "drop_in/slurm"
URGENT = "PartitionName=urgent Nodes=ALL PriorityTier=10 Default=NO"
BY_PARTITION = ("PreemptType=preempt/partition_prio", URGENT)
BY_QOS = ("PreemptType=preempt/qos", "AccountingStorageEnforce=associations,limits,qos")
EARLY_DOWN = "SlurmdTimeout=10"  # seconds until a node that does not answer is down
LICENCE = '\n[[licence]]\nname = "solver"\ntotal = 1\n'
EXTRA = "first_id = 100000001\n"


@contextlib.contextmanager
def booted(folder: Path, *settings: str, accounting: bool = False) -> Iterator[SlurmSite]:
    if reason := slurm.missing() or (accounting and slurm.accounting_missing()):
        require("slurm", reason)
    spec = ClusterSpec("alpha", "a", nodes=1, cpus=4, settings=settings)
    with SlurmSite(folder, [spec], accounting=accounting) as site:
        yield site


@pytest.fixture(scope="module")
def cancelling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    with booted(tmp_path_factory.mktemp("c"), *BY_PARTITION, "PreemptMode=CANCEL") as site:
        yield site


@pytest.fixture(scope="module")
def requeueing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    modes = ("PreemptMode=REQUEUE", EARLY_DOWN)
    with booted(tmp_path_factory.mktemp("r"), *BY_PARTITION, *modes) as site:
        yield site


@pytest.fixture(scope="module")
def suspending(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    modes = ("PreemptMode=SUSPEND,GANG", "SchedulerTimeSlice=5")
    with booted(tmp_path_factory.mktemp("s"), *BY_PARTITION, *modes) as site:
        yield site


@pytest.fixture(scope="module", params=["REQUEUE", "CANCEL"])
def by_qos(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlurmSite]:
    """A cluster with slurmdbd; jobs of QOS urgent preempt those of QOS low."""
    mode = f"PreemptMode={request.param}"
    with booted(tmp_path_factory.mktemp("q"), *BY_QOS, mode, accounting=True) as site:
        account = pwd.getpwuid(os.geteuid()).pw_name
        for change in (
            "add qos low",
            "add qos urgent Preempt=low Priority=100",
            "add account physics",
            f"add user {account} account=physics qos=low,urgent,normal defaultqos=low",
        ):
            site["alpha"].run("sacctmgr", "-i", *change.split())
        yield site


class Preemption:
    """A site over alpha, a real Slurm, and the local cluster `here`, each of 4 processors.

    Tasks end once they run on `here`, or when `records.let_end` is called.
    """

    def __init__(self, site: Site, alpha: SlurmCluster) -> None:
        self.site, self.alpha = site, alpha
        self.records = PayloadRecords(site.folder)
        alpha.empty()
        site.before = alpha.inside
        table = alpha.table("poll_interval = 0.5\n" + '[cluster.map.qos]\n"*" = "*"\n')
        configuration = ONE_LOCAL + '[cluster.map.qos]\n"*" = "*"\n'
        site.configure(table + configuration + LICENCE, extra=EXTRA)
        site.start()

    def submit(self, *options: str, stubborn: bool = False) -> int:
        """Submit a payload; a stubborn one ignores SIGTERM."""
        trap = "trap '' TERM\n" if stubborn else ""
        return self.site.submit(*options, "-t", "10", "--wrap", trap + self.records.payload)

    def fill_here(self) -> int:
        """Return a job that occupies `here`."""
        filler = self.site.submit("--cluster", "here", "-n", "4", "-t", "10", "--wrap", "sleep 300")
        self.until_state("running", filler)
        return filler

    def run_on_alpha(self, *options: str, stubborn: bool = False) -> int:
        """Return a job of 4 processors that has begun on alpha."""
        job = self.submit("-n", "4", *options, stubborn=stubborn)
        self.until_state("running", job)
        self.site.until(lambda: self.records.runs(job) == ["alpha"])
        return job

    def until_state(self, state: str, job: int) -> None:
        self.site.until(lambda: {row["state"] for row in self.site.rows(job)} == {state})

    def urgent(self, *options: str, cpus: int = 4) -> str:
        """Submit a native job that preempts; return its id once it runs."""
        sleep = ("-t5", "-o", "/dev/null", "--wrap", "sleep 300")
        job = self.alpha.run("sbatch", "--parsable", *options, f"-n{cpus}", *sleep).strip()
        self.site.until(lambda: self.native_state(job) == "RUNNING")
        return job

    def native_state(self, job: str) -> str:
        return self.alpha.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()

    def drop_in(self, name: str, *options: str) -> str:
        """Return what a drop-in command prints."""
        done = subprocess.run(
            [*self.alpha.inside, COMMANDS / name, *options],
            env=self.site.environment | {"METASCHED_NATIVE_JOBS": "0"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout.strip()

    def replayed(self) -> None:
        assert self.site.stop() == 0
        self.site.replayed()


By = Callable[[SlurmSite], Preemption]


@pytest.fixture
def over(site: Site) -> By:
    return lambda slurm_site: Preemption(site, slurm_site["alpha"])


PARTITION = ("-p", "urgent")


def test_two_runs_of_a_task_at_once_are_recorded(tmp_path: Path) -> None:
    """What the tests below rely on: the second run finds the lock of the first."""
    records = PayloadRecords(tmp_path)
    variables = os.environ | {"METASCHED_JOB_ID": "7", "METASCHED_CLUSTER": "alpha"}
    with subprocess.Popen(["sh", "-c", records.payload], env=variables):
        while not records.lines:
            time.sleep(0.05)
        with subprocess.Popen(["sh", "-c", records.payload], env=variables):
            while len(records.lines) < 3:
                time.sleep(0.05)
            records.let_end()
    with pytest.raises(AssertionError, match="overlaps"):
        records.runs(7)
    assert [line.event for line in records.lines].count("ended") == 2


def test_a_preempted_job_that_may_run_again_runs_elsewhere(over: By, cancelling: SlurmSite) -> None:
    test = over(cancelling)
    filler = test.fill_here()
    job = test.run_on_alpha("--requeue")
    test.urgent(*PARTITION)
    test.site.until(lambda: test.site.row(job)["state"] in ("queued", "pending"))
    test.site.run("cancel", str(filler))
    [row] = test.site.until_ended(job)
    assert (row["state"], row["cluster"]) == ("completed", "here")
    assert test.records.runs(job) == ["alpha", "here"]
    assert "preempted, and it may run again" in test.site.run("story", str(job)).stdout
    test.replayed()


def test_a_preempted_job_that_must_not_run_again_has_failed(
    over: By, cancelling: SlurmSite
) -> None:
    test = over(cancelling)
    job = test.run_on_alpha("--cluster", "alpha")
    test.urgent(*PARTITION)
    [row] = test.site.until_ended(job)
    assert row["state"] == "failed"
    assert test.drop_in("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T") == "PREEMPTED"
    assert test.records.runs(job) == ["alpha"]


@pytest.mark.slow("a job is preempted, and the daemon is killed and started")
def test_a_job_that_slurm_has_requeued_runs_elsewhere(over: By, requeueing: SlurmSite) -> None:
    test = over(requeueing)
    filler = test.fill_here()
    job = test.run_on_alpha("--requeue")
    native = test.site.row(job)["native_id"]
    test.urgent(*PARTITION)
    test.site.until(
        lambda: test.site.row(job)["state"] == "queued" or test.site.row(job)["native_id"] != native
    )
    test.site.stop(signal.SIGKILL)
    test.site.start()
    test.site.run("cancel", str(filler))
    [row] = test.site.until_ended(job)
    assert (row["state"], row["cluster"]) == ("completed", "here")
    assert test.records.runs(job) == ["alpha", "here"]
    story = test.site.run("story", str(job)).stdout
    assert "its cluster had requeued it, and it may run elsewhere" in story
    assert test.native_state(native) == "CANCELLED"
    test.replayed()


def test_a_requeued_job_whose_processes_take_their_time_is_taken_back_once(
    over: By, requeueing: SlurmSite
) -> None:
    """Slurm counts the restart while the first run ends, and shows the present as its start."""
    test = over(requeueing)
    job = test.run_on_alpha("--requeue", stubborn=True)
    native = test.site.row(job)["native_id"]
    test.alpha.run("scontrol", "requeue", native)
    test.site.until(lambda: test.native_state(native) == "COMPLETING")
    test.site.until(lambda: test.records.runs(job) == ["alpha", "alpha"])
    test.records.let_end()
    [row] = test.site.until_ended(job)
    assert row["state"] == "completed"
    assert row["native_id"] != native
    story = test.site.run("story", str(job)).stdout
    assert story.count("the manager restarted it by itself") == 1, story
    assert "its cluster had requeued it, and it may run elsewhere" in story
    test.replayed()


@pytest.mark.slow("boots a cluster with slurmdbd")
def test_a_job_preempted_by_a_qos_runs_elsewhere(over: By, by_qos: SlurmSite) -> None:
    test = over(by_qos)
    filler = test.fill_here()
    job = test.run_on_alpha("--requeue", "--qos", "low")
    native = test.site.row(job)["native_id"]
    test.urgent("--qos=urgent")
    test.site.until(lambda: test.site.row(job)["state"] in ("queued", "pending"))
    test.site.run("cancel", str(filler))
    [row] = test.site.until_ended(job)
    assert (row["state"], row["cluster"]) == ("completed", "here")
    assert test.records.runs(job) == ["alpha", "here"]
    assert test.native_state(native) in ("CANCELLED", "PREEMPTED")
    test.replayed()


@pytest.mark.slow("four tasks begin, two are preempted, and the daemon is killed")
@pytest.mark.parametrize("mode", ["cancelling", "requeueing"])
def test_tasks_of_an_array_are_preempted_while_others_run_on(
    over: By, mode: str, request: pytest.FixtureRequest
) -> None:
    """Slurm preempts two tasks of a native array. The daemon is killed before it can know."""
    test = over(request.getfixturevalue(mode))
    filler = test.fill_here()
    job = test.submit("--array", "1-4", "--requeue", "--cluster", "alpha,here")
    test.until_state("running", job)
    test.site.until(lambda: all(test.records.runs(job, i) == ["alpha"] for i in range(1, 5)))
    natives = {row["task"]: row["native_id"] for row in test.site.rows(job)}
    assert len({native.partition("_")[0] for native in natives.values()}) == 1, natives
    test.site.stop(signal.SIGKILL)
    test.urgent(*PARTITION, cpus=2)
    running = test.alpha.run("squeue", "-h", "-r", "-t", "R", "-p", "main", "-o", "%i").split()
    surviving = {index for index, native in natives.items() if native in running}
    assert len(surviving) == 2, (natives, running)
    test.site.start()
    preempted = set(natives) - surviving
    test.site.until(
        lambda: (
            {row["task"] for row in test.site.rows(job) if row["state"] != "running"} == preempted
        )
    )
    test.site.run("cancel", str(filler))
    test.site.until(
        lambda: all(test.records.runs(job, index) == ["alpha", "here"] for index in preempted)
    )
    assert {index for index in natives if test.records.runs(job, index) == ["alpha"]} == surviving
    test.records.let_end()
    rows = test.site.until_ended(job)
    assert {row["state"] for row in rows} == {"completed"}, rows
    assert {row["task"]: row["cluster"] for row in rows} == {
        index: "alpha" if index in surviving else "here" for index in natives
    }
    assert len([line for line in test.records.lines if line.event == "begun"]) == 6
    test.replayed()


def requeue(test: Preemption, native: str) -> None:
    """An operator requeues the job."""
    test.alpha.run("scontrol", "requeue", native)


def fail_node(test: Preemption, native: str) -> None:
    """The host of the only node fails: its slurmd and all processes of its job are gone."""
    test.alpha.kill_node("a1")
    own = [
        process
        for process in psutil.process_iter(["environ"])
        if test.site.instance in (process.info["environ"] or {}).get("METASCHED_TAG", "")
    ]
    parents = [p for process in own for p in process.parents() if p.name() == "slurmstepd"]
    assert parents
    for process in [*parents, *own]:  # slurmstepd would report the end of its job
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.mark.slow("a node that does not answer is down after ten seconds")
@pytest.mark.parametrize("cause", [requeue, fail_node])
def test_a_job_that_may_run_again_leaves_the_cluster_that_has_requeued_it(
    over: By, requeueing: SlurmSite, cause: Callable[[Preemption, str], None]
) -> None:
    test = over(requeueing)
    filler = test.fill_here()
    job = test.run_on_alpha("--requeue")
    native = test.site.row(job)["native_id"]
    test.site.run("cancel", str(filler))
    try:
        cause(test, native)
        test.site.until(lambda: len(test.records.runs(job)) == 2)
        test.records.let_end()
        [row] = test.site.until_ended(job)
        assert row["state"] == "completed"
        # alpha may be chosen again if its node is there
        assert test.records.runs(job) == ["alpha", row["cluster"]]
        assert row["native_id"] != native
        assert test.native_state(native) == "CANCELLED"
        test.replayed()
    finally:
        if cause is fail_node:
            test.alpha.start_node("a1")
            test.alpha.wait_ready()


@pytest.mark.slow("a node that does not answer is down after ten seconds")
def test_a_job_that_must_not_run_again_ends_with_its_node(over: By, requeueing: SlurmSite) -> None:
    test = over(requeueing)
    job = test.run_on_alpha("--cluster", "alpha")
    try:
        fail_node(test, test.site.row(job)["native_id"])
        [row] = test.site.until_ended(job)
        assert row["state"] == "failed"
        assert test.drop_in("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T") == "NODE_FAIL"
        assert test.records.runs(job) == ["alpha"]
        test.replayed()
    finally:
        test.alpha.start_node("a1")
        test.alpha.wait_ready()


@pytest.mark.slow("boots a cluster whose jobs take turns of five seconds; restarts the daemon")
def test_a_suspended_job_keeps_its_place_and_its_licences(over: By, suspending: SlurmSite) -> None:
    test = over(suspending)
    job = test.run_on_alpha("--licence", "solver", "--cluster", "alpha")
    waiting = test.submit("--licence", "solver", "--cluster", "here")
    urgent = test.urgent(*PARTITION)
    test.until_state("suspended", job)
    listed = ("-h", "-j", str(job), "-o", "%t %T")
    assert test.drop_in("squeue", *listed) == "S SUSPENDED"
    native = test.site.row(job)["native_id"]
    assert test.alpha.run("squeue", "-h", "-j", native, "-o", "%t %T").strip() == "S SUSPENDED"
    states = ("-n", "-X", "-P", "-o", "State", "-j", str(job))
    assert test.drop_in("sacct", *states) == "SUSPENDED"
    assert "JobState=SUSPENDED" in test.drop_in("scontrol", "show", "job", str(job))
    test.site.stop(signal.SIGKILL)
    test.site.start()
    test.until_state("suspended", job)
    [licence] = test.site.json("licences")
    assert (licence["licence"], licence["ours"]) == ("solver", 1), licence
    assert test.site.row(waiting)["state"] == "queued"
    test.alpha.run("scancel", urgent)
    test.until_state("running", job)
    assert test.site.row(waiting)["state"] == "queued"
    test.records.let_end()
    rows = test.site.until_ended(job, waiting)
    assert [row["state"] for row in rows] == ["completed", "completed"]
    assert (test.records.runs(job), test.records.runs(waiting)) == (["alpha"], ["here"])
    events = [line["event"] for line in test.site.json("story", str(job))]
    assert events.count("suspend") == 1, events
    test.replayed()
