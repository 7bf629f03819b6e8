"""`#$` and `#PBS` lines as options of sbatch: mapped, refused, and shown by their page."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.adapters.base import Submission
from metasched.adapters.other_dialects import with_dialect_variables
from metasched.client import gridengine_directives, pbs_directives
from metasched.client.dialects import read_dialects, script_dialect
from metasched.client.directive_values import DirectiveError
from metasched.client.options import SBATCH_OPTIONS
from metasched.drop_in.sbatch_options import OPTIONS
from metasched.model.job import Job, Payload

PAGE = (Path(__file__).parents[2] / "docs/directives.md").read_text()


def options(*lines: str) -> dict[str, str | None]:
    read = read_dialects("\n".join(["#!/bin/bash", *lines, "true", ""]), "job.sh")
    return {name: value for name, (value, _) in read.values.items()}


def warnings(*lines: str) -> list[str]:
    return read_dialects("\n".join(["#!/bin/sh", *lines]), "job.sh").warnings


def test_the_page_shows_the_tables() -> None:
    rows = [
        f"| `{name}` | {effect} | {remark} |"
        for table in (
            gridengine_directives.OPTIONS,
            gridengine_directives.RESOURCES,
            pbs_directives.OPTIONS,
            pbs_directives.RESOURCES,
            pbs_directives.ATTRIBUTES,
        )
        for name, (*_, effect, remark) in table.items()
    ]
    tables = PAGE.partition("## Variables")[0].splitlines()
    assert [line for line in tables if line.startswith("| `")] == rows


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["#$ -N x -P physics -q long,short"], "job-name=x account=physics partition=long,short"),
        (["#$-cwd", "#$ -V -j y", "#$ -e err"], "export=ALL"),
        (["#$ -o out.$JOB_ID.$TASK_ID", "#$ -e %x"], "output=out.%A.%a error=%%x"),
        (["#$ -o :/none/${USER}/"], "output=/none/%u/%x.o%A"),
        (["#$ -pe smp 4", "#$ -l h_rt=3600,h_vmem=2G"], "cpus-per-task=4 time=1:00:00 "
         "mem-per-cpu=2048M"),
        (["#$ -pe openmpi 16-32"], "ntasks=16"),
        (["#$ -pe openmp 8", "#$ -l gpu=1"], "cpus-per-task=8 gpus=1"),
        (["#$ -l h_vmem=1g -l mem_free=500M -l s_rt=0:1:30"], "time=0:01:30 mem-per-cpu=954M"),
        (["#$ -soft", "#$ -l whatever=1", "#$ -hard -l excl=true"], "exclusive"),
        (["#$ -hold_jid 12,13", "#$ -hold_jid_ad 14"], "dependency=afterany:12:13,aftercorr:14"),
        (["#$ -a 203001021530.07", "#$ -h", "#$ -r n"], "begin=2030-01-02T15:30:07 hold "
         "no-requeue"),
        (["#$ -v A=1,B", "#$ -v C"], "export=ALL,A=1,B,C"),
        (["#$ -S /usr/local/bin/bash", "#$ -b n -wd /data"], "chdir=/data"),
        (["#$ -t 1-9:2", "#$ -tc 3"], "array=1-9:2%3"),
        (["#$ -p -100 -notify", "#$ -l h_rt=600,h=!n2"], "nice=100 time=0:10:00 "
         "signal=B:USR2@60 exclude=n2"),
        (["#$ -p 0 -l hostname=n1.site"], "nodelist=n1.site"),
        (["#PBS -p -1024 -l host=n1"], "nice=1024 nodelist=n1"),
        (["#$Id: a comment$", "#PBSpro"], ""),
        (["#PBS -l nodes=2:ppn=4,walltime=90"], "time=0:01:30 nodes=2 ntasks-per-node=4"),
        (["#PBS -l nodes=2:ppn=4+1:ppn=4", "#PBS -l mem=6gb"], "nodes=3 ntasks-per-node=4 "
         "mem=2048M"),
        (["#PBS -lnodes=1:ppn=2:gpus=1:fat:new"], "gpus-per-node=1 nodes=1 ntasks-per-node=2 "
         "constraint=fat&new"),
        (["#PBS -l procs=16,pmem=1gb"], "ntasks=16 mem-per-cpu=1024M"),
        (["#PBS -l ncpus=48", "#PBS -l ngpus=4", "#PBS -l mem=1gw"], "cpus-per-task=48 "
         "gpus-per-node=4 mem=8192M"),
        (["#PBS -l select=2:ncpus=8:mpiprocs=4:mem=10gb"], "nodes=2 ntasks-per-node=4 "
         "cpus-per-task=2 mem=10240M"),
        (["#PBS -l select=4:ncpus=2:mem=3000mb"], "ntasks=4 cpus-per-task=2 mem-per-cpu=1500M"),
        (["#PBS -l select=2:ncpus=2", "#PBS -l place=scatter:excl"], "exclusive nodes=2 "
         "ntasks-per-node=1 cpus-per-task=2"),
        (["#PBS -l select=2:ncpus=2:mem=1gb -l place=pack"], "nodes=1 ntasks=2 cpus-per-task=2 "
         "mem-per-cpu=512M"),
        (["#PBS -l select=ncpus=4:ompthreads=4:ngpus=1"], "ntasks=1 cpus-per-task=4 "
         "gpus-per-node=1 export=ALL,OMP_NUM_THREADS=4"),
        (["#PBS -joe -o a -e b", "#PBS -hz"], "output=a hold"),
        (["#PBS -W depend=afterok:12.server:13[],after:14[3].s"],
         "dependency=afterok:12:13,after:14_3"),
        (["#PBS -a 1530", "#PBS -r y", "#PBS -m n"], "begin=15:30 requeue "
         "mail-type=NONE"),
        (["#$ -m bea -M ada@example.org,bob"],
         "mail-type=BEGIN,END,FAIL mail-user=ada@example.org"),
        (["#PBS -l nodes=2", "#SBATCH -n 1"], ""),
    ],
)  # fmt: skip
def test_lines_are_mapped(lines: list[str], expected: str) -> None:
    pairs = (term.partition("=") for term in expected.split())
    assert options(*lines) == {name: value if is_set else None for name, is_set, value in pairs}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("#$ -l infiniband=1", '"-l infiniband=1" has no equivalent, job.sh line 3; write #MS '),
        ("#$ -pe fluent 4", '"-pe fluent 4" is an unknown parallel environment, job.sh line 3; '),
        ("#$ -pe smp", "-pe: expected 2 arguments, job.sh line 3; "),
        ("#$ -l h_rt=soon", '"h_rt soon" is no time, job.sh line 3; write it as 3600'),
        ("#$ -l h_vmem=4X", '"h_vmem 4X" is no size, job.sh line 3; '),
        ("#$ -S /usr/bin/python3", "is not the interpreter of line 1, job.sh line 3; write #!/usr"),
        ("#$ -sync y", '"-sync y" is not supported, job.sh line 3; write --wait'),
        ("#$ -hold_jid other", '"other", which is no id, job.sh line 3; '),
        ("#$ h_rt=60", '"h_rt=60" is no option of qsub, job.sh line 3; '),
        ("#$ -frobnicate", '"-frobnicate" is no option of qsub, job.sh line 3; '),
        ("#$ -o node1:/x", '"-o node1:/x" names a host or nothing, job.sh line 3; '),
        ("#$ -o $SECRET/x", "has an unknown variable $SECRET, job.sh line 3; "),
        ("#$ -N 'x", "no closing quotation, job.sh line 3; close it"),
        ("#$ -q all.q@node1", '"-q all.q@node1" names hosts, job.sh line 3; '),
        ("#$ -pe mpi 4 -l gpu=1", '"gpu 1" of several tasks, job.sh line 3; write #MS --gpus'),
        ("#$ -p soon", '"-p soon" is no priority, job.sh line 3; write a number from -1023 to 0'),
        ("#$ -p -1024", '"-p -1024" is no priority, job.sh line 3; '),
        ("#$ -l hostname=n1|n2", '"hostname n1|n2" is not the name of a host, job.sh line 3; '),
        ("#$ -l h=n*", '"hostname n*" is not the name of a host, job.sh line 3; '),
        ("#PBS -p -1025", "write a number from -1024 to 0"),
        ("#PBS -l host=a:b", '"-l host a:b" is not the name of a host, job.sh line 3; '),
        ("#PBS -l cput=60", '"-l cput=60" has no equivalent, job.sh line 3; '),
        ("#PBS -l nodes=node1+node2", '"-l nodes node1+node2" names a host, job.sh line 3; '),
        ("#PBS -l nodes=1:ppn=2+1:ppn=4", "asks for several kinds of nodes, job.sh line 3; "),
        ("#PBS -l nodes=1:ppn=0", "is no number, job.sh line 3; "),
        ("#PBS -l select=1:ncpus=3:mpiprocs=2", "shares 3 processors among 2 processes, job.sh"),
        ("#PBS -l select=1:host=n1", "has host, which has no equivalent, job.sh line 3; "),
        ("#PBS -l select=1 -l nodes=1", '"-l nodes 1" beside -l select, job.sh line 3; '),
        ("#PBS -l nodes=1 -l ncpus=2", '"-l ncpus 2" beside -l nodes, job.sh line 3; '),
        ("#PBS -l place=pack", '"-l place pack" without -l select, job.sh line 3; '),
        ("#PBS -I", '"-I" is not supported, job.sh line 3; run a batch job'),
        ("#PBS -W stagein=x", '"-W stagein=x" has no equivalent, job.sh line 3; '),
        ("#PBS -W depend=on:2", "is no dependency, job.sh line 3; "),
        ("#PBS -l mem=many", "is no size, job.sh line 3; "),
        ("#BSUB -n 4", "#BSUB lines are not understood, job.sh line 3; "),
    ],
)
def test_a_line_without_equivalent_refuses_the_job(line: str, message: str) -> None:
    with pytest.raises(DirectiveError) as refusal:
        options("# a comment", line)
    assert message in f"{refusal.value.problem}; {refusal.value.fix}"


@pytest.mark.parametrize("prefix", ["#$ -", "#PBS -"])
@given(text=st.text(max_size=60), letter=st.sampled_from("aejloptvWSrqN"))
def test_any_line_is_read_or_refused(prefix: str, text: str, letter: str) -> None:
    line = f"{prefix}{letter} {text}"
    with suppress(DirectiveError):
        read_dialects(f"#!/bin/sh\n{line}\n", "job.sh")


@pytest.mark.parametrize(
    "table",
    [gridengine_directives.OPTIONS, pbs_directives.OPTIONS],
    ids=["gridengine", "pbs"],
)
def test_every_option_of_the_tables_does_what_it_says(
    table: dict[str, tuple[int, str, str]],
) -> None:
    """A refused option names its remedy, an ignored option warns, any other does neither."""
    prefix = "#$" if table is gridengine_directives.OPTIONS else "#PBS"
    good = {"-S": "/bin/sh", "-a": "01020304", "-dl": "01020304", "-b": "n", "-now": "n"}
    good |= {"-sync": "n", "-i": "/dev/null", "-hold_jid": "1", "-hold_jid_ad": "1", "-tc": "1"}
    good |= {
        "-pe": "smp 2",
        "-W": "depend=after:1",
        "-c": "n",
        "-j": "n",
        "-p": "-1",
        "-notify": "-l h_rt=60",
        "-m": "abe",
    }
    good["-l"] = "h_rt=1" if prefix == "#$" else "walltime=1"
    for option, (values, effect, remark) in table.items():
        value = good.get(option, " ".join(["1"] * int(values)))
        line = f"{prefix} {option} {value if values or option == '-notify' else ''}"
        if effect == "refused":
            with pytest.raises(DirectiveError) as refusal:
                warnings(line)
            assert refusal.value.fix == remark
        else:
            assert len(warnings(line)) == (effect == "ignored with a warning"), option


def test_both_commands_know_every_option() -> None:
    """What the tables map to exists for `metasched submit` and for the drop-in sbatch."""
    page = set(re.findall(r"`--([a-z-]+)", PAGE))
    assert {"ntasks", "time", "requeue"} < page
    for name in page:
        assert name in OPTIONS, name
        assert f"--{name}" in SBATCH_OPTIONS, name


def test_warnings_name_line_and_reason() -> None:
    assert warnings("#$ -ac a=b", "#$ -p 100", "#$ -notify", "#PBS -p 1") == [
        "-ac a=b is ignored, job.sh line 2: jobs have no context",
        "-p 100 is ignored, job.sh line 3: write #MS --urgency",
        "-notify is ignored, job.sh line 4: without -l h_rt no end is known before it comes",
        "-p 1 is ignored, job.sh line 5: write #MS --urgency",
    ]
    assert warnings("#SBATCH -n 2", "#PBS -l frob=1") == [
        "#PBS lines are not read beside #SBATCH lines, job.sh"
    ]


@pytest.mark.parametrize(
    ("lines", "dialect"),
    [
        ("#$ -N x", "gridengine"),
        ("#PBS -N x", "pbs"),
        ("#SBATCH -n 1\n#PBS -N x", "slurm"),
        ("true\n#PBS -N x", "slurm"),
        ("#$Id$", "slurm"),
    ],
)
def test_dialect(lines: str, dialect: str) -> None:
    assert script_dialect(f"#!/bin/sh\n{lines}\n") == dialect


def run_wrapped(script: str, tmp_path: Path, cpus: int, **variables: str) -> list[str]:
    """Run a script as on a cluster that sets `variables`; return its words."""
    tools = tmp_path / "bin"
    tools.mkdir(exist_ok=True)
    scontrol = tools / "scontrol"
    scontrol.write_text(
        '#!/bin/sh\n[ "$*" = "show hostnames n[1-3]" ] && printf "n1\\nn2\\nn3\\n"\n'
    )
    scontrol.chmod(0o755)
    job = Job(
        id=17, submitted=1.0, estimated=1.0, cpus=cpus, tasks=cpus // 2, name="it's", user="ada"
    )
    payload = Payload(script=f"#!/bin/sh\n{script}\n", directory="/x y")
    dialect = "pbs" if "PBS" in script else "gridengine"
    submission = Submission(tag="t", job=job, payload=payload, dialect=dialect)
    wrapped = with_dialect_variables(submission, "alpha", str(tools)).payload.script
    environment = {"PATH": "/usr/bin:/bin", "METASCHED_JOB_ID": "17", "METASCHED_TASK": "0"}
    done = subprocess.run(
        ["/bin/sh", "-s"],
        input=wrapped,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_hosts_are_those_of_the_job(tmp_path: Path) -> None:
    on_slurm = {
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_TASKS_PER_NODE": "2(x2),1",
        "SLURM_JOB_CPUS_PER_NODE": "4(x2),2",
    }
    nodes = "cat $PBS_NODEFILE; echo $PBS_NUM_NODES $PBS_NUM_PPN $NCPUS $PBS_O_WORKDIR $PBS_JOBNAME"
    printed = run_wrapped(nodes, tmp_path, 10, **on_slurm)
    assert printed == ["n1", "n1", "n2", "n2", "n3", "3", "2", "4", "/x", "y", "it's"]
    printed = run_wrapped("cat $PE_HOSTFILE; echo $NHOSTS $NSLOTS", tmp_path, 10, **on_slurm)
    hosts = [f"n{i} {slots} alpha@n{i} UNDEFINED" for i, slots in ((1, 4), (2, 4), (3, 2))]
    assert printed == [*" ".join(hosts).split(), "3", "10"]
    host = os.uname().nodename
    assert run_wrapped("cat $PBS_NODEFILE", tmp_path, 4) == [host, host]
    (tmp_path / "pe").write_text("a 4 q@a U\nb 2 q@b U\n")
    on_gridengine = {"SGE_JOB_SPOOL_DIR": "/s", "PE_HOSTFILE": str(tmp_path / "pe"), "JOB_ID": "5"}
    assert run_wrapped("cat $PBS_NODEFILE", tmp_path, 6, **on_gridengine) == ["a", "a", "b"]
    own = run_wrapped("echo $JOB_ID $PE_HOSTFILE", tmp_path, 6, **on_gridengine)
    assert own == ["5", str(tmp_path / "pe")]


def test_inherited_variables_of_another_job_do_not_count(tmp_path: Path) -> None:
    inherited = {"JOB_ID": "5", "NSLOTS": "9", "PE_HOSTFILE": "/nowhere", "RESTARTED": "1"}
    printed = run_wrapped(
        "echo $JOB_ID $NSLOTS $RESTARTED; cat $PE_HOSTFILE", tmp_path, 2, **inherited
    )
    host = os.uname().nodename
    assert printed == ["17", "2", "0", host, "2", f"alpha@{host}", "UNDEFINED"]
