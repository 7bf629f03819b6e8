"""Unmodified clients of Slurm run small workflows through the drop-in commands.

`make test-clients` installs them in an environment of their own and sets METASCHED_CLIENTS, the
Python of that environment. Without it the tests are skipped.
"""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import metasched
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.e2e.conftest import site as site
from tests.e2e.test_jobs_on_nodes import NodeSite
from tests.e2e.test_jobs_on_nodes import on_slurm as on_slurm
from tests.harness import accounts
from tests.harness.accounts import A
from tests.harness.slurm import SlurmSite

COMMANDS = Path(metasched.__file__).parent / "drop_in/slurm"
FIRST_ID = 100_000_001
SECONDS = 240  # for a workflow

SUBMITIT = """
import sys

import submitit
from functions import add, fail, wait_for

executor = submitit.AutoExecutor(folder="logs", cluster="slurm")
# its jobs call srun, also on the local cluster
executor.update_parameters(timeout_min=5, mem_gb=1, slurm_array_parallelism=2, name="submitit")
if sys.argv[1:]:
    job = executor.submit(wait_for, sys.argv[1])
    print("submitted", flush=True)
    print(job.result())
    sys.exit()
print(executor.submit(add, 5, 7).result())
print([job.result() for job in executor.map_array(add, [1, 2, 3], [10, 20, 30])])
print("ValueError: wrong" in str(executor.submit(fail).exception()))
"""
FUNCTIONS = """
import os
import time


def add(a, b):
    return a + b


def fail():
    raise ValueError("wrong")


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.1)
    return "seen"
"""
SIMPLE_SLURM = """
from simple_slurm import Slurm

array = Slurm(array="3-5", job_name="simple", output="%A_%a.out", time="00:05:00")
first = array.sbatch("echo task $SLURM_ARRAY_TASK_ID", shell="/bin/sh", verbose=False)
after = Slurm(dependency={"afterok": first}, job_name="after", wait=True, output="after.out")
after.sbatch("cat *_[345].out", shell="/bin/sh", verbose=False)
print(open("after.out").read().split())
"""
DASK = """
from dask_jobqueue import SLURMCluster
from distributed import Client

if __name__ == "__main__":
    with SLURMCluster(
        cores=1, memory="500MB", walltime="00:05:00", interface="lo", log_directory="logs"
    ) as cluster, Client(cluster) as client:
        cluster.scale(1)
        print(client.submit(lambda number: number + 1, 41).result(timeout=200))
"""
PSIJ = """
import datetime
import pathlib

import psij

executor = psij.JobExecutor.get_instance("slurm")
jobs = []
for code in (0, 3):
    spec = psij.JobSpec(
        executable="/bin/sh",
        arguments=["-c", f"exit {code}"],
        stdout_path=pathlib.Path.cwd() / f"{code}.out",
        resources=psij.ResourceSpecV1(process_count=1),
        attributes=psij.JobAttributes(duration=datetime.timedelta(minutes=5)),
    )
    jobs.append(psij.Job(spec))
    executor.submit(jobs[-1])
statuses = [job.wait(datetime.timedelta(seconds=200)) for job in jobs]
print([(status.state.name, status.exit_code) for status in statuses])
"""
PARSL = """
import os
import sys

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SrunLauncher
from parsl.providers import SlurmProvider


@parsl.python_app
def successor(number):
    return number + 1


if __name__ == "__main__":
    provider = SlurmProvider(
        partition="main",
        init_blocks=1,
        max_blocks=1,
        cores_per_node=1,
        exclusive=False,
        walltime="00:05:00",
        launcher=SrunLauncher(),
        worker_init=f"export PATH={os.path.dirname(sys.executable)}:$PATH",
    )
    executor = HighThroughputExecutor(
        address="127.0.0.1", max_workers_per_node=1, provider=provider
    )
    with parsl.load(Config(executors=[executor])):
        print(successor(41).result(timeout=200))
"""
FIREWORKS = """
import getpass
import pathlib

from fireworks.user_objects.queue_adapters.common_adapter import CommonAdapter

adapter = CommonAdapter("SLURM", "q", ntasks=1, walltime="00:05:00", rocket_launch="sleep 100")
pathlib.Path("job.sh").write_text(adapter.get_script_str("."))
before = adapter.get_njobs_in_queue(getpass.getuser())
job = adapter.submit_to_queue("job.sh")
print(job.isdecimal(), adapter.get_njobs_in_queue(getpass.getuser()) - before)
"""
EXECUTORLIB = """
from executorlib import SlurmClusterExecutor
from functions import add

if __name__ == "__main__":
    resources = {"cores": 1, "run_time_max": 300}
    with SlurmClusterExecutor(cache_directory="cache", resource_dict=resources) as executor:
        first = executor.submit(add, 1, 2)
        print(executor.submit(add, first, 10).result())
"""
TOIL = """
from toil.common import Toil
from toil.job import Job


def successor(job, number):
    return number + 1


if __name__ == "__main__":
    options = Job.Runner.getDefaultOptions("jobstore")
    options.batchSystem, options.clean, options.logLevel = "slurm", "always", "ERROR"
    options.slurmPartition = "main"
    with Toil(options) as toil:
        print(toil.start(Job.wrapJobFn(successor, 41, memory="200M", cores=1, disk="10M")))
"""
MAESTRO = """
description:
  name: study
  description: two steps
batch:
  type: slurm
  host: here
  bank: ""
  queue: main
study:
  - name: one
    description: first
    run:
      cmd: echo one > one.txt
      nodes: 1
      procs: 1
      walltime: "00:05:00"
  - name: two
    description: second
    run:
      cmd: cat $(one.workspace)/one.txt > two.txt
      depends: [one]
      nodes: 1
      procs: 1
      walltime: "00:05:00"
"""
REFRAME_SITE = """
partition = {
    "name": "all",
    "scheduler": "slurm",
    "launcher": "srun",
    "access": ["-p main"],
    "environs": ["builtin"],
}
site_configuration = {
    "systems": [{"name": "site", "hostnames": [".*"], "partitions": [partition]}],
    "environments": [{"name": "builtin"}],
}
"""
REFRAME_CHECK = """
import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class Greets(rfm.RunOnlyRegressionTest):
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "echo"
    executable_opts = ["hello"]
    time_limit = "5m"

    @sanity_function
    def greets(self):
        return sn.assert_found("hello", self.stdout)
"""
CYLC_SITE = """
[platforms]
    [[cluster]]
        hosts = localhost
        job runner = slurm
        install target = localhost
        cylc path = {bin}
        submission polling intervals = PT2S
        execution polling intervals = PT2S
"""
CYLC_FLOW = """
[scheduling]
    [[graph]]
        R1 = one => two
[runtime]
    [[root]]
        platform = cluster
        execution time limit = PT5M
        [[[directives]]]
            --partition = main
    [[one]]
        script = echo one > $CYLC_WORKFLOW_SHARE_DIR/one.txt
    [[two]]
        script = cat $CYLC_WORKFLOW_SHARE_DIR/one.txt
"""
SNAKEFILE = """
rule all:
    input: expand("o{i}.txt", i=range(3))
rule one:
    output: "o{i}.txt"
    resources: runtime=5, mem_mb=200
    shell: "echo {wildcards.i} > {output}"
"""


@pytest.fixture(scope="session")
def python() -> Path:
    path = os.environ.get("METASCHED_CLIENTS")
    if not path:
        pytest.skip("METASCHED_CLIENTS is not set; run make test-clients")
    return Path(path)


@pytest.fixture
def three(site: Site, slurm_site: SlurmSite) -> Iterator[Site]:
    """A running site over two Slurm clusters and a local one."""
    for cluster in slurm_site:
        cluster.empty()
    tables = "".join(cluster.table("poll_interval = 1\n") for cluster in slurm_site)
    site.configure(ONE_LOCAL + tables, extra=f"first_id = {FIRST_ID}\n")
    site.start()
    yield site
    for cluster in slurm_site:
        cluster.empty()


BATCHTOOLS = """
suppressMessages(library(batchtools))
options(batchtools.verbose = FALSE)
functions <- function(arrays) {
  makeClusterFunctionsSlurm("slurm.tmpl", array.jobs = arrays, fs.latency = 10)
}
registry <- function(name, arrays) {
  reg <- makeRegistry(file.dir = name, conf.file = NA, work.dir = getwd())
  reg$cluster.functions <- functions(arrays)
  reg
}
for (arrays in c(FALSE, TRUE)) {
  reg <- registry(sprintf("reg%s", arrays), arrays)
  batchMap(function(x) { Sys.sleep(2); if (x == 3) stop("three") else x^2 }, x = 1:4)
  ids <- findJobs()
  if (arrays) ids$chunk <- 1
  submitJobs(ids, resources = list(chunks.as.arrayjobs = arrays))
  listed <- nrow(findOnSystem())
  waitForJobs(sleep = 1, timeout = 200)
  failed <- sub(".* : ", "", getErrorMessages()$message)
  done <- paste(unlist(reduceResultsList(findDone())), collapse = " ")
  cat(sprintf("jobs: %d of 4 listed, %s %s\\n", listed, done, failed))
}
reg <- registry("killed", FALSE)
batchMap(function(x) Sys.sleep(600), x = 1)
submitJobs()
killed <- killJobs(1)$killed
for (attempt in 1:60) if (nrow(findOnSystem()) > 0) Sys.sleep(1)
cat(sprintf("killed: %s, left: %d\\n", killed, nrow(findOnSystem())))
"""
BATCHTOOLS_TEMPLATE = """\
#!/bin/bash
#SBATCH --job-name=<%= job.name %> --output=<%= log.file %> --error=<%= log.file %>
#SBATCH --time=5 --ntasks=1 --cpus-per-task=1 --mem-per-cpu=200
<%= if (array.jobs) sprintf("#SBATCH --array=1-%i", nrow(jobs)) else "" %>
Rscript -e 'batchtools::doJobCollection("<%= uri %>")'
"""


def variables(site: Site, python: Path) -> Mapping[str, str]:
    path = os.pathsep.join(map(str, (COMMANDS, python.parent, "/usr/bin", "/bin")))
    variables = {"PATH": path, "PYTHONPATH": str(site.folder), "USER": getpass.getuser()}
    return site.environment | variables


def run(site: Site, python: Path, *command: str | Path) -> str:
    """Run a workflow in the folder of the site; return what it prints."""
    done = subprocess.run(
        command,
        env=variables(site, python),
        cwd=site.folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        pytest.param(SUBMITIT, "12\n[11, 22, 33]\nTrue\n", id="submitit"),
        pytest.param(SIMPLE_SLURM, "['task', '3', 'task', '4', 'task', '5']\n", id="simple-slurm"),
        pytest.param(DASK, "42\n", id="dask-jobqueue"),
        pytest.param(PSIJ, "[('COMPLETED', 0), ('FAILED', 3)]\n", id="psij"),
        pytest.param(PARSL, "42\n", id="parsl"),
        pytest.param(EXECUTORLIB, "13\n", id="executorlib"),
        pytest.param(TOIL, "42\n", id="toil"),
        pytest.param(FIREWORKS, "True 1\n", id="fireworks"),
    ],
)
def test_a_client_runs_its_workflow(three: Site, python: Path, script: str, printed: str) -> None:
    (three.folder / "functions.py").write_text(FUNCTIONS)
    (three.folder / "workflow.py").write_text(script)
    assert run(three, python, python, "workflow.py").endswith(printed)


def test_snakemake_runs_its_workflow(three: Site, python: Path) -> None:
    (three.folder / "Snakefile").write_text(SNAKEFILE)
    options = ["--executor", "slurm", "--jobs", "3", "--default-resources", "slurm_partition=main"]
    run(three, python, python.parent / "snakemake", *options)
    outputs = [(three.folder / f"o{index}.txt").read_text() for index in range(3)]
    assert outputs == ["0\n", "1\n", "2\n"]


def test_maestro_runs_its_study(three: Site, python: Path) -> None:
    (three.folder / "study.yaml").write_text(MAESTRO)
    maestro = python.parent / "maestro"
    run(three, python, maestro, "run", "-y", "-fg", "-s", "1", "-o", "out", "study.yaml")
    [output] = three.folder.glob("out/two/two.txt")
    assert output.read_text() == "one\n"


def test_reframe_runs_its_test(three: Site, python: Path) -> None:
    (three.folder / "site.py").write_text(REFRAME_SITE)
    (three.folder / "check.py").write_text(REFRAME_CHECK)
    reframe = python.parent / "reframe"
    printed = run(three, python, reframe, "-C", "site.py", "-c", "check.py", "--prefix=.", "-r")
    assert "Ran 1/1 test case(s) from 1 check(s) (0 failure(s)" in printed


def test_cylc_runs_its_workflow(three: Site, python: Path) -> None:
    # its jobs begin with a login shell, which sets PATH anew
    cylc_site = CYLC_SITE.format(bin=python.parent)
    for folder, name, text in (("etc", "global.cylc", cylc_site), ("flow", "flow.cylc", CYLC_FLOW)):
        (three.folder / folder).mkdir()
        (three.folder / folder / name).write_text(text)
    cylc = ("env", f"HOME={three.folder}", f"CYLC_CONF_PATH={three.folder / 'etc'}")
    run(three, python, *cylc, python.parent / "cylc", "vip", "--no-detach", "./flow")
    output = three.folder / "cylc-run/flow/run1/log/job/1/two/NN/job.out"
    assert "one\n" in output.read_text()


def test_batchtools_runs_its_registry(three: Site, python: Path) -> None:
    """Jobs alone and as an array, one of which fails, then one that is killed."""
    answer = subprocess.run(
        ["Rscript", "-e", "library(batchtools)"], capture_output=True
    ).returncode
    if answer != 0:
        pytest.skip("batchtools missing; apt-get install r-cran-batchtools")
    (three.folder / "slurm.tmpl").write_text(BATCHTOOLS_TEMPLATE)
    (three.folder / "run.R").write_text(BATCHTOOLS)
    printed = run(three, python, "Rscript", "run.R").splitlines()
    assert printed[-3:] == ["jobs: 4 of 4 listed, 1 4 16 three"] * 2 + ["killed: TRUE, left: 0"]


@pytest.mark.root
def test_a_head_of_snakemake_is_a_job_on_another_host(on_slurm: NodeSite, python: Path) -> None:
    """It calls the daemon by the token of its job."""
    user, home = on_slurm.site.by(A), on_slurm.site.folder / A
    if subprocess.run([*accounts.become(A), "test", "-x", python], check=False).returncode != 0:
        pytest.skip(f"{A} cannot run {python}")
    (home / "Snakefile").write_text(SNAKEFILE)
    (home / "head").write_text(
        f"#!/bin/sh\nexport HOME=$PWD PATH={COMMANDS}:{python.parent}:/usr/bin:/bin\n"
        "exec snakemake --executor slurm --jobs 3 --default-resources slurm_partition=main\n"
    )
    head = user.submit("-t", "20", "--mem", "1G", "-o", "head.out", home / "head")
    [row] = user.until_ended(head)
    assert row["state"] == "completed", (home / "head.out").read_text()
    outputs = [(home / f"o{index}.txt").read_text() for index in range(3)]
    assert outputs == ["0\n", "1\n", "2\n"]
    assert len({job["job"] for job in user.rows()}) == 4


def test_a_client_waits_while_the_daemon_is_gone(three: Site, python: Path) -> None:
    (three.folder / "functions.py").write_text(FUNCTIONS)
    (three.folder / "workflow.py").write_text(SUBMITIT)
    go = three.folder / "go"
    with subprocess.Popen(
        [python, "workflow.py", go],
        env=variables(three, python),
        cwd=three.folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as workflow:
        assert workflow.stdout is not None
        assert workflow.stdout.readline() == "submitted\n"
        three.until(lambda: three.row(FIRST_ID)["state"] == "running")
        three.stop(signal.SIGKILL)
        go.touch()
        three.start()
        *warnings, result = workflow.stdout.read().splitlines()
        assert workflow.wait(SECONDS) == 0
    assert result == "seen"
    # of a sacct while the daemon is gone, if submitit asks just then
    assert all("Bypassing sacct error" in line for line in warnings), warnings
