"""Ids that scripts see on real clusters: those that metasched printed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.harness import slurm
from tests.harness.gridengine import Cell
from tests.harness.slurm import ClusterSpec, SlurmSite

FIRST_ID = 100_000_001
SHOWN = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NAME", "SLURM_ARRAY_JOB_ID")
IDS = "".join(f"echo {name}=${name}\n" for name in (*SHOWN, "SLURM_ARRAY_TASK_ID"))
QUICK = "poll_interval = 0.5\nsettle = 1\n"
NATIVE = "echo native=$METASCHED_NATIVE_ID\n"


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    """Two clusters whose prolog makes a folder of each job: `own` and `native`."""
    if reason := slurm.missing():
        require("slurm", reason)
    folder = tmp_path_factory.mktemp("ids")
    scratch = folder / "scratch"
    scratch.mkdir(mode=0o777)
    scratch.chmod(0o777)
    prolog = folder / "prolog"
    prolog.write_text(f"#!/bin/sh\nmkdir -p {scratch}/$SLURM_JOB_ID\n")
    prolog.chmod(0o755)
    specs = [
        ClusterSpec(name, name[0], nodes=2, cpus=4, settings=(f"Prolog={prolog}",))
        for name in ("own", "native")
    ]
    with SlurmSite(folder / "slurm", specs) as site:
        yield site


@pytest.fixture
def over_both(site: Site, clusters: SlurmSite) -> Site:
    for cluster in clusters:
        cluster.empty()
    native = 'poll_interval = 1\n[cluster.job]\njob_id = "native"\n'
    tables = clusters["own"].table("poll_interval = 1\n") + clusters["native"].table(native)
    site.configure(tables, extra=f"first_id = {FIRST_ID}\n")
    site.start()
    return site


def outputs(site: Site, cluster: str, script: str, *options: str) -> dict[str, dict[str, str]]:
    """Run a script; return what each task printed as NAME=VALUE lines, by task or job."""
    file = site.folder / "script"
    file.write_text(script)
    command = [
        "--cluster",
        cluster,
        "-J",
        "it's a $name",
        "-o",
        str(site.folder / "%A_%a.out"),
        *options,
    ]
    job = site.submit(*command, str(file))
    rows = site.until_ended(job)
    printed = {}
    for row in rows:
        index = "" if row["task"] is None else f"_{row['task']}"
        text = (site.folder / f"{job}{index or '_0'}.out").read_text()
        assert row["state"] == "completed", (row, text)
        written = list(filter(None, text.splitlines()))
        assert all("=" in line for line in written), text
        lines = dict(line.split("=", 1) for line in written)
        # the daemon's view of native ids: that of an array task is not the number of its job
        printed[f"{job}{index}"] = lines | {"listed": row["native_id"]}
    return printed


def expected(job: int, number: int, task: int | None, is_slurm: bool) -> dict[str, str]:
    array = {"SLURM_ARRAY_JOB_ID": "", "SLURM_ARRAY_TASK_ID": ""}
    if task is not None:
        array = {"SLURM_ARRAY_JOB_ID": str(job), "SLURM_ARRAY_TASK_ID": str(task)}
    # MPI libraries take the old name for a sign of Slurm
    ids = {"SLURM_JOB_ID": str(number), "SLURM_JOBID": str(number) if is_slurm else ""}
    return {**ids, "SLURM_JOB_NAME": "it's a $name", **array}


def check_own_ids(site: Site, cluster: str) -> None:
    """Assert that a job, a regular array and an irregular one see metasched's ids."""
    script, is_slurm = "#!/bin/sh\n" + IDS + NATIVE, cluster == "own"
    [(name, lines)] = outputs(site, cluster, script).items()
    native, listed = lines.pop("native"), lines.pop("listed")
    assert lines == expected(int(name), int(name), None, is_slurm)
    assert native == listed != name
    for indices in ([2, 4, 6], [1, 7, 8]):
        printed = outputs(site, cluster, script, "--array", ",".join(map(str, indices)))
        job = int(min(printed).partition("_")[0])
        natives = {lines.pop("native") for lines in printed.values()}
        assert len(natives) == 3
        for lines in printed.values():
            del lines["listed"]
        assert printed == {
            f"{job}_{task}": expected(job, job + position, task, is_slurm)
            for position, task in enumerate(indices)
        }


def test_scripts_see_our_ids_on_slurm(over_both: Site) -> None:
    check_own_ids(over_both, "own")


def test_scripts_see_our_ids_on_a_local_cluster(site: Site) -> None:
    site.configure(ONE_LOCAL, extra=f"first_id = {FIRST_ID}\n")
    site.start()
    check_own_ids(site, "here")


def test_scripts_see_our_ids_on_grid_engine(site: Site, gridengine_cell: Cell) -> None:
    gridengine_cell.empty()
    table = gridengine_cell.table(gridengine_cell.python(site.folder / "python"), QUICK)
    site.configure(table, extra=f"first_id = {FIRST_ID}\n")
    site.start()
    check_own_ids(site, "cell")


LOGIN = """#!/bin/bash -l
exec 2>&1
srun -n1 bash -c 'echo id=$SLURM_JOB_ID'
"""


def test_a_login_shell_may_reset_the_path(over_both: Site) -> None:
    """With the lines of /etc/profile.d the drop-ins stay first; else srun knows no such job."""
    site = over_both
    (site.folder / "login").write_text(LOGIN)
    reset = "PATH=/usr/local/bin:/usr/bin:/bin\n"
    snippet = site.run("drop-in", "slurm", "--profile").stdout
    texts = {}
    for name, profile in (("without", reset), ("with", reset + snippet)):
        home = site.folder / name
        home.mkdir()
        (home / ".bash_profile").write_text(profile)
        options = ("--cluster", "own", "--export", f"ALL,HOME={home}", "-o", f"{home}/out")
        job = site.submit(*options, str(site.folder / "login"))
        site.until_ended(job)
        texts[name] = (home / "out").read_text().replace(str(job), "JOB")
    assert texts["with"] == "id=JOB\n"
    assert "Unable to confirm allocation for job JOB: Invalid job id" in texts["without"]


def test_the_folder_is_refused_while_ids_could_be_those_of_a_cluster(
    site: Site, clusters: SlurmSite
) -> None:
    def start_with(first_id: str) -> None:
        site.configure(clusters["own"].table("poll_interval = 1\n"), extra=first_id)
        site.start()
        site.until(lambda: all(row["max_native_id"] for row in site.cluster_rows()))

    start_with("")
    assert "the daemon has no first_id" in site.error("drop-in", "slurm", code=3)
    job = site.submit("--hold", "--wrap", "true")
    site.stop()
    start_with("first_id = 67043329\n")
    assert [row["max_native_id"] for row in site.cluster_rows()] == [67043328]
    assert f"your open job {job} is below first_id" in site.error("drop-in", "slurm", code=3)
    site.run("cancel", str(job))
    folder = Path(site.run("drop-in", "slurm").stdout.rstrip("\n"))
    assert (folder / "squeue").exists()


STEPS = """#!/bin/bash
{ids}
exec 2>errors
srun -n2 -lo step-%j-%J-%A.%t bash -c 'echo id=$SLURM_JOB_ID; echo name=$SLURM_JOB_NAME'
env $(env | sed -n 's/^\\(SLURM_[A-Z_]*\\)=.*/-u \\1/p' | grep -v {kept}) srun -n1 -o bare \
  bash -c 'echo id=$SLURM_JOB_ID conf=$SLURM_CONF'
for list in NONE A=1 ALL,A=1; do
  srun -n1 --export=$list /bin/bash -c 'echo id=$SLURM_JOB_ID; echo a=$A' > export-$list
done
srun -n1 --task-prolog=$PWD/user-prolog bash -c 'echo id=$SLURM_JOB_ID mine=$MINE' > prolog
sbcast user-prolog {copy}; cmp user-prolog {copy} && echo copied=yes
{srun} -n1 true 2> absolute; echo absolute=$?
[ -d {scratch}/$SLURM_JOB_ID ]; echo scratch=$?
"""


@pytest.mark.parametrize("cluster", ["own", "native"])
def test_steps_of_a_job(over_both: Site, clusters: SlurmSite, cluster: str) -> None:
    """srun gets Slurm's id, its tasks and the names of their files get the script's."""
    site = over_both
    scratch = clusters.folder.parent / "scratch"
    steps = site.folder / "steps"
    steps.mkdir()
    (steps / "user-prolog").write_text("#!/bin/sh\necho export MINE=1\n")
    (steps / "user-prolog").chmod(0o755)
    own = cluster == "own"
    script = STEPS.format(
        ids=IDS,
        # the real command needs its configuration, which clients remove, too
        kept="ID" if own else "-e ID -e CONF",
        copy=site.folder / "copy",
        scratch=scratch,
        srun=shutil.which("srun", path=slurm.SEARCH_PATH),
    )
    [(name, lines)] = outputs(site, cluster, script, "-n2", "--chdir", str(steps)).items()
    job = lines["SLURM_JOB_ID"]
    assert job == (name if own else lines["listed"])
    files = {path.name: path.read_text() for path in steps.iterdir()}
    for rank in (0, 1):
        step = files[f"step-{job}-{job}.0-{job}.{rank}"]
        assert step == f"{rank}: id={job}\n{rank}: name=it's a $name\n"
    assert files["bare"] == f"id={job} conf={clusters[cluster].conf}\n"
    assert files["export-NONE"] == f"id={job}\na=\n"
    assert files["export-A=1"] == files["export-ALL,A=1"] == f"id={job}\na=1\n"
    assert files["prolog"] == f"id={job} mine=1\n"
    # only a slurmd of root may become the user who owns the copy
    assert ("copied" in lines) == (os.geteuid() == 0)
    # by its absolute path it knows no such job, and so reaches no other
    assert lines["absolute"] == ("1" if own else "0")
    assert ("Invalid job id specified" in files["absolute"]) == own
    assert lines["scratch"] == ("1" if own else "0")


# a program of Open MPI without a compiler: it adds up the ranks
MPI_SUM = """
import ctypes, os
mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
def address(name):
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))
world = address("ompi_mpi_comm_world")
mpi.MPI_Init(None, None)
rank, total = ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
operation = address("ompi_mpi_int"), address("ompi_mpi_op_sum")
mpi.MPI_Allreduce(ctypes.byref(rank), ctypes.byref(total), 1, *operation, world)
node = os.environ["SLURMD_NODENAME"]
# mpirun may pass the end of a line on after the line of another rank
print(f"\\nrank{rank.value}={total.value} {node} {os.environ['SLURM_JOB_ID']}", flush=True)
mpi.MPI_Finalize()
"""
MPI_JOB = """#!/bin/bash -l
echo SLURM_JOB_ID=$SLURM_JOB_ID
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpirun /usr/bin/python3 {program} 2> errors
echo mpirun=$?
"""


@pytest.mark.parametrize("cluster", ["own", "native"])
def test_mpirun_in_a_job_of_two_nodes(over_both: Site, cluster: str) -> None:
    """It starts its daemons by the drop-in srun, which gives Slurm its own id."""
    if shutil.which("mpirun") is None:
        require("openmpi", "mpirun not found; apt-get install openmpi-bin")
    site = over_both
    (site.folder / "sum.py").write_text(MPI_SUM)
    # a login shell may set the PATH anew
    snippet = site.run("drop-in", "slurm", "--profile").stdout
    (site.folder / ".bash_profile").write_text("PATH=/usr/local/bin:/usr/bin:/bin\n" + snippet)
    script = MPI_JOB.format(program=site.folder / "sum.py")
    options = ("-N2", "-n4", "--chdir", str(site.folder), "--export", f"ALL,HOME={site.folder}")
    [(name, lines)] = outputs(site, cluster, script, *options).items()
    job = lines["SLURM_JOB_ID"]
    assert job == (name if cluster == "own" else lines["listed"])
    assert lines["mpirun"] == "0", (site.folder / "errors").read_text()
    printed = [lines[f"rank{rank}"].split() for rank in range(4)]
    assert {(total, shown) for total, _, shown in printed} == {("6", job)}
    assert {node for _, node, _ in printed} == {f"{cluster[0]}1", f"{cluster[0]}2"}


def test_scripts_of_slurm_see_ids_without_first_id(site: Site, gridengine_cell: Cell) -> None:
    """A script with #SBATCH lines has a folder of its own on clusters without Slurm."""
    gridengine_cell.empty()
    python = gridengine_cell.python(site.folder / "python")
    table = gridengine_cell.table(python, "poll_interval = 0.5\nsettle = 1\n")
    site.configure(ONE_LOCAL + table)
    site.start()
    path = 'echo "PATH=$PATH"\necho "SLURM_NTASKS=$SLURM_NTASKS"\n' + IDS
    for cluster in ("here", gridengine_cell.name):
        [(name, lines)] = outputs(site, cluster, "#!/bin/sh\n#SBATCH -t 5\n" + path).items()
        assert (lines["SLURM_JOB_ID"], lines["SLURM_JOBID"]) == (name, "")
        assert lines["SLURM_NTASKS"] == "1"
        assert "/drop_in/slurm" not in lines["PATH"]
        [(_, lines)] = outputs(site, cluster, "#!/bin/sh\n" + path).items()
        assert lines["SLURM_JOB_ID"] == lines["SLURM_NTASKS"] == ""
