"""The options and paths that the drop-in srun changes, and the scripts of which it relies on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from metasched.adapters.base import Submission
from metasched.adapters.slurm import batch_script
from metasched.client.directives import is_foreign_dialect
from metasched.drop_in import srun
from metasched.drop_in.command import CommandError
from metasched.drop_in.srun import own_options, own_pattern, split_options
from metasched.model.job import Job, Payload

FACTS = {
    "METASCHED_NATIVE_ID": "17",
    "METASCHED_TASK_NUMBER": "100000005",
    "METASCHED_SLURM_CONF": "/etc/slurm.conf",
    "METASCHED_DROP_IN": "/drop-in",
    "SLURM_JOB_ID": "100000005",
}
NAME = "x\n y'$z"
PROLOG = "--task-prolog=/drop-in/task_prolog"


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FACTS.items():
        monkeypatch.setenv(name, value)
    for name in ("SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV", "SLURM_TASK_PROLOG", "METASCHED_SLURM_BIN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("line", "options", "program"),
    [
        ("-n2 -o x a -o y", [("", "2"), ("output", "x")], "a -o y"),
        ("-lox a", [("", ""), ("output", "x")], "a"),
        ("-lo x a", [("", ""), ("output", "x")], "a"),
        ("--output=x --error y a", [("output", "x"), ("error", "y")], "a"),
        ("--outp x a", [("output", "x")], "a"),
        ("--exclusive --pty a --error y", [("", ""), ("", "")], "a --error y"),
        ("-K -I --mpi pmi2 a", [("", ""), ("", ""), ("", "pmi2")], "a"),
        ("-N 1 -- a", [("", "1")], "-- a"),
        ("--input", [("input", "")], ""),
    ],
)
def test_options_end_at_the_program(
    line: str, options: list[tuple[str, str]], program: str
) -> None:
    parsed, rest = split_options(line.split())
    assert ([option[:2] for option in parsed], rest) == (options, program.split())


@pytest.mark.usefixtures("facts")
def test_words_that_do_not_matter_are_kept() -> None:
    words = ["-n2", "-c", "3", "--gres=gpu:1", "--time", "5", "-lK0", "--exclusive"]
    options, _ = split_options([*words, "a"])
    assert own_options(options) == [*words[:6], "-l", "-K0", "--exclusive", PROLOG]


@pytest.mark.usefixtures("facts")
@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("%j.%t", "100000005.%t"),
        ("%J", "100000005.%s"),
        ("%12j-%2A", "0100000005-100000005"),  # Slurm pads to ten digits at most
        ("%%j-%N-%a", "%%j-%N-%a"),
        ("a\\%j", "a\\%j"),
        ("%", "%"),
    ],
)
def test_patterns_get_the_ids_that_scripts_see(pattern: str, path: str) -> None:
    assert own_pattern(pattern) == path


@pytest.mark.usefixtures("facts")
def test_patterns_of_a_task_of_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METASCHED_ARRAY_JOB_ID", "100000001")
    monkeypatch.setenv("METASCHED_ARRAY_TASK_ID", "9")
    assert own_pattern("%A_%3a-%j") == "100000001_009-100000005"


@pytest.mark.usefixtures("facts")
@pytest.mark.parametrize(
    ("value", "exported"),
    [
        ("NONE", "METASCHED_TASK_NUMBER,METASCHED_TASK_PROLOG"),
        ("A,B=1", "A,B=1,METASCHED_TASK_NUMBER,METASCHED_TASK_PROLOG"),
        ("ALL,B=1", "ALL,B=1"),
    ],
)
def test_a_list_of_variables_lets_the_prologs_pass(value: str, exported: str) -> None:
    assert own_options([("export", value, [])]) == [PROLOG, f"--export={exported}"]


@pytest.mark.usefixtures("facts")
def test_the_real_command_gets_the_managers_id(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "srun"
    program.write_text('#!/bin/sh\necho "$SLURM_JOB_ID $SLURM_JOBID $SLURM_CONF $*"\n')
    program.chmod(0o755)
    drop_in = Path(srun.__file__).parent / "slurm"
    monkeypatch.setenv("PATH", f"{drop_in}:{tmp_path}:/usr/bin:/bin")

    def answer(*words: str) -> str:
        done = subprocess.run(
            [drop_in / "srun", *words], capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    assert answer("--jobid", "100000005", "a") == f"17 17 /etc/slurm.conf --jobid=17 {PROLOG} a\n"
    # a job that metasched did not send has inherited the variables
    monkeypatch.setenv("SLURM_JOB_ID", "18")
    assert answer("-n1", "a") == "18   -n1 a\n"
    monkeypatch.setenv("SLURM_JOB_ID", "100000005")
    monkeypatch.delenv("METASCHED_SLURM_CONF")
    monkeypatch.setenv("METASCHED_CLUSTER", "grid")
    refusal = "srun: error: cluster grid has no Slurm; run the program without srun\n"
    assert answer("-n1", "a") == refusal
    monkeypatch.delenv("SLURM_JOB_ID")
    assert answer("-n1", "a").startswith("srun: error: not inside a job; ")
    assert answer("--version") == "   --version\n"


SLURMD = {"SLURM_JOB_ID": "17", "SLURM_JOB_NAME": "t", "SLURM_CONF": "/c", "PATH": "/bin"}


def order(**values: object) -> Submission:
    names = ("SLURM_JOB_ID", "METASCHED_NATIVE_ID", "a%b", "SLURM_JOB_NAME")
    # a shell would drop a%b
    script = (
        f"#!{sys.executable} -IS\nimport os\nprint(*(os.environ[n] for n in {names}), end='')\n"
    )
    job = Job(id=100_000_001, submitted=1.0, estimated=1.0, name=NAME, array="1,7-8")
    payload = Payload(script=script, environment={"a%b": "it's"})
    return Submission(tag="t", job=job, payload=payload, exports_job_id=True, **values)  # type: ignore[arg-type]


def run(script: bytes, **variables: str) -> list[str]:
    """Return what a script of `order` prints: three words and the name of the job."""
    done = subprocess.run(
        ["/bin/sh", "-s"],
        input=script,
        env={
            "SLURM_JOB_NAME": NAME,
            "a%b": "it's",
            "SLURM_JOB_ID": "17",
            "SLURM_CONF": "/c",
            "PATH": "/usr/bin:/bin",
            **variables,
        },
        capture_output=True,
        check=True,
    )
    return done.stdout.decode().split(" ", 3)


def test_a_script_sees_the_number_of_its_task() -> None:
    array = batch_script.array_script(order(), [1, 7, 8], "alpha", None)
    assert run(array, SLURM_ARRAY_TASK_ID="8") == ["100000003", "17", "it's", NAME]
    assert run(array, SLURM_ARRAY_TASK_ID="1") == ["100000001", "17", "it's", NAME]
    single = batch_script.task_script(order(), 7, "alpha", "/opt/it's")
    assert run(single) == ["100000002", "17", "it's", NAME]


def test_a_node_without_the_drop_ins_keeps_slurms_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its srun could start no step otherwise."""
    monkeypatch.setattr(batch_script, "drop_in_folder", lambda: "/nowhere")
    assert run(batch_script.task_script(order(), 7, "alpha", None))[:2] == ["17", "17"]


@pytest.mark.parametrize(
    ("lines", "is_foreign"),
    [
        ("#$ -t 1-3\ntrue", True),
        ("#PBS -J 1-3\ntrue", True),
        ("#$ -t 1-3\n#SBATCH -n 2\ntrue", False),
        ("# a comment\ntrue\n#$ -t 1", False),
    ],
)
def test_dialect_of_a_script(lines: str, is_foreign: bool) -> None:
    assert is_foreign_dialect(f"#!/bin/sh\n{lines}\n") == is_foreign


def test_there_must_be_a_real_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("SLURM_JOB_ID", "18")
    with pytest.raises(CommandError, match="no real srun on PATH"):
        srun.main(["a"])
