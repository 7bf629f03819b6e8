"""`sacct` beside the real one: the same jobs, field by field."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from datetime import date, timedelta
from functools import partial
from pathlib import Path

import pytest

import metasched
from metasched.laboratory.simulate.accounting_history import read_accounting
from metasched.laboratory.simulate.submissions import array_arrivals
from tests.conftest import require
from tests.e2e.conftest import Site
from tests.harness.slurm import ClusterSpec, SlurmCluster, SlurmSite, accounting_missing, missing

COMMANDS = Path(metasched.__file__).parent / "drop_in/slurm"
# Ids, priorities and measured use differ by nature. The account is what the job asked for, and in
# slurmdbd the default of its user otherwise.
FIELDS = (
    "jobname,user,uid,partition,cluster,state,exitcode,derivedexitcode,comment,wckey,alloccpus,"
    "reqcpus,ncpus,ntasks,allocnodes,nnodes,reqnodes,nodelist,reqmem,timelimit,workdir,start,end,"
    "elapsed,group,gid,timelimitraw,constraints"
)
SCRIPTS = {  # by name: options and script
    "done": (("-n", "2", "-t", "10", "--mem", "1536"), "true"),
    "fails": (("-c", "3", "-t", "1:30:00", "--mem-per-cpu", "100"), "exit 3"),
    "killed": (("-t", "10", "--mem", "2G"), "kill -9 $$"),
    "arr": (("--array", "1-3", "-t", "20", "--mem", "2G"), "exit $SLURM_ARRAY_TASK_ID"),
    "noted": (("--comment", "a note", "-t", "1-00:00:00", "--mem", "2G"), "true"),
    "runs": (("-n", "2", "-t", "5", "--mem", "2G"), "sleep 600"),
    "stopped": (("-N", "1", "-t", "5", "--mem", "2G"), "sleep 600"),
    "held": (("--hold", "-n", "4", "-t", "5", "--mem", "2G"), "true"),
    "dropped": (("--hold", "-t", "5", "--mem", "2G"), "true"),
}


@pytest.fixture(scope="module")
def alpha(common_folder: Path) -> Iterator[SlurmCluster]:
    if (reason := missing() or accounting_missing()) is not None:
        require("slurm", reason)
    settings = ("AccountingStoreFlags=job_comment",)
    spec = ClusterSpec("alpha", "a", nodes=1, cpus=16, settings=settings)
    with SlurmSite(common_folder / "sacct", [spec], accounting=True) as booted:
        yield booted["alpha"]


class Sacct:
    """A command beside the others of its kind: the drop-ins, or the real ones."""

    def __init__(self, site: Site, alpha: SlurmCluster, folder: Path | None) -> None:
        """`folder` is that of the drop-ins; None: the real commands."""
        self._site, self._alpha, self._folder = site, alpha, folder
        self.ids: dict[str, str] = {}

    def call(self, name: str, *arguments: str) -> str:
        """Return what a command prints."""
        done = subprocess.run(
            [*self._alpha.inside, self._folder / name if self._folder else name, *arguments],
            env=self._site.environment | self._alpha.environment | {"METASCHED_NATIVE_JOBS": "0"},
            cwd=self._site.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    def submit(self) -> None:
        for name, (options, script) in SCRIPTS.items():
            words = ("-J", name, "-p", "main", "-o", "/dev/null", *options, "--wrap", script)
            self.ids[name] = self.call("sbatch", "--parsable", *words).strip()

    def rows(self, name: str, *options: str, fields: str = FIELDS) -> list[list[str]]:
        """Return the cells of a job and of its steps."""
        selected = ("-n", "-P", "-j", self.ids[name], "-o", fields, *options)
        lines = self.call("sacct", *selected).splitlines()
        return [line.split("|") for line in lines]

    def comparable(self, name: str, *options: str) -> list[dict[str, str]]:
        """Return the fields of a job and of its steps that are the same on both sides."""
        rows = [
            dict(zip(FIELDS.split(","), cells, strict=True)) for cells in self.rows(name, *options)
        ]
        for row in rows:
            row["state"] = re.sub(r" by \d+$", "", row["state"])  # who cancelled it: not kept
            for key in ("start", "end", "elapsed"):
                row[key] = re.sub(r"\d", "0", row[key])
            if row["state"] == "CANCELLED" and row["exitcode"] == "143:0":
                row["exitcode"] = "0:15"  # the shell saw the signal of its command first
            if name in ("held", "dropped"):
                # no cluster has it yet; releases differ on what it is given then
                del row["cluster"], row["alloccpus"], row["ncpus"]
        # slurmdbd lists the tasks of an array as it heard of them
        return sorted(rows, key=lambda row: row["exitcode"]) if name == "arr" else rows

    def cancel_and_wait(self) -> None:
        """Cancel `stopped` once it runs, and `dropped`; wait for the ends of all others."""
        site = self._site
        site.until(lambda: {"RUNNING"} == self._states("runs") | self._states("stopped"))
        self.call("scancel", self.ids["stopped"], self.ids["dropped"])
        for name in SCRIPTS.keys() - {"runs", "held"}:
            site.until(partial(self._has_ended, name))

    def _states(self, name: str) -> set[str]:
        return {state for [state] in self.rows(name, fields="state")}

    def _has_ended(self, name: str) -> bool:
        return not self._states(name) & {"PENDING", "RUNNING"}


@pytest.mark.slow("boots a cluster with slurmdbd, which hears of ended jobs after seconds")
def test_sacct_says_of_a_job_what_the_real_one_says(site: Site, alpha: SlurmCluster) -> None:
    site.before = alpha.inside
    site.configure(alpha.table("poll_interval = 1\n"), extra="first_id = 100000001\n")
    site.start()
    own, real = Sacct(site, alpha, COMMANDS), Sacct(site, alpha, None)
    for side in (own, real):
        side.submit()
        side.cancel_and_wait()
    for name in SCRIPTS:
        listed = own.comparable(name)
        assert listed == real.comparable(name)
        assert len(listed) == {"arr": 6, "held": 1, "dropped": 1}.get(name, 2)
        assert own.comparable(name, "-X") == real.comparable(name, "-X")
    alpha.empty()


@pytest.mark.slow("slurmdbd hears of jobs of seconds some seconds after their ends")
def test_reports_agree_with_slurmdbd(site: Site, alpha: SlurmCluster) -> None:
    """Also where Slurm allocates more processors than a job asks for."""
    site.before = alpha.inside
    site.configure(alpha.table("poll_interval = 1\n"))
    site.start()
    quick = ("-t", "5", "--mem", "100", "-o", "/dev/null", "--wrap")
    jobs = [
        site.submit("-n", "3", *quick, "sleep 3"),
        site.submit("-n", "2", "--exclusive", *quick, "sleep 2; exit 3"),
        site.submit("--array", "1-3", *quick, "sleep 1"),
        site.submit("-n", "2", *quick, "sleep 600"),
    ]
    site.until(lambda: site.row(jobs[-1])["state"] == "running")
    site.run("cancel", str(jobs[-1]))
    rows = site.until_ended()
    ids = ",".join(row["native_id"] for row in rows)
    period = ("--since", "2d", "--until", (date.today() + timedelta(days=1)).isoformat())

    def report() -> dict[str, float]:
        total: dict[str, float] = site.json("report", "use", *period)["total"]
        return total

    # slurmdbd is asked at intervals
    site.until(lambda: all(row["cpu_seconds"] is not None for row in site.json("status", "--all")))
    fields = "jobidraw,state,elapsedraw,cputimeraw,alloccpus"
    lines = alpha.run("sacct", "-X", "-n", "-P", "-j", ids, "-o", fields).splitlines()
    records = [line.split("|") for line in lines]
    assert "16" in {record[4] for record in records}  # the exclusive one has the node
    counted = report()
    assert counted["jobs"] == len(records) == 6
    assert counted["completed"] == sum(record[1] == "COMPLETED" for record in records) == 4
    assert counted["failed"] == sum(record[1] == "FAILED" for record in records) == 1
    assert counted["cancelled"] == sum(r[1].startswith("CANCELLED") for r in records) == 1
    assert counted["elapsed"] == sum(int(record[2]) for record in records)
    assert counted["cpu_seconds"] == sum(int(record[3]) for record in records)
    _policies_run_on_accounting_as_on_the_record(site, alpha, ids)
    alpha.empty()


def _policies_run_on_accounting_as_on_the_record(site: Site, alpha: SlurmCluster, ids: str) -> None:
    """A policy is tried on the same jobs, whoever has recorded them."""
    fields = "JobID,User,Group,Cluster,Submit,Eligible,Start,End,AllocCPUS,TimelimitRaw"
    (site.folder / "alpha.txt").write_text(alpha.run("sacct", "-aPX", "-j", ids, "-o", fields))
    (site.folder / "other.toml").write_text("pull = false\n")
    accounted = site.json("policy", "try", "other.toml", "--sacct", "alpha.txt")
    recorded = site.json("policy", "try", "other.toml", "-c", str(site.config))
    assert recorded["replay"]["problems"] == []
    for answer in (accounted, recorded):
        assert (answer["jobs"], answer["left_out"]) == (6, {})
        [cluster] = answer["groups"]["cluster"]
        assert cluster["name"] == "alpha"
    period = read_accounting([site.folder / "alpha.txt"], [], {})
    [array] = array_arrivals(period.workload.entries).values()
    assert (array.job.array, array.job.held, array.job.time_limit) == ("1-3", False, 300.0)
    waits = [answer["figures"][0]["recorded"] for answer in (accounted, recorded)]
    assert waits[0] == pytest.approx(waits[1], abs=5)  # from the manager's submission, in seconds
