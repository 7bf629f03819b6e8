"""The options and paths that the drop-in srun changes, and the scripts of which it relies on."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from metasched.adapters.base import Submission
from metasched.adapters.slurm import batch_script
from metasched.adapters.slurm_dialect import batch_variables
from metasched.drop_in import srun
from metasched.drop_in.command import CommandError
from metasched.drop_in.srun import own_options, own_pattern
from metasched.drop_in.srun_options import split_options
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
        ("-n2 -o x a -o y", [("ntasks", "2"), ("output", "x")], "a -o y"),
        ("-lox a", [("", ""), ("output", "x")], "a"),
        ("-lo x a", [("", ""), ("output", "x")], "a"),
        ("--output=x --error y a", [("output", "x"), ("error", "y")], "a"),
        ("--outp x a", [("output", "x")], "a"),
        ("--exclusive --pty a --error y", [("exclusive", ""), ("", "")], "a --error y"),
        ("-K -I --mpi pmi2 a", [("", ""), ("", ""), ("", "pmi2")], "a"),
        ("-N 1 -- a", [("nodes", "1")], "-- a"),
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
    task = ["-n", "2", "sh", "-c", 'echo "$SLURM_JOB_ID $SLURM_NTASKS"']
    assert answer(*task) == "100000005 2\n" * 2  # a cluster without Slurm
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.setenv("METASCHED_SOCKET", str(tmp_path / "none"))
    # outside of a job the daemon chooses a cluster
    assert answer("-n1", "a").startswith("srun: error: Unable to contact slurm controller")
    assert answer("--version") == "   --version\n"
    # whose id it is only the daemon knows
    for others in (["--jobid=100000017"], ["--jobid=17", "-Mx"], ["--jobid=17"], ["-n1"]):
        absent = answer(*others, "a")
        assert absent.startswith("srun: error: Unable to contact slurm controller")


@pytest.mark.usefixtures("facts")
def test_inside_a_job_a_daemon_that_does_not_answer_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "srun"
    program.write_text('#!/bin/sh\necho "$*"\n')
    program.chmod(0o755)
    folder = Path(srun.__file__).parent / "slurm"
    monkeypatch.setenv("PATH", f"{folder}:{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("METASCHED_SOCKET", str(tmp_path / "daemon"))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "daemon"))
        silent.listen()
        silent.setblocking(False)
        words = [str(folder / "srun"), "--jobid=17", "-n1", "a"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        with pytest.raises(BlockingIOError):  # nobody has connected
            silent.accept()
    assert done.stdout == f"--jobid=17 -n1 {PROLOG} a\n"


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


def test_lines_of_burst_buffers_stay_before_the_first_command() -> None:
    script = "#!/bin/bash\n#BB capacity=1\n# x\n#DW jobdw\ntrue\n#BB late\n"
    payload = replace(order().payload, script=script)
    sent = batch_script.task_script(structs.replace(order(), payload=payload), 7, "alpha", None)
    assert sent.decode().split("\n")[:3] == ["#!/bin/sh", "#BB capacity=1", "#DW jobdw"]


def test_a_node_without_the_drop_ins_keeps_slurms_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its srun could start no step otherwise."""
    monkeypatch.setattr(batch_script, "drop_in_folder", lambda: "/nowhere")
    assert run(batch_script.task_script(order(), 7, "alpha", None))[:2] == ["17", "17"]


def test_there_must_be_a_real_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("SLURM_JOB_ID", "18")
    with pytest.raises(CommandError, match="no real srun on PATH"):
        srun.main(["a"])


# a job on a cluster without Slurm
ELSEWHERE = {
    "SLURM_JOB_ID": "100000005",
    "METASCHED_TASK_NUMBER": "100000005",
    "PATH": "/usr/bin:/bin",
}
PROGRAM = Path(srun.__file__).parent / "slurm/srun"


def run_here(tmp_path: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run srun in a job on a cluster without Slurm."""
    return subprocess.run(
        [PROGRAM, *words],
        env=ELSEWHERE | variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_step_without_slurm(tmp_path: Path) -> None:
    step = "echo $SLURM_PROCID of $SLURM_NTASKS in $(basename $PWD); exit $SLURM_PROCID"
    (tmp_path / "d").mkdir()
    done = run_here(tmp_path, "-D", "d", "-o", "%j-%t.out", "sh", "-c", step, SLURM_NTASKS="3")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
    files = {file.name: file.read_text() for file in tmp_path.glob("*.out")}
    assert files == {f"100000005-{i}.out": f"{i} of 3 in d\n" for i in range(3)}
    killed = run_here(tmp_path, "-n1", "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == 137


def test_streams_and_variables_of_a_step_without_slurm(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("read")
    words = ["-n2", "-i", "in", "-o", "%J-%n-%t", "--export", "A=1", "sh", "-c"]
    for content in ("old, and longer", "new"):
        command = f"/bin/cat; echo ' {content}' $A $B $SLURM_JOB_ID"
        assert run_here(tmp_path, *words[:-2], "/bin/sh", "-c", command, B="2").returncode == 0
    for task in (0, 1):
        printed = (tmp_path / f"100000005.0-0-{task}").read_text()
        assert printed == "read new 1 100000005\n"
    assert run_here(tmp_path, "-o", "none", "echo", "x").stdout == ""
    assert not (tmp_path / "none").exists()
    assert run_here(tmp_path, "--version").returncode == 0
    several = run_here(tmp_path, "true", NHOSTS="2")
    assert (several.returncode, several.stdout) == (1, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "x", "true"], "srun: error: Invalid numeric value 'x' for --ntasks.\n"),
        (["-n", "0", "true"], "srun: error: Invalid number of tasks: 0\n"),
        (["-n", "1"], "srun: fatal: No command given to execute.\n"),
        (["none"], "srun: error: none: No such file or directory\n"),
    ],
)
def test_wrong_steps_without_slurm(tmp_path: Path, words: list[str], message: str) -> None:
    done = run_here(tmp_path, *words)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)


def test_a_signal_reaches_the_tasks_of_a_step(tmp_path: Path) -> None:
    step = "trap 'echo told; exit 3' TERM; touch ready-$SLURM_PROCID; while :; do sleep 0.1; done"
    words = [str(PROGRAM), "-n", "2", "sh", "-c", step]
    with subprocess.Popen(words, env=ELSEWHERE, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        while len([*tmp_path.glob("ready-*")]) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        printed, _ = process.communicate(timeout=60)
    assert (process.returncode, printed) == (3, b"told\n" * 2)


def test_variables_of_a_batch_job_without_slurm() -> None:
    job = Job(id=100_000_001, submitted=1.0, estimated=1.0, cpus=6, tasks=3, partition="main")
    payload = Payload(script="", environment={"PATH": "/opt/bin"})
    submission = Submission(tag="t", job=job, payload=payload, exports_job_id=True)
    variables = batch_variables(submission, "desk", 6)
    assert variables["PATH"].endswith("/drop_in/slurm:/opt/bin")
    expected = {
        "SLURM_NTASKS": "3",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_CPUS_ON_NODE": "6",
        "SLURM_CLUSTER_NAME": "desk",
        "SLURM_JOB_PARTITION": "main",
    }
    assert variables.items() >= expected.items()
    assert "SLURM_JOB_ACCOUNT" not in variables
    assert batch_variables(structs.replace(submission, exports_job_id=False), "desk", 6) == {}
    without = batch_variables(structs.replace(submission, has_drop_ins=False), "desk", 6)
    assert "PATH" not in without
    assert without.items() >= expected.items()


def test_a_signal_while_tasks_start_reaches_all_of_them() -> None:
    program = (
        "import os, signal\n"
        "from metasched.drop_in import step\n"
        "start = step._start\n"
        "def start_and_signal(*arguments):\n"
        "    process = start(*arguments)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return process\n"
        "step._start = start_and_signal\n"
        "print(step.run_step(step.Step(['sleep', '60'], 2, os.environ, '', ['', '', ''])))\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == ("143\n", "")  # 128 + SIGTERM
