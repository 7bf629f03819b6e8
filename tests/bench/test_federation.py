"""The same workloads on two real Slurm clusters: as a federation, and under metasched.

Loops call `sbatch` on the origin's host: Slurm's, then the drop-in. Each job appends a line to a
file at its end, so both are counted in the same way.
"""

from __future__ import annotations

import getpass
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import pytest

import metasched
from tests.bench.conftest import Record
from tests.conftest import require
from tests.e2e.conftest import Site
from tests.harness.daemons import BootError, wait_until
from tests.harness.slurm import ClusterSpec, SlurmCluster, SlurmSite, accounting_missing, missing

DROP_IN = Path(metasched.__file__).parent / "drop_in/slurm"
FIRST_ID = 2**32  # above all ids of a federation
JOBS, ROUNDS = 80, 3
LARGE_JOBS = 10
LARGE = "--mem=3000"  # MiB; the nodes of the origin have less
MAX_SUBMIT_JOBS = 10  # of a user in each cluster
OUTAGE_SECONDS = 60.0
PATIENCE = 300.0
SETTINGS = ("AccountingStorageEnforce=associations,limits", "FederationParameters=fed_display")


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmSite]:
    """Two clusters of 16 processors with a common slurmdbd and key."""
    if (reason := missing() or accounting_missing()) is not None:
        require("slurm", reason)
    key = f"AuthInfo=socket={tmp_path / 'slurm/origin/munge/munge.sock'}"
    specs = (
        ClusterSpec("origin", "o", nodes=2, cpus=8, memory=2000, settings=SETTINGS),
        ClusterSpec("sibling", "s", nodes=2, cpus=8, memory=8000, settings=(*SETTINGS, key)),
    )
    with SlurmSite(tmp_path / "slurm", specs, accounting=True) as booted:
        settings = ("cluster=origin,sibling",)
        sacctmgr(booted, "add", "account", "staff", *settings)
        sacctmgr(booted, "add", "user", getpass.getuser(), "account=staff", *settings)
        wait_until(lambda: all(map(accepts_jobs, booted)), PATIENCE, "the user's account", str)
        yield booted


def sacctmgr(slurm: SlurmSite, *arguments: str) -> None:
    slurm["origin"].run("sacctmgr", "-i", *arguments)


def accepts_jobs(cluster: SlurmCluster) -> bool:
    try:
        cluster.run("sbatch", "--test-only", "--wrap", "true")
    except BootError:
        return False
    return True


class Front:
    """The `sbatch` that users call, over both clusters."""

    def __init__(self, slurm: SlurmSite, folder: Path, variables: dict[str, str]) -> None:
        self._origin, self._log, self._variables = slurm["origin"], folder / "ends", variables
        self._log.write_text("")

    def submit(self, calls: int, seconds: int, options: str = "") -> int:
        """Call sbatch again and again; return the number of calls that it accepted."""
        wrap = shlex.quote(f"sleep {seconds}; echo end >> {self._log}")
        call = f"sbatch -n 1 -t 5 --mem=100 -o /dev/null {options} --wrap {wrap}"
        loop = (
            f"a=0; for i in $(seq {calls}); do {call} >&2 && a=$((a + 1)); done 2>/dev/null; "
            "echo $a"
        )
        return int(self._origin.run("sh", "-c", loop, seconds=PATIENCE, **self._variables))

    def seconds(self, calls: int, options: str = "") -> float:
        """Return the seconds from the first of the calls until all `JOBS` tasks have ended."""
        begun, tasks = time.perf_counter(), self.ends + JOBS
        assert self.submit(calls, 2, options) == calls
        self.wait(tasks)
        return time.perf_counter() - begun

    @property
    def ends(self) -> int:
        """The number of tasks that have ended so far."""
        return len(self._log.read_text().splitlines())

    def wait(self, ends: int, patience: float = PATIENCE) -> int:
        """Wait for so many ends, at most for `patience` seconds; return the number of ends."""
        deadline = time.monotonic() + patience
        while self.ends < ends and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.ends


@contextmanager
def federation(slurm: SlurmSite, folder: Path) -> Iterator[Front]:
    """Make the clusters a federation while the block runs."""
    sacctmgr(slurm, "add", "federation", "both", "clusters=origin,sibling")
    until_federated(slurm, lambda shown: shown.count("Synced:Yes") == 2)
    folder.mkdir()
    try:
        yield Front(slurm, folder, {})
    finally:
        for cluster in slurm:
            cluster.empty()
        sacctmgr(slurm, "delete", "federation", "both")
        until_federated(slurm, lambda shown: "Sibling" not in shown)


def until_federated(slurm: SlurmSite, condition: Callable[[str], bool]) -> None:
    def shown() -> str:
        return "\n".join(cluster.run("scontrol", "show", "federation") for cluster in slurm)

    wait_until(lambda: condition(shown()), PATIENCE, "the federation", shown)


@contextmanager
def metasched_site(slurm: SlurmSite, folder: Path) -> Iterator[Front]:
    """Run a daemon over both clusters while the block runs."""
    folder.mkdir()
    site = Site(folder)
    site.before = slurm.inside
    settings = f'poll_interval = 1\nfence_dir = "{folder}/claims"\n'
    (folder / "claims").mkdir(mode=0o711)
    site.configure(
        "".join(cluster.table(settings) for cluster in slurm),
        extra=f"first_id = {FIRST_ID}\n",
    )
    try:
        site.start()
        path = f"{DROP_IN}:{slurm['origin'].environment['PATH']}"
        yield Front(slurm, folder, {"PATH": path, "METASCHED_SOCKET": str(folder / "ms.sock")})
    finally:
        site.close()
        for cluster in slurm:
            cluster.empty()


FRONTS = {"metasched": metasched_site, "federation": federation}


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_many_jobs(slurm: SlurmSite, tmp_path: Path, record: Record) -> None:
    arrays: dict[str, list[float]] = {name: [] for name in FRONTS}
    singles: dict[str, list[float]] = {name: [] for name in FRONTS}
    for number in range(ROUNDS):
        for name, front in FRONTS.items():
            with front(slurm, tmp_path / f"{name}{number}") as site:
                arrays[name].append(site.seconds(1, f"--array=1-{JOBS}"))
                singles[name].append(site.seconds(JOBS))
    for label, used in ((f"an array of {JOBS} tasks", arrays), (f"{JOBS} single jobs", singles)):
        record(
            f"{label} of 2 s, until all have ended",
            median(used["metasched"]),
            "s",
            peers={"federation": median(used["federation"])},
        )


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_jobs_that_only_the_sibling_can_run(
    slurm: SlurmSite, tmp_path: Path, record: Record
) -> None:
    ends = {}
    for name, front in FRONTS.items():
        with front(slurm, tmp_path / name) as site:
            ends[name] = site.wait(site.submit(LARGE_JOBS, 1, LARGE))
    record(
        f"of {LARGE_JOBS} jobs that only the sibling can run, those that ended",
        ends["metasched"],
        "jobs",
        peers={"federation": ends["federation"]},
        target="all",
    )


def restart(cluster: SlurmCluster) -> None:
    """Start slurmctld, and resume the nodes as an admin would.

    A killed slurmctld forgets its last starts. It starts these jobs again; their nodes refuse, and
    are drained for a duplicate id.
    """
    cluster.start_controller(wait=False)
    wait_until(lambda: answers(cluster), PATIENCE, "slurmctld", str)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for node in cluster.run("sinfo", "-h", "-N", "-t", "drain", "-o", "%N").split():
            with suppress(BootError):  # it may have been drained no longer
                cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        time.sleep(0.5)


def answers(cluster: SlurmCluster) -> bool:
    try:
        return bool(cluster.run("sinfo", "-h", "-N", seconds=3))
    except BootError:
        return False


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_origin_killed(slurm: SlurmSite, tmp_path: Path, record: Record) -> None:
    in_outage, after = {}, {}
    for name, front in FRONTS.items():
        with front(slurm, tmp_path / name) as site:
            # else a controller that forgot their start may run them twice, as JobRequeue=1 says
            assert site.submit(JOBS, 20, "--no-requeue") == JOBS
            time.sleep(10)  # slurmctld saves its state every few seconds
            slurm["origin"].kill_controller()
            in_outage[name] = site.wait(JOBS, OUTAGE_SECONDS)
            restart(slurm["origin"])
            after[name] = site.wait(JOBS)
            time.sleep(25)  # a job that runs twice would end by now
            after[name] = site.ends
    record(
        f"of {JOBS} jobs of 20 s, ended {OUTAGE_SECONDS:g} s after the origin's controller died",
        in_outage["metasched"],
        "jobs",
        peers={"federation": in_outage["federation"]},
    )
    record(
        f"of these {JOBS}, ended after it was started again",
        after["metasched"],
        "jobs",
        peers={"federation": after["federation"]},
        target="all, each once",
    )


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_max_submit_jobs(slurm: SlurmSite, tmp_path: Path, record: Record) -> None:
    ends = {}
    limit = f"MaxSubmitJobs={MAX_SUBMIT_JOBS}"
    sacctmgr(slurm, "modify", "user", getpass.getuser(), "set", limit)
    for name, front in FRONTS.items():
        with front(slurm, tmp_path / name) as site:
            ends[name] = site.wait(site.submit(JOBS, 5))
    record(
        f"of {JOBS} jobs of 5 s, ended with MaxSubmitJobs={MAX_SUBMIT_JOBS} in each cluster",
        ends["metasched"],
        "jobs",
        peers={"federation": ends["federation"]},
        target="all",
    )
