"""`sbatch` of the drop-in beside the real one: same scripts, same answers, same jobs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from metasched.drop_in.sbatch_options import OPTIONS
from tests.e2e.conftest import Site
from tests.e2e.test_drop_in_slurm import COMMANDS, FIELDS, FIRST_ID, of_release, own, real
from tests.e2e.test_drop_in_slurm import alpha as alpha
from tests.e2e.test_drop_in_slurm import drop_in as drop_in
from tests.harness.slurm import SlurmCluster

SCRIPTS = {
    "good": b"#!/bin/sh\n#SBATCH -t 5 --job-name='a b' # why\ntrue\n#SBATCH --foo\n",
    "no_interpreter": b"echo x\n",
    "dos": b"#!/bin/sh\r\necho x\r\n",
    "utf16": "#!/bin/sh\necho x\n".encode("utf-16"),
    "empty": b"",
    "blank": b"\n \n",
    "nul": b"#!/bin/sh\0\necho\n",
    "unknown_option": b"#!/bin/sh\n#SBATCH --foo\ntrue\n",
    "bad_time": b"#!/bin/sh\n#SBATCH -t foo\ntrue\n",
    "bad_quote": b'#!/bin/sh\n#SBATCH -o "x\ntrue\n',
    "word": b"#!/bin/sh\n#SBATCH positional -H\ntrue\n",
    "no_blank": b"#!/bin/sh\n#SBATCHX --foo\ntrue\n",
    "memory": b"#!/bin/sh\n#SBATCH --mem-per-cpu=5\ntrue\n",
}
# words after sbatch, which the real command refuses
REFUSED = [
    *([name] for name in SCRIPTS if name not in ("good", "memory")),
    *(["missing"], ["--mem=5", "memory"], ["--wrap", "true", "good"], ["-vQ", "good"], ["--foo"]),
    *(["-Z"], ["-t"], ["--time"], ["--hold=x", "good"], ["--mem-p", "5", "good"], ["--wrap"]),
    *(["-t", text, "good"] for text in ("foo", "5s", "5:3:2:1", "1-2-3", "1:", "")),
    *(["-a", text, "good"] for text in ("foo", "1-", "5-1", "1-10:0")),
    *(["--mem", text, "good"] for text in ("foo", "1.5G", "4x", "-5")),
    *(["-n", text, "good"] for text in ("0", "x", "-1", "")),
    *(["-N", text, "good"] for text in ("x", "2-1")),
    *(["-c", "0", "good"], ["--ntasks-per-node", "0", "good"], ["--mincpus", "x", "good"]),
    *(["-b", "foo", "good"], ["-b", "25:00", "good"], ["--deadline", "foo", "good"]),
    *(["--deadline", "2010-01-01", "good"], ["-L", "matlab:x", "good"]),
    *(["--gres", "gpu:a:b:c", "good"], ["--exclusive=foo", "good"], ["--signal", "FOO", "good"]),
    *(["--signal", "KILL@x", "good"], ["--open-mode", "x", "good"], ["--mail-type", "x", "good"]),
    *(["--kill-on-invalid-dep", "x", "good"], ["--wait-all-nodes", "2", "good"]),
    *(
        ["--mem", "4G", "--mem-per-cpu", "2G", "good"],
        ["--begin", "now+2days", "--deadline", "now+1day", "good"],
    ),
]


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    for name, content in SCRIPTS.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def submit(
    site: Site, folder: Path, *words: str, stdin: bytes = b"", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [COMMANDS / "sbatch", *words],
        cwd=folder,
        env=site.environment | variables,
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )


def submit_real(
    cluster: SlurmCluster, folder: Path, *words: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sbatch", *words],
        cwd=folder,
        env=cluster.environment,
        input=b"",
        capture_output=True,
        timeout=60,
        check=False,
    )


TRES = (b"Trackable RESource (TRES) specification", b"generic resource (gres) specification")
# options of held jobs, by name
SAME = {
    "counts": ["-n", "4", "-c", "2", "--mem", "1536"],
    "nodes": ["-N", "2", "-n", "6", "--contiguous"],
    "fewer": ["-n", "2", "-N", "3"],
    "time": ["-t", "0-20:3"],
    "seconds": ["-t", "1:30"],
    "array": ["-a", "1-4,9%2"],
    "brackets": ["-a", "[1-3]%0"],
    "exclusive": ["--exclusive", "-C", "any"],
    "gpu": ["--gres", "gpu:1", "-n", "2"],
    "comment": ["--comment", "a rule", "--comment=another rule"],
}


@pytest.mark.slow("runs sixty commands, and the same of Slurm")
def test_errors_are_those_of_the_real_sbatch(
    drop_in: Site, alpha: SlurmCluster, scripts: Path
) -> None:
    answers = [
        [
            # what 24.11 says is what 22.05 says, but for this name
            (words, done.returncode, done.stdout, done.stderr.replace(*TRES))
            for words in REFUSED
            for done in [
                submit_real(alpha, scripts, *words) if is_real else submit(drop_in, scripts, *words)
            ]
        ]
        for is_real in (True, False)
    ]
    assert answers[1] == answers[0]
    counts = submit(drop_in, scripts, "-N", "2,4", "good")  # that later releases accept
    assert counts.stderr == b'sbatch: error: "2,4" is not a valid node count\n'
    assert drop_in.json("status", "--all", "--json") == []


def test_every_option_of_the_real_sbatch_has_a_row(alpha: SlurmCluster, scripts: Path) -> None:
    """getopt_long(3) lists all names for the empty one; `--help` leaves some out."""
    listed = submit_real(alpha, scripts, "--=x").stderr.decode()
    names = set(re.findall("'--([a-z-]+)'", listed))
    helped = submit_real(alpha, scripts, "--help").stdout.decode()
    names |= set(re.findall(r"^ +(?:-\w, +)?--([a-z-]+)", helped, re.MULTILINE))
    assert {"wrap", "array", "context"} <= names
    assert names - OPTIONS.keys() == set()


def test_jobs_are_those_of_the_real_sbatch(
    drop_in: Site, alpha: SlurmCluster, scripts: Path
) -> None:
    common = ["--hold", "-p", "main", "-o", "/dev/null", "-t", "10", "-N", "1", "--mem", "99"]
    for name, options in SAME.items():
        words = ["-J", name, *common, *options, "--wrap", "true"]
        done, native = submit(drop_in, scripts, *words), submit_real(alpha, scripts, *words)
        assert done.returncode == native.returncode == 0, done
        assert done.stdout.startswith(b"Submitted batch job ")
        # 24.11 writes "warning"
        assert done.stderr == native.stderr.replace(b": warning: ", b": Warning: ")
    # the nodes of a waiting job are a guess of Slurm's; --contiguous is Slurm's alone
    fields = FIELDS.replace("|%D", "").replace("|%O", "")
    answers = [
        [
            done.stdout
            for name in SAME
            for listing in [["squeue", "-n", name, "-h", "-o", fields]]
            for done in [real(alpha, *listing) if is_real else own(drop_in, *listing)]
        ]
        for is_real in (True, False)
    ]
    # 24.11 writes gres/gpu:1
    as_real = [of_release(alpha, answer) for answer in answers[1]]
    assert as_real == [answer.replace("gres/", "gres:") for answer in answers[0]]


def test_sources_of_scripts_and_options(drop_in: Site, scripts: Path) -> None:
    """A variable overrides a line of the script, and the command line a variable."""
    script = b"#!/bin/sh\n#SBATCH -t 5 -J line\ntrue\n"
    (scripts / "timed").write_bytes(script)
    hold = ["--parsable", "-H"]
    ids = []
    for words, stdin, variables in (
        ([*hold, "timed"], b"", {}),
        ([*hold, "timed"], b"", {"SBATCH_TIMELIMIT": "7"}),
        ([*hold, "-t", "9", "timed"], b"", {"SBATCH_TIMELIMIT": "7"}),
        (hold, script, {"SBATCH_JOB_NAME": "variable"}),
        ([*hold, "/dev/stdin"], b"#!/bin/sh\n", {}),
        ([*hold, "--wrap", "true"], b"", {"SBATCH_PARTITION": "main"}),
    ):
        done = submit(drop_in, scripts, *words, stdin=stdin, **variables)
        assert (done.returncode, done.stderr) == (0, b""), words
        ids.append(done.stdout.decode().strip())
    assert ids == [str(FIRST_ID + number) for number in range(6)]
    listed = own(drop_in, "squeue", "-h", "-o", "%l %j %P").stdout.splitlines()
    assert listed == [
        *("5:00 line (null)", "7:00 line (null)", "9:00 line (null)"),
        *("5:00 variable (null)", "UNLIMITED stdin (null)", "UNLIMITED wrap main"),
    ]


def test_a_job_writes_its_output_where_the_real_one_would(
    drop_in: Site, alpha: SlurmCluster, scripts: Path
) -> None:
    alpha_folder = scripts / "shared"
    alpha_folder.mkdir()
    script = alpha_folder / "count"
    script.write_text('#!/bin/sh\necho "$1 $WORD"; echo "$2" >&2; exit 3\n')
    words = ["-W", "-D", str(alpha_folder), "--export=ALL,WORD='a,b'", str(script), "x", "-y"]
    done = submit(drop_in, scripts, "-e", "%x_%J.err", *words)
    assert (done.returncode, done.stdout) == (3, b"Submitted batch job %d\n" % FIRST_ID)
    assert (alpha_folder / f"slurm-{FIRST_ID}.out").read_text() == "x a,b\n"
    assert (alpha_folder / f"count_{FIRST_ID}.err").read_text() == "-y\n"
    done = submit(drop_in, scripts, "-Q", "-a", "4-5", *words)
    assert (done.returncode, done.stdout) == (3, b"")
    outputs = {path.name for path in alpha_folder.iterdir()} - {"count"}
    assert {name for name in outputs if "_4.out" in name or "_5.out" in name} == {
        f"slurm-{FIRST_ID + 1}_{index}.out" for index in (4, 5)
    }
    ended = submit(drop_in, scripts, "-W", "-o", "none", "--wrap", "kill -9 $$")
    assert ended.returncode == 1


def test_options_that_only_slurm_knows_reach_it(
    drop_in: Site, alpha: SlurmCluster, scripts: Path
) -> None:
    options = ["--nice=7", "--signal=B:USR2@30", "-w", "a2", "--open-mode=append"]
    done = submit(
        drop_in, scripts, "-o", "/dev/null", *options, "-J", "passed", "--wrap", "sleep 600"
    )
    assert (done.returncode, done.stderr) == (0, b"")

    def shown() -> str:
        return real(alpha, "squeue", "-h", "-n", "passed", "-t", "R", "-o", "%y %N").stdout

    assert drop_in.until(shown) == "7 a2\n"


def test_other_clusters_run_such_jobs_with_a_warning_or_not_at_all(running: Site) -> None:
    folder = running.folder
    done = submit(running, folder, "--parsable", "--nice", "--get-user-env", "--wrap", "true")
    assert (done.returncode, done.stdout) == (0, b"1\n")
    assert done.stderr == (
        b"sbatch: Warning: --get-user-env is ignored, the job has the environment of the "
        b"submission\n"
    )
    for words, message in (
        (["-w", "a1"], "no cluster can run the job (left: the cluster has no node a1; right:"),
        (["-M", "nowhere"], "nowhere"),
        (["-d", "afterok:99"], "no job 99 of yours to wait for"),
        (["-d", "expand:1"], "Job dependency problem"),
        (["--uid", "0"], "--uid is not supported; submit as that user"),
        (["-J", "a\nb"], "control characters"),
        (["-o", "%b"], "%b is not supported"),
        (["--comment", "x" * 2000], "more than 1024 characters, jobs.0.comment; send fewer"),
        (
            ["-d", "afterok" + ":1" * 40_000],
            "Batch job submission failed: more than 65536 characters",
        ),
        (["-d", "afterok" + ":1" * 1_001], "more than 1000 jobs to wait for, in the request"),
    ):
        done = submit(running, folder, *words, "--wrap", "true")
        assert (done.returncode, done.stdout) == (1, b""), words
        assert message in done.stderr.decode()
    assert [row["job"] for row in running.json("status", "--all", "--json")] == [1]
    tried = submit(running, folder, "--test-only", "-M", "left", "--wrap", "true")
    assert tried.stderr == b"sbatch: Job would start on cluster left\n"
    assert (tried.returncode, tried.stdout) == (0, b"")
    refused = submit(running, folder, "--test-only", "-n", "100000", "--wrap", "true")
    assert refused.returncode == 1
    assert refused.stderr.startswith(b"allocation failure: ")


def test_an_absent_daemon_submits_nothing(site: Site, alpha: SlurmCluster) -> None:
    done = submit(site, site.folder, "--wrap", "true")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"Unable to contact slurm controller" in done.stderr
    assert b"METASCHED_BYPASS=1" in done.stderr
