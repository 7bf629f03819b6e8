"""The drop-in commands beside the real ones: same jobs, same words, same errors."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import metasched
from tests.e2e.conftest import Site
from tests.harness.slurm import SlurmCluster, SlurmSite

COMMANDS = Path(metasched.__file__).parent / "drop_in/slurm"
FIRST_ID = 100_000_001
# what differs by nature is not here: ids, nodes, times, and Slurm's own priority
LETTERS = "jtTuPrDCclmKEhWvUgGHIJXyzfkbnxdO"
FIELDS = "|".join(f"%{letter}" for letter in LETTERS)
NAMES = (
    *("cpus-per-task", "maxcpus", "maxnodes", "batchflag", "reboot", "admin_comment", "stdin"),
    *("system_comment", "tres-per-job", "tres-per-socket", "deadline"),
    *("restartcnt", "numtasks", "tres-alloc"),
)
NODE_OPTIONS = ("--contiguous", "--mincpus=2", "--tmp=5000", "-B", "2:3")
OPTIONS = {
    "run": ["-n", "2", "-t", "10", "--mem", "1536"],
    "held": ["--hold", "-c", "3", "-t", "1:30:00", "--mem-per-cpu", "100"],
    "arr": ["--array", "1-4%2", "--hold", "-t", "20:00:00", "--mem", "4G"],
    "node": ["--hold", "-n", "1", "-t", "10", "--mem", "1500", "-s", *NODE_OPTIONS],
}


@pytest.fixture(scope="module")
def alpha(slurm_site: SlurmSite) -> SlurmCluster:
    return slurm_site["alpha"]


@pytest.fixture
def drop_in(site: Site, alpha: SlurmCluster) -> Iterator[Site]:
    """A running site over alpha whose ids are above Slurm's."""
    alpha.empty()
    site.configure(alpha.table("poll_interval = 1\n"), extra=f"first_id = {FIRST_ID}\n")
    site.start()
    yield site
    alpha.empty()


def real(cluster: SlurmCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, env=cluster.environment, capture_output=True, text=True, timeout=60, check=False
    )


def own(site: Site, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    name, *rest = arguments
    return subprocess.run(
        [COMMANDS / name, *rest],
        env=site.environment | {"METASCHED_NATIVE_JOBS": "0"} | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def of_release(cluster: SlurmCluster, text: str) -> str:
    """Return words of ours as this release of Slurm has them; ours are those of 22.05 and 24.11."""
    if cluster.release < (26, 0):
        return text
    # the partition of the tests lets no jobs share processors
    text = text.replace("|OK|", "|NO|").replace("keyword:show \n", "keyword:show\n")
    text = text.replace("999999999_3:", "999999999_[3]:")
    return text.replace("slurm_suspend error: ", "slurm_suspend error:")


@pytest.mark.slow("lists four jobs by some seventy commands, and by the same of Slurm")
def test_listings_say_of_a_job_what_the_real_ones_say(drop_in: Site, alpha: SlurmCluster) -> None:
    for name, options in OPTIONS.items():
        words = ["-J", name, "-p", "main", "-o", "/dev/null", *options, "--wrap", "sleep 600"]
        assert real(alpha, "sbatch", *words).returncode == 0
        assert own(drop_in, "sbatch", *words).returncode == 0

    def running() -> bool:
        answers = (
            real(alpha, "squeue", "-h", "-n", "run", "-o", "%t"),
            own(drop_in, "squeue", "-h", "-n", "run", "-o", "%t"),
        )
        # the real command lists both: the native job, and that of metasched
        return [answer.stdout.split() for answer in answers] == [["R", "R"], ["R"]]

    drop_in.until(running)
    for name in OPTIONS:
        listing = ["squeue", "-n", name, "-o", FIELDS]
        native = real(alpha, *listing).stdout.splitlines()
        listed = own(drop_in, *listing).stdout.splitlines()
        assert len(listed) == 2
        assert listed[0] == native[0]
        assert of_release(alpha, listed[1]) in native
        for field in NAMES:
            words = ["squeue", "-h", "-n", name, "-O", f"{field}:80"]
            texts = {line.replace(",billing=", "\0") for line in real(alpha, *words).stdout.split()}
            assert own(drop_in, *words).stdout.strip() in {t.partition("\0")[0] for t in texts}, (
                field
            )
        _records_agree(drop_in, alpha, name)
    every = ["squeue", "-h", "-o", "%j|%t", "--states", "all", "-n", ",".join(OPTIONS)]
    for order in ("j", "-j", "t,-j", "-t,j"):
        listed = own(drop_in, *every, "-S", order).stdout.splitlines()
        both = real(alpha, *every, "-S", order).stdout.splitlines()
        assert list(dict.fromkeys(line for line in both if line in listed)) == listed


# of a job, what differs by nature, and what only Slurm knows
_OTHER_KEYS = {
    *("JobId", "ArrayJobId", "Priority", "Account", "QOS", "Requeue", "RunTime", "SubmitTime"),
    *("EligibleTime", "StartTime", "EndTime", "NodeList", "BatchHost", "WorkDir", "Command"),
    *("TRES", "ReqTRES", "AllocTRES", "Features"),
    *("OverSubscribe", "StdErr", "NumNodes"),  # 24.11 and 26.05 have other words
}


def _records_agree(site: Site, cluster: SlurmCluster, name: str) -> None:
    """Compare the lines of `scontrol show job` that both have, of an array one for all tasks."""
    words = ["squeue", "-h", "-n", name, "-o", "%A"]
    own_id = own(site, *words).stdout.strip()
    native_id = min(real(cluster, *words).stdout.split(), key=int)
    shown = own(site, "scontrol", "-o", "show", "job", own_id).stdout
    native = real(cluster, "scontrol", "-o", "show", "job", native_id).stdout
    assert (shown.count("\n"), native.count("\n")) == (1, 1)
    pairs, expected = (
        dict(w.split("=", 1) for w in t.split() if "=" in w) for t in (shown, native)
    )
    common = pairs.keys() & expected.keys() - _OTHER_KEYS
    assert len(common) > 25
    assert {key: pairs[key] for key in common} == {key: expected[key] for key in common}


def test_ids_are_above_those_of_the_clusters(drop_in: Site, alpha: SlurmCluster) -> None:
    array = drop_in.submit("--hold", "--array", "5,7-9", "-o", "/dev/null", "--wrap", "true")
    after = drop_in.submit("--hold", "--wrap", "true")
    assert (array, after) == (FIRST_ID, FIRST_ID + 4)
    listed = own(drop_in, "squeue", "-h", "-r", "-o", "%i %A %F %K").stdout.split("\n")
    assert listed[0] == f"{array}_5 {array} {array} 5"
    assert listed[3] == f"{array}_9 {array + 3} {array} 9"
    # A program that goes past the commands reaches no other job. What scancel prints depends on
    # earlier jobs: an array whose id modulo MaxJobCount is the same makes it "already completing".
    alpha.run("sbatch", "--hold", "--array", "1-3", "-o", "/dev/null", "--wrap", "true")
    listing = ["squeue", "-h", "-r", "-o", "%i %t"]
    before = real(alpha, *listing).stdout
    assert before.count("PD") == 3
    real(alpha, "scancel", str(array))
    assert real(alpha, *listing).stdout == before
    assert "Invalid job id" in real(alpha, "scontrol", "show", "job", str(array)).stderr
    drop_in.stop()
    drop_in.start()
    assert drop_in.submit("--hold", "--wrap", "true") == after + 1
    last = drop_in.submit("--hold", "--array", "1-3", "-o", "/dev/null", "--wrap", "true")
    drop_in.stop()
    drop_in.start()  # the newest job is an array
    assert drop_in.submit("--hold", "--wrap", "true") == last + 3


def test_variables_name_formats_and_a_closed_pipe_is_no_error(drop_in: Site) -> None:
    job = drop_in.submit("--hold", "-J", "one", "--wrap", "true", "-o", "/dev/null")
    listed = own(drop_in, "squeue", "-h", SQUEUE_FORMAT="%i %j").stdout
    assert listed == f"{job} one\n"
    assert own(drop_in, "squeue", "-h", "-o", "%t", SQUEUE_FORMAT="%i").stdout == "PD\n"
    drop_in.run("cancel", str(job))
    ended = own(drop_in, "sacct", "-nPX", "-j", str(job), SACCT_FORMAT="jobid,state").stdout
    assert ended == f"{job}|CANCELLED\n"
    for command in (["squeue"], ["sinfo"], ["sacct", "-j", str(job)]):
        reader, writer = os.pipe()
        os.close(reader)  # as that of `| head -n 0`
        done = subprocess.run(
            [COMMANDS / command[0], *command[1:]],
            env=drop_in.environment | {"METASCHED_NATIVE_JOBS": "0"},
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
        os.close(writer)
        assert (done.returncode, done.stderr) == (0, b""), command


def test_a_large_array_is_a_line(drop_in: Site) -> None:
    """Its waiting tasks have no rows of their own."""
    options = ("--hold", "--array", "1-2000%10", "-o", "/dev/null", "--wrap", "true")
    array = drop_in.submit(*options)
    listed = own(drop_in, "squeue", "-h", "-o", "%i %A %t %r")
    assert listed.stdout == f"{array}_[1-2000%10] {array} PD JobHeldUser\n"
    assert own(drop_in, "squeue", "-h", "-r").stdout.count("\n") == 2000
    shown = own(drop_in, "squeue", "-h", "-r", "-j", f"{array}_1999", "-o", "%i %A")
    assert shown.stdout == f"{array}_1999 {array + 1998}\n"
    assert own(drop_in, "scancel", str(array)).returncode == 0
    ended = own(drop_in, "sacct", "-X", "-n", "-P", "-o", "state", "-j", str(array))
    assert ended.stdout == "CANCELLED\n" * 2000
    assert drop_in.submit("--hold", "--wrap", "true") == array + 2000


NODE_LISTINGS = [
    ["-o", "%9P %.5a %.10l %.6D %.6t"],
    ["-a", "-o", "%P %G %l %p %c %m"],  # that of toil
    ["-o", "%P"],
    ["-h", "-o", "%.5D|%T|%F|%C|%A"],
    ["-o", "%R|%s|%L|%f|%D"],
    ["-p", "short", "-o", "%D %10c|%F"],
    ["-p", "nothing", "-o", "%P %D"],
    ["-t", "idle", "-o", "%P %t %D"],
    ["-t", "alloc,mixed", "-h", "-o", "%D"],
    ["-O", "partition,nodes,statelong:9"],
    ["-e", "-o", "%D_%t"],
    ["-o", "%!"],
    ["--foo"],
    ["-o", "%20N  %10c  %10m  %25f  %10G"],  # as in many manuals
    ["-h", "-o", "%n %t %z %X %Y %Z %w %d %E %B %M %S", "-p", "main"],
    ["-h", "-t", "drain,down"],
    ["-h", "-O", "nodelist,gresused,statecomplete"],
]


def test_partitions_are_listed_as_by_the_real_command(drop_in: Site, alpha: SlurmCluster) -> None:
    words = ["-n", "3", "-p", "main", "-o", "/dev/null", "--wrap", "sleep 600"]
    drop_in.submit(*words)

    def answers(listing: list[str]) -> list[tuple[int, str, str]]:
        both = real(alpha, "sinfo", *listing), own(drop_in, "sinfo", *listing)
        return [(done.returncode, done.stdout, done.stderr) for done in both]

    def job_is_listed() -> bool:
        used = [stdout.split() for _, stdout, _ in answers(["-h", "-p", "main", "-o", "%C"])]
        return used == [["3/61/0/64"]] * 2

    drop_in.until(job_is_listed)
    for listing in NODE_LISTINGS:
        expected, actual = answers(listing)
        assert actual == expected, listing
    of_cluster = own(drop_in, "sinfo", "-M", "alpha", "-o", "%P")
    assert of_cluster.stdout == "CLUSTER: alpha\nPARTITION\nmain*\nshort\n"
    native = real(alpha, "scontrol", "-o", "show", "partition").stdout.split()
    shown = own(drop_in, "scontrol", "-o", "show", "partition").stdout.split()
    assert [word for word in shown if word != "Cluster=alpha"] == [
        word for word in native if word.partition("=")[0] in {w.partition("=")[0] for w in shown}
    ]
    missing = own(drop_in, "sinfo", "-M", "gamma")
    assert (missing.returncode, missing.stdout) == (1, "")


def settings_of(text: str) -> dict[str, str]:
    """Return the settings that `scontrol show config` prints."""
    pairs = (line.split(" = ", 1) for line in text.splitlines() if " = " in line)
    return {name.strip(): value for name, value in pairs}


def test_the_configuration_has_what_tools_read(drop_in: Site, alpha: SlurmCluster) -> None:
    config = drop_in.config.read_text()
    drop_in.config.write_text(config.replace("[daemon]\n", "[daemon]\nmax_array_tasks = 7\n"))
    drop_in.run("reload")
    shown = own(drop_in, "scontrol", "show", "config")
    settings, native = (
        settings_of(shown.stdout),
        settings_of(real(alpha, "scontrol", "show", "config").stdout),
    )
    assert settings.keys() <= native.keys()
    lines = [line for line in shown.stdout.splitlines() if " = " in line]
    assert {line.index(" = ") for line in lines} == {23}
    # the words of values that are counted, with their units
    for name in ("MinJobAge", "MaxArraySize", "FirstJobId"):
        assert re.sub("[0-9]+", "0", settings[name]) == re.sub("[0-9]+", "0", native[name])
    assert settings["FirstJobId"] == str(FIRST_ID)
    assert settings["ClusterName"] == "metasched"
    assert settings["SLURM_VERSION"] in own(drop_in, "scontrol", "--version").stdout
    age = time.time() - time.mktime(time.strptime(settings["BOOT_TIME"], "%Y-%m-%dT%H:%M:%S"))
    assert 0 <= age < 300
    # the largest array by MaxArraySize is accepted, a larger one is not
    size = int(settings["MaxArraySize"])
    words = ("--hold", "-o", "/dev/null", "--wrap", "true")
    assert own(drop_in, "sbatch", "--array", f"0-{size - 1}", *words).returncode == 0
    assert own(drop_in, "sbatch", "--array", f"0-{size}", *words).returncode == 1


# options of squeue that have a value, by their long names; --jobs may have none
VALUES = (
    *("accounts", "clusters", "format", "Format", "iterate", "licenses", "name", "nodelist"),
    *("partitions", "qos", "reservation", "sort", "states", "user", "users"),
)
CHANGED_LIMITS = ("=+5", "=-5", "+=5", "-=5", "=-1", "+=+5", "-=+5", "=+x", "=+", "+=", "=-1:30")


WRONG = [
    *(["squeue", f"-{letter}"] for letter in "AMoOiLnwpqRStuZ"),
    *(["squeue", f"--{name}"] for name in (*VALUES, "acc", "part", "foo=1", "me=1")),
    *(["squeue", "-h", "-n", "nothing", *words] for words in (["-j"], ["--jobs"], ["--jobs="])),
    ["squeue", "-j", "-h", "999999999"],
    ["squeue", "-h", "--jobs", "-o", "%i", "999999999"],
    *([command, *words] for command in ("sacct", "scancel", "sinfo") for words in (["-Z"], ["-M"])),
    *(["sacct", option] for option in ("-j", "--jobs", "--foo", "-h=", "--noheader=1")),
    *(["scancel", option] for option in ("-u", "--user", "--name", "-t", "-j", "--batch=1")),
    *(["sinfo", option] for option in ("-p", "--partition", "-o", "--foo=1")),
    *(["sstat", option] for option in ("-Z", "--foo=1", "-j")),
    ["squeue", "-j", "999999999"],
    ["squeue", "-j", "999999999,999999998"],
    ["squeue", "-h", "-j", "999999999,999999999"],
    ["squeue", "-h", "-j", "999999999.0"],
    ["squeue", "-o", "%i", "-O", "jobid"],
    ["squeue", "-o", "%i", "-l"],
    ["squeue", "-n", "nothing", "-o", "a%%%i%"],
    ["squeue", "-n", "nothing", "-O", "jobid:,state: ,,name:.9|"],
    ["squeue", "-t", "PD", "-n", "nothing"],
    ["squeue", "--foo"],
    ["squeue", "-O", "jobid:6,foo"],
    ["squeue", "-o", "%i %! %t"],
    ["squeue", "-j", "abc"],
    ["squeue", "-u", "nosuchuser"],
    ["squeue", "-h", "-S", "!"],
    *(["squeue", "-h", "-t", state] for state in ("CG", "CF,pd", "boot_fail", "SE,SO,RD", "")),
    *(["squeue", "-h", f"-{letter}", ""] for letter in "jnupAwqRL"),
    *(["scancel", f"-{letter}", ""] for letter in "nupAwqRt"),
    *(["scancel", "-n", "nothing", "-t", states] for states in ("CG", "FOO", "PD,R")),
    ["scancel", "-u", "nosuchuser"],
    ["scontrol", "show"],
    ["scontrol", "show", "foo"],
    ["scontrol", "hold"],
    ["scontrol", "hold", "abc"],
    ["scontrol", "requeue", "999999999"],
    ["scontrol", "requeue", "999999999", "999999998"],
    ["scontrol", "hold", "999999999", "abc"],
    ["scontrol", "release", "999999999_3"],
    ["scontrol", "suspend"],
    ["scontrol", "notify", "999999999", "word"],
    ["scontrol", "top", "999999999"],
    ["scontrol", "wait_job", "999999999"],
    ["scancel", "--signal", "USR1", "999999999", "999999998"],
    ["scancel"],
    ["scancel", "abc"],
    ["scancel", "999999999"],
    *(["scancel", word] for word in ("999999999_*", "*", "999999999_*x", "_*", "999999999_3_*")),
    ["scancel", "-v", "999999999"],
    ["scancel", "--foo"],
    ["scontrol", "show", "job", "999999999"],
    ["scontrol", "show", "hostnames", "a[1-3,07],b"],
    ["scontrol", "show", "hostnames"],
    ["scontrol", "hold", "999999999"],
    ["scontrol", "show", "partition", "nothing"],
    ["scontrol", "foo"],
    *(
        ["scontrol", "update", "JobId=999999999", *words]
        for words in (["TimeLimit=5"], ["TimeLimit=x"], ["JobName=a", "Foo=5"], ["word"], [])
    ),
    *(
        ["scontrol", "update", f"JobId={ids}", "TimeLimit=5"]
        for ids in ("999999998,999999999", "999999998,x,999999999")
    ),
    *(["scontrol", "update", "JobId=999999999", f"TimeLimit{text}"] for text in CHANGED_LIMITS),
    ["scontrol", "update", "JobId=999999999,999999998", "TimeLimit=+5"],
    ["scontrol", "update", "TimeLimit=-5", "JobId=999999999"],
]


@pytest.mark.slow("runs 153 commands, and the same of Slurm")
def test_errors_are_those_of_the_real_commands(drop_in: Site, alpha: SlurmCluster) -> None:
    answers = [
        [
            (words, done.returncode, done.stdout, done.stderr)
            for words in WRONG
            for done in [real(alpha, *words) if is_real else own(drop_in, *words)]
        ]
        for is_real in (True, False)
    ]
    as_real = [(*answer, of_release(alpha, stderr)) for *answer, stderr in answers[1]]
    assert as_real == answers[0]


def test_jobs_are_cancelled_held_and_released(drop_in: Site) -> None:
    job = drop_in.submit("--hold", "-J", "one", "--wrap", "true", "-o", "/dev/null")
    other = drop_in.submit("--hold", "-J", "two", "--wrap", "true", "-o", "/dev/null")
    cancelled = own(drop_in, "scancel", "-v", "-n", "one", "-t", "PENDING")
    assert cancelled.stderr == f"scancel: Terminating job {job}\n"
    assert own(drop_in, "scontrol", "release", str(other)).returncode == 0
    drop_in.until_ended(job, other)
    listed = own(
        drop_in, "sacct", "-X", "-n", "-P", "-o", "JobIDRaw,State,ExitCode", "-j", f"{job},{other}"
    )
    assert listed.stdout == f"{job}|CANCELLED|0:0\n{other}|COMPLETED|0:0\n"
    steps = own(drop_in, "sacct", "-n", "-P", "-o", "jobid,state", "-j", str(other))
    assert steps.stdout == f"{other}|COMPLETED\n{other}.batch|COMPLETED\n"
    shown = own(drop_in, "scontrol", "-o", "show", "job", str(other))
    assert shown.stdout.startswith(f"JobId={other} JobName=two UserId=")
    assert " JobState=COMPLETED Reason=None " in shown.stdout


def test_a_star_cancels_all_tasks_of_an_array(drop_in: Site, alpha: SlurmCluster) -> None:
    words = ("--hold", "--array", "1-3", "-o", "/dev/null", "--wrap", "true")
    array, other = drop_in.submit(*words), drop_in.submit(*words)
    native = real(alpha, "sbatch", "--parsable", *words).stdout.strip()
    for done in (real(alpha, "scancel", f"{native}_*"), own(drop_in, "scancel", f"{array}_*")):
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert real(alpha, "squeue", "-h", "-j", native).stdout == ""
    assert own(drop_in, "squeue", "-h", "-o", "%i").stdout == f"{other}_[1-3]\n"


def test_signals_go_to_running_jobs_alone(drop_in: Site) -> None:
    script = "trap 'echo seen; exit 3' USR1; echo ready; while :; do sleep 0.1; done"
    output = drop_in.folder / "out"
    job = drop_in.submit("-n", "1", "-o", str(output), "--wrap", script)
    waiting = drop_in.submit("--hold", "-n", "1", "-o", "/dev/null", "--wrap", "true")
    drop_in.until(lambda: output.read_text() == "ready\n")
    later = own(drop_in, "scancel", "--signal", "USR1", str(waiting))
    assert (later.returncode, later.stderr.count("Job can not be altered now")) == (1, 1)
    done = own(drop_in, "scancel", "--signal", "USR1", "--batch", str(job), str(waiting))
    assert (done.returncode, done.stdout) == (1, "")
    problem = "Invalid job id specified"  # as the real one with --batch says of a waiting job
    assert done.stderr == f"scancel: error: Kill job error on job id {waiting}: {problem}\n"
    [row] = drop_in.until_ended(job)
    assert (row["state"], row["exit_code"]) == ("failed", 3)
    assert output.read_text() == "ready\nseen\n"
    assert drop_in.row(waiting)["state"] == "held"


def test_an_empty_filter_cancels_nothing(drop_in: Site) -> None:
    """As that of a script's unset variable."""
    job = drop_in.submit("--hold", "-o", "/dev/null", "--wrap", "true")
    for option in ("-n", "--name", "-p", "-A", "-q", "-w", "-R", "--wckey"):
        assert own(drop_in, "scancel", option, "").returncode == 0
        assert own(drop_in, "scancel", "--me", option, "").returncode == 0
    assert own(drop_in, "scancel", "-M", "").returncode == 1
    assert drop_in.row(job)["state"] == "held"
    assert own(drop_in, "squeue", "-h", "-n", "").stdout == ""
    assert own(drop_in, "scancel", "--me").returncode == 0
    assert drop_in.row(job)["state"] == "cancelled"


def test_time_limits_are_changed_as_by_the_real_command(drop_in: Site, alpha: SlurmCluster) -> None:
    words = ("--hold", "-t", "10", "-o", "/dev/null", "--wrap", "true")
    job = str(drop_in.submit(*words))
    native = real(alpha, "sbatch", "--parsable", *words).stdout.strip()

    def limits(change: str) -> list[tuple[int, str, str]]:
        answers = []
        for call, id in ((real, native), (own, job)):
            side: Any = alpha if call is real else drop_in
            done = call(side, "scontrol", "update", f"JobId={id}", f"TimeLimit{change}")
            limit = call(side, "squeue", "-h", "-j", id, "-o", "%l").stdout
            answers.append((done.returncode, done.stdout + done.stderr, limit))
        return answers

    for change in (*CHANGED_LIMITS, "=+0:90", "+=0-01", "=7", "=-30", "=-0", "=+2:00:00", "=-3"):
        expected, actual = limits(change)
        assert actual == expected, change
    assert actual[2] == "2:04:00\n"
    refused = own(drop_in, "scontrol", "update", "JobName=wrap", "TimeLimit=+5")
    assert refused.stderr == (
        "scontrol: error: JobId must precede TimeLimit increment or decrement\n"
    )


def test_jobs_are_updated_by_name(drop_in: Site) -> None:
    held = [
        drop_in.submit("--hold", "-J", name, "-o", "/dev/null", "--wrap", "true")
        for name in ("one", "one", "two")
    ]
    done = own(drop_in, "scontrol", "update", "JobName=one", "TimeLimit=7")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    limits = [own(drop_in, "squeue", "-h", "-j", str(job), "-o", "%l").stdout for job in held]
    assert limits[:2] == ["7:00\n"] * 2 != [limits[2]] * 2
    for words, message in (
        (["JobName=zz", "TimeLimit=7"], "scontrol: error: No jobs with name 'zz'"),
        (["JobName=one", "UserId=nobody", "TimeLimit=8"], "No jobs with name 'one'"),
        (["TimeLimit=7"], "No valid entity in update command"),
        (["JobName=two", "Nice=5"], "Update of this parameter is not supported: Nice=5"),
    ):
        refused = own(drop_in, "scontrol", "update", *words)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert message in refused.stderr
    assert own(drop_in, "squeue", "-h", "-j", str(held[2]), "-o", "%l").stdout == limits[2]


def test_an_absent_daemon_is_no_empty_list(site: Site) -> None:
    """An empty list with exit code 0 means "completed" to several tools."""
    for words in (
        *(
            ["squeue"],
            ["sinfo"],
            ["squeue", "-j", "1"],
            ["scancel", "1"],
            ["sacct"],
            ["sacct", "-j", "1"],
        ),
        *(["scontrol", "show", "job", "1"], ["scontrol", "show", "config"]),
        *(["scontrol", "hold", "1"], ["scancel", "-u", "root"]),
    ):
        answer = own(site, *words)
        assert (answer.returncode, answer.stdout) == (1, ""), words
        assert "Unable to contact slurm controller" in answer.stderr
        assert "METASCHED_BYPASS=1" in answer.stderr


def test_the_real_command_runs_on_request(site: Site, alpha: SlurmCluster) -> None:
    folders = os.pathsep.join((str(COMMANDS), os.environ["PATH"]))
    variables = {"PATH": folders, "SLURM_CONF": alpha.environment["SLURM_CONF"]}
    answer = own(site, "squeue", "--version", METASCHED_BYPASS="1", **variables)
    assert answer.stdout == real(alpha, "squeue", "--version").stdout


def test_a_tool_may_remove_the_variables_that_name_folders(running: Site) -> None:
    """The daemon is found by its socket, or at the usual place of the user's."""
    socket = running.folder / "ms.sock"
    bare = {"PATH": os.environ["PATH"], "METASCHED_SOCKET": str(socket)}
    done = subprocess.run([COMMANDS / "squeue", "-h"], env=bare, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_task_of_an_array_has_a_number(drop_in: Site) -> None:
    """The number is an id, as in Slurm, and that of no other user's task."""
    array = drop_in.submit("--hold", "--array", "5,7-9", "-o", "/dev/null", "--wrap", "true")
    other = drop_in.submit("--hold", "-o", "/dev/null", "--wrap", "true")
    number = str(array + 2)  # of task 8
    listed = own(drop_in, "squeue", "-h", "-r", "-j", number, "-o", "%i %A").stdout
    assert listed == f"{array}_8 {number}\n"
    shown = own(drop_in, "scontrol", "-o", "show", "job", number)
    assert shown.stdout.startswith(f"JobId={number} ArrayJobId={array} ArrayTaskId=8 ")
    after = ("-d", f"afterok:{number}:{other},afterany:{array}", "-J", "after")
    drop_in.submit("-o", "/dev/null", *after, "--wrap", "true")
    dependency = own(drop_in, "squeue", "-h", "-n", "after", "-o", "%E").stdout
    assert dependency == f"afterok:{array}_8,afterok:{other},afterany:{array}\n"
    drop_in.run("cancel", "--state", "queued")
    refusal = drop_in.error("modify", number, "--name", "b", code=2)
    assert refusal.startswith(f"{array}_8 is a task, named by its number; name the whole job")
    assert own(drop_in, "scancel", number, str(other)).returncode == 0
    ended = own(drop_in, "sacct", "-X", "-n", "-P", "-o", "jobid,state", "-j", f"{number},{other}")
    assert ended.stdout == f"{array}_8|CANCELLED\n{other}|CANCELLED\n"
    waiting = own(drop_in, "squeue", "-h", "-r", "-o", "%i").stdout
    assert waiting.split() == [f"{array}_{task}" for task in (5, 7, 9)]


def test_ten_thousand_ids_in_a_command(drop_in: Site) -> None:
    array = drop_in.submit("--hold", "--array", "1-3", "-o", "/dev/null", "--wrap", "true")
    ids = [str(array), *(str(FIRST_ID + 10_000 + number) for number in range(10_000)), str(array)]
    listed = own(drop_in, "squeue", "-h", "-j", ",".join(ids), "-o", "%i").stdout
    assert listed == f"{array}_[1-3]\n"
    assert own(drop_in, "scancel", str(array + 1), str(array)).returncode == 0
    assert own(drop_in, "squeue", "-h", "-j", ",".join(ids), "-o", "%i").stdout == ""
