"""Submissions: values, scripts, directives, environment, refusals."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from metasched.client.job_request import prepare_submission
from metasched.client.options import InvalidSubmission, parse_command_line
from metasched.client.schemas import JobRequest, SubmitRequest
from metasched.model import units
from metasched.model.job import MAX_LICENCE_CHOICES
from metasched.model.units import (
    ParseError,
    parse_count,
    parse_duration,
    parse_gres,
    parse_memory,
    parse_moment,
)
from metasched.paths import NAMED_VARIABLES

NOON = 1_700_049_600.0  # 2023-11-15 12:00:00 UTC
HOUR, DAY = 3600.0, 86400.0


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.chdir(tmp_path)
    yield
    monkeypatch.undo()
    time.tzset()


# Parsing of values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("2d", 2 * DAY),
        ("1w", 7 * DAY),
        ("1h30m5s", 5405),
        ("5:30", 330),
        ("1:30:00", 5400),
        ("2-00:00:00", 2 * DAY),
        ("2-12", 2.5 * DAY),
        ("1-1:30", DAY + 5400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_the_unit_of_a_bare_duration() -> None:
    assert parse_duration("10", bare_unit=60) == 600
    assert parse_duration("10s", bare_unit=60) == 10


@pytest.mark.parametrize(
    "text",
    [
        *["", "abc", "-5", "0", "0:0", "1h30", "5m1h", "1m1m", "1:2:3:4", "1-", "-1:00"],
        *["1-2:3:4:5", "1..5h", "inf", "nan", "1e3", "٣", "99999999d", "UNLIMITED"],
        *["9" * 30, "9" * 5000],
    ],
)
def test_invalid_durations(text: str) -> None:
    with pytest.raises(ParseError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", NOON),
        ("+2h", NOON + 2 * HOUR),
        ("+90", NOON + 90),
        ("now+1hour", NOON + HOUR),
        ("now+2 days", NOON + 2 * DAY),
        ("now+60", NOON + 60),
        ("NOW+1:00:00", NOON + HOUR),
        ("17:30", NOON + 5.5 * HOUR),
        ("5:30pm", NOON + 5.5 * HOUR),
        ("12:00", NOON + DAY),
        ("00:00", NOON + 12 * HOUR),
        ("12:15am", NOON + 12.25 * HOUR),
        ("midnight", NOON + 12 * HOUR),
        ("teatime", NOON + 4 * HOUR),
        ("tomorrow", NOON + DAY),
        ("2023-11-15", NOON - 12 * HOUR),
        ("2023-11-15T13:00", NOON + HOUR),
        ("2023-11-15 13:00:05", NOON + HOUR + 5),
        ("2023-11-15T13:00Z", NOON + HOUR),
        ("2023-11-15t13:00+01:00", NOON),
    ],
)
def test_moments(text: str, moment: float) -> None:
    assert parse_moment(text, NOON) == moment


@pytest.mark.parametrize(
    ("text", "moment"), [("2h", NOON - 2 * HOUR), ("17:30", NOON - 18.5 * HOUR), ("90", NOON - 90)]
)
def test_moments_in_the_past(text: str, moment: float) -> None:
    assert parse_moment(text, NOON, past=True) == moment


@pytest.mark.parametrize(
    "text",
    [
        *["", "+", "+0", "soon", "25:00", "12:60", "13:00pm", "1:2:3:4", "2023-13-01", "2h"],
        *["12/31", "now-1hour", "0001-01-01", "9999-12-31", "+99999999d", "9" * 5000],
    ],
)
def test_invalid_moments(text: str) -> None:
    with pytest.raises(ParseError):
        parse_moment(text, NOON)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a zone by rule: clocks go from 2 to 3 on 2030-03-31 and from 3 to 2 on 2030-10-27."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")  # `_utc` puts it back
    time.tzset()


def utc(text: str) -> float:
    return datetime.fromisoformat(f"{text}+00:00").timestamp()


@pytest.mark.parametrize(
    ("now", "text", "moment"),
    [
        ("2030-03-30T12:00", "2030-03-31T01:59", "2030-03-31T00:59"),
        ("2030-03-30T12:00", "2030-03-31T03:00", "2030-03-31T01:00"),
        ("2030-03-30T12:00", "tomorrow", "2030-03-31T11:00"),  # the same local time, 23 hours later
        ("2030-03-30T12:00", "+1d", "2030-03-31T12:00"),
        ("2030-03-31T00:59", "03:00", "2030-03-31T01:00"),
        ("2030-10-26T12:00", "2030-10-27T03:00", "2030-10-27T02:00"),
        ("2030-10-26T12:00", "2030-10-27T02:30+02:00", "2030-10-27T00:30"),
        ("2030-10-26T12:00", "2030-10-27T02:30+01:00", "2030-10-27T01:30"),
        ("2030-10-27T01:30", "03:00", "2030-10-27T02:00"),  # asked at the second 2:30
    ],
)
@pytest.mark.usefixtures("berlin")
def test_local_times_near_a_clock_change(now: str, text: str, moment: str) -> None:
    assert parse_moment(text, utc(now)) == utc(moment)


@pytest.mark.parametrize(
    ("now", "text", "message", "ways"),
    [
        (
            *("2030-03-30T12:00", "2030-03-31T02:30", "2030-03-31 02:30:00 is skipped"),
            ("2030-03-31T03:30:00+02:00", "2030-03-31T01:30:00+01:00"),
        ),
        (
            *("2030-10-26T12:00", "2030-10-27T02:30", "2030-10-27 02:30:00 comes twice"),
            ("2030-10-27T02:30:00+02:00", "2030-10-27T02:30:00+01:00"),
        ),
        (
            *("2030-03-30T23:00", "2:30", "2030-03-31 02:30:00 is skipped"),
            ("2030-03-31T03:30:00+02:00", "2030-03-31T01:30:00+01:00"),
        ),
    ],
)
@pytest.mark.usefixtures("berlin")
def test_missing_and_ambiguous_local_times_are_refused_with_both_spellings(
    now: str, text: str, message: str, ways: tuple[str, str]
) -> None:
    with pytest.raises(ParseError) as refused:
        parse_moment(text, utc(now))
    assert refused.value.problem == f"{message} as the clock is changed"
    assert refused.value.fix == f"write {' or '.join(ways)}"
    for way in ways:
        parse_moment(way, utc(now))


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [
        *[("4G", 4096), ("500M", 500), ("500", 500), ("2T", 2 * 1024**2), ("4GB", 4096)],
        *[("4gib", 4096), ("1K", 1), ("1025k", 2), ("2048K", 2)],
    ],
)
def test_memory(text: str, mebibytes: int) -> None:
    assert parse_memory(text) == mebibytes


@pytest.mark.parametrize("text", ["", "G", "0", "0G", "-4G", "4X", "4 G G", "9" * 5000, "9999999T"])
def test_invalid_memory(text: str) -> None:
    with pytest.raises(ParseError):
        parse_memory(text)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("gpu", {"gpu": 1}),
        ("gpu:2", {"gpu": 2}),
        ("gpu:a100:2", {"gpu:a100": 2}),
        ("gpu:a100", {"gpu:a100": 1}),
        ("gpu:2,gpu:1,nic:1", {"gpu": 3, "nic": 1}),
        ("gres/gpu:2", {"gpu": 2}),
        ("scratch:2K", {"scratch": 2048}),
        ("none", {}),
    ],
)
def test_generic_resources(text: str, counts: dict[str, int]) -> None:
    assert parse_gres(text) == counts


@pytest.mark.parametrize(
    "text", ["", ",", "gpu:", ":2", "gpu:0", "gpu:a:b:2", "gpu:-1", "gpu:2(S:0)", "gpu:9999999999"]
)
def test_invalid_generic_resources(text: str) -> None:
    with pytest.raises(ParseError):
        parse_gres(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "1k", "", "2147483648", "9" * 5000, "²"])
def test_invalid_counts(text: str) -> None:
    with pytest.raises(ParseError):
        parse_count(text)


# Whole submissions


def submitted(
    *arguments: str, environ: dict[str, str] | None = None
) -> tuple[SubmitRequest, list[str]]:
    options, command = parse_command_line(arguments)
    body, warnings = prepare_submission(options, command, environ=environ or {}, now=NOON)
    return msgspec.convert(body, SubmitRequest), warnings


def request(*arguments: str) -> JobRequest:
    submission, warnings = submitted(*arguments)
    assert warnings == []
    return submission.jobs[0]


def script(*lines: str, name: str = "job.sh") -> str:
    Path(name).write_text("\n".join(["#!/bin/sh", *lines, "hostname", ""]))
    return name


def refused(*arguments: str) -> str:
    with pytest.raises(InvalidSubmission) as caught:
        submitted(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert "; " in message
    return message


def test_a_script_with_its_arguments(tmp_path: Path) -> None:
    submission, _ = submitted("-n", "2", script(), "-n", "--time", "x y", "--", environ={"A": "1"})
    job = submission.jobs[0]
    assert job.arguments == ("-n", "--time", "x y", "--")
    assert (job.name, job.tasks, job.directory) == ("job.sh", 2, str(tmp_path))
    assert (job.output, job.error) == (None, None)
    assert submission.scripts == {job.script: "#!/bin/sh\nhostname\n"}
    assert submission.environments == {job.environment: {"A": "1"}}


def test_a_wrapped_command() -> None:
    submission, _ = submitted("--wrap", "echo 'a b'\nexit 3")
    assert submission.scripts[submission.jobs[0].script] == "#!/bin/sh\necho 'a b'\nexit 3\n"
    assert submission.jobs[0].name == "wrap"


def test_alternative_licences() -> None:
    job = request("-L", "matlab:2|octave", "--wrap", "x")
    assert (job.licences, job.licence_choices) == ({"matlab": 2}, ({"matlab": 2}, {"octave": 1}))
    assert request("-L", "matlab,octave", "--wrap", "x").licence_choices == ()
    assert MAX_LICENCE_CHOICES == units.MAX_LICENCE_CHOICES


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,b|c", "both , (all of them) and | (one of them) in licences"),
        ("a|b,c", "both , (all of them)"),
        ("a|a", "is there twice"),
        ("a|", "is no licence"),
        ("|".join(f"a{n}" for n in range(5)), "5 alternatives of licences"),
    ],
)
def test_alternative_licences_that_are_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidSubmission, match=re.escape(problem)):
        request("-L", text, "--wrap", "x")


def test_alternative_gres() -> None:
    job = request("--gres", "gpu:a100:2,disk|gpu:h100", "--wrap", "x")
    assert (job.gres, job.gres_alternatives) == ({"gpu:a100": 2, "disk": 1}, ({"gpu:h100": 1},))
    job = request("--gpus", "a100:4|h100:2", "-N", "2", "--wrap", "x")
    assert (job.gres, job.gres_alternatives) == ({"gpu:a100": 2}, ({"gpu:h100": 1},))
    assert request("--gres", "gpu:1", "--wrap", "x").gres_alternatives == ()


def test_every_option_reaches_the_request() -> None:
    sizes = "-n 4 -c 2 -N 2 --mem 4G --gres gpu:1 --exclusive -t 10"
    when = "--begin +1h --deadline +2h --urgency 3 --requeue --hold"
    where = "--cluster left,right -A acc -p long -q high --native left:--x"
    job = request(
        *f"{sizes} {when} {where}".split(),
        *("-C", "a100&nvme", "-J", 'ünï "q"', "-o", "out-%j-%x.%u%%", "-e", "err-%A"),
        *("--native", "left:-w 'n 1'", "--wrap", "x"),
    )
    assert (job.tasks, job.cpus_per_task, job.nodes, job.memory) == (4, 2, 2, 4096)
    assert (job.gres, job.exclusive, job.time_limit) == ({"gpu": 1}, True, 600)
    assert (job.begin, job.deadline, job.urgency) == (NOON + HOUR, NOON + 2 * HOUR, 3)
    assert job.clusters == ("left", "right")
    assert (job.account, job.partition, job.qos, job.constraint) == (
        "acc",
        "long",
        "high",
        "a100&nvme",
    )
    assert (job.name, job.output, job.error) == ('ünï "q"', "out-%j-%x.%u%%", "err-%A")
    assert (job.requeue, job.held, job.native) == (True, True, {"left": "--x -w 'n 1'"})


@pytest.mark.parametrize(
    ("arguments", "tasks", "nodes"),
    [
        ("-n 6", 6, None),
        ("-N 3", 3, 3),
        ("-N 3 --ntasks-per-node 2", 6, 3),
        ("-n 5 --ntasks-per-node 2", 5, 3),
        ("--ntasks-per-node 4", 4, 1),
        ("-N 2 -n 6", 6, 2),
        ("-n=6", 6, None),
        ("-n6", 6, None),
    ],
)
def test_tasks_and_nodes_complete_each_other(arguments: str, tasks: int, nodes: int | None) -> None:
    job = request(*arguments.split(), "--wrap", "x")
    assert (job.tasks, job.nodes) == (tasks, nodes)


@pytest.mark.parametrize(
    ("arguments", "gres", "nodes"),
    [
        ("--gpus 4", {"gpu": 4}, 1),
        ("--gpus a100:4 -N 2", {"gpu:a100": 2}, 2),
        ("--gpus-per-node 4 -N 2", {"gpu": 4}, 2),
        ("--gpus-per-node 4", {"gpu": 4}, None),
        ("--gpus-per-task 2 -n 4 -N 2", {"gpu": 4}, 2),
        ("--gres gpu:3 -N 2", {"gpu": 3}, 2),
        ("--gres nic:1 -G 2", {"nic": 1, "gpu": 2}, 1),
    ],
)
def test_generic_resources_are_counted_per_node(
    arguments: str, gres: dict[str, int], nodes: int | None
) -> None:
    job = request(*arguments.split(), "--wrap", "x")
    assert (job.gres, job.nodes) == (gres, nodes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-n 0", '"0" is no number'),
        ("-n -1", '"-1" is no number'),
        ("-c 2147483648", "is no number"),
        ("-n 65536 -c 65536", "fewer"),
        ("-N 4 -n 2", "2 tasks cannot fill 4 nodes"),
        ("-N 2 -n 9 --ntasks-per-node 4", "do not fit"),
        ("-N 4-2", "ends before it begins"),
        ("--mem 1G --mem-per-cpu 1G", "both --mem and --mem-per-cpu"),
        ("--gpus 3 -N 2", "cannot be shared equally"),
        ("--gpus 2 --gres gpu:1", "requested twice"),
        ("--gpus a:1|b:1 --gres x|y", "alternatives in two options"),
        ("--gres gpu:a|", "is no resource"),
        ("--gres " + "|".join(f"gpu:a{n}" for n in range(17)), "17 alternatives"),
        ("-t 0s", "no sensible duration"),
        ("-t soon", '"soon" is no duration, --time;'),
        ("--begin never", '"never" is no time, --begin;'),
        ("--urgency 4", "is not an urgency"),
        ("--cluster a,,b", "an empty name"),
        ("--account ", "an empty word"),
        ("--native left", "names no cluster"),
        ("--native left:'x", "no closing quotation"),
        ("--output out-%q", 'unknown pattern "%q"'),
        ("--output %4x", 'unknown pattern "%4x"'),
        ("--output dir/", "is a directory"),
        ("--output 50%", 'unknown pattern "%"'),
        ("--chdir nowhere", 'no directory "nowhere", --chdir'),
        ("--export A,=b", "write ALL, NONE, or"),
        ("--array 3-1", '"3-1" ends before it begins, --array; '),
        ("-a 1-3%x", '"1-3%x" is no range of tasks, --array; write it as 1-100, '),
        ("--licence matlab:", '"matlab:" is no licence, --licence; write NAME or NAME:N'),
        ("--licence :2", '":2" is no licence, --licence; '),
        ("--licence matlab,,ansys", "is no licence, --licence; "),
        ("-L matlab:0", '"0" is no number from 1 to 2147483647, --licence; '),
        ("-L matlab:-1", '"-1" is no number from 1 to 2147483647, --licence; '),
        ("-L matlab:2:3", '"2:3" is no number'),
        ("-L matlab,ansys,matlab:2", 'licence "matlab" is there twice, --licence; write NAME:N'),
        ("--dependency after:x", '"x" in "after:x" is no job to wait for, --dependency; '),
        ("--dependency before:1", '"before" in "before:1" is no dependency, --dependency; '),
        ("-d afterok:1,afterany:2?after:3", "both , and ?"),
        ("-d afterok:1 --kill-on-invalid-dep maybe", "write yes or no"),
        ("--reservation x", '"x" is no number from 1 to 2147483647, --reservation; '),
        ("--arary 1-3", 'unknown option "--arary", metasched submit; did you mean --array?'),
        ("--zzzzzz=1", 'unknown option "--zzzzzz", metasched submit; see'),
        ("--exclusive=user", "ignored explicit argument"),
    ],
)
def test_invalid_options_are_refused_in_one_line(arguments: str, message: str) -> None:
    assert message in refused(*arguments.split(" "), "--wrap", "x")


def test_a_missing_value_is_named() -> None:
    assert "-n/--ntasks" not in refused("--ntasks")
    assert refused("--wrap", "x", "--ntasks").startswith("--ntasks: expected one argument")


@pytest.mark.parametrize(
    "name", ["a\nb", "a\tb", "\x1b[31m", "\x7f", "\x9b", "x" * 256, "", "\udcff"]
)
def test_refused_names(name: str) -> None:
    assert "--name; " in refused("--name", name, "--wrap", "x")


@pytest.mark.parametrize("name", ['it\'s "q"', "日本語", "x" * 255, "a b", "-"])
def test_accepted_names(name: str) -> None:
    assert request(f"--name={name}", "--wrap", "x").name == name


def test_a_long_word_is_cut_in_messages() -> None:
    assert len(refused("--time", "x" * 10_000, "--wrap", "x")) < 300


def test_arguments_must_be_text() -> None:
    assert "not UTF-8" in refused(script(), "\udcff")


def test_a_script_and_a_wrapped_command_together() -> None:
    assert "both --wrap" in refused("--wrap", "x", script())
    assert "no script" in refused()
    assert "an empty command" in refused("--wrap", " ")


# Scripts


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an empty script"),
        (b" \n\n", "an empty script"),
        (b"#!/bin/sh\n\0", "a binary file"),
        (b"\x7fELF\x02\x01\x01\0", "a binary file"),
        (b"#!/bin/sh\n\xff\xfe", "not UTF-8"),
        (b"hostname\n", "no #! in line 1"),
        (b"\n#!/bin/sh\n", "no #! in line 1"),
        (b"#!\nhostname\n", "no #! in line 1"),
        (b"#!/bin/sh\r\nhostname\r\n", "dos2unix"),
        (b"#!/bin/sh\n" + b"x" * (4 * 1024 * 1024), "more than 4 MiB"),
    ],
)
def test_scripts_that_cannot_run(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.sh").write_bytes(content)
    assert message in refused("bad.sh")


def test_scripts_that_cannot_be_read(tmp_path: Path) -> None:
    assert 'No such file or directory, script "no.sh"' in refused("no.sh")
    assert "a directory" in refused(str(tmp_path))


def test_the_largest_script_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "big.sh").write_text("#!/bin/sh\n".ljust(4 * 1024 * 1024, "#"))
    assert request("big.sh").name == "big.sh"


# Directives


def test_sbatch_lines_are_understood() -> None:
    job = request(
        script(
            "",
            "# a comment",
            "#SBATCH --job-name=sim -n4",
            "#SBATCH\t--cpus-per-task 2   # two each",
            "#SBATCH -t 1:00:00 --mem-per-cpu=2G",
            "#SBATCH --gres=gpu:a100:2 -A acc -p long --qos=high",
            '#SBATCH --constraint="a&b" -o "out %A.txt"',
            "#SBATCH --begin=now+1hour --deadline=2023-11-16 --requeue -H --exclusive",
            "##SBATCH -n 9",
            "#SBATCHX -n 9",
            "echo",
            "#SBATCH -n 9",
        )
    )
    assert (job.name, job.tasks, job.cpus_per_task, job.time_limit) == ("sim", 4, 2, 3600)
    assert (job.memory, job.memory_per_cpu, job.gres) == (None, 2048, {"gpu:a100": 2})
    assert (job.account, job.partition, job.qos) == ("acc", "long", "high")
    assert (job.constraint, job.output) == ("a&b", "out %A.txt")
    assert (job.begin, job.deadline) == (NOON + HOUR, NOON + 12 * HOUR)
    assert (job.requeue, job.held, job.exclusive) == (True, True, True)


def test_precedence_of_directives_and_command_line() -> None:
    path = script(
        "#MS --time 2h --qos ours --name first",
        "#SBATCH -t 60 -q theirs -A theirs -n 2",
        "#SBATCH -n 3",
        "#MS --name second --urgency 2",
    )
    job = request("--qos", "mine", path)
    assert (job.time_limit, job.qos, job.account) == (2 * HOUR, "mine", "theirs")
    assert (job.tasks, job.name, job.urgency) == (3, "second", 2)


@pytest.mark.parametrize(
    ("lines", "arguments", "expected"),
    [
        (["#SBATCH --mem=4G"], "--mem-per-cpu 1G", {"memory": None, "memory_per_cpu": 1024}),
        (["#SBATCH --gpus-per-node=4"], "--gpus 1", {"gres": {"gpu": 1}}),
        (["#SBATCH --requeue"], "--no-requeue", {"requeue": False}),
        (["#SBATCH --no-requeue", "#SBATCH --requeue"], "", {"requeue": True}),
        (["#SBATCH --mem=4G", "#MS --mem-per-cpu 1G"], "", {"memory": None}),
    ],
)
def test_an_option_replaces_exclusive_options(
    lines: list[str], arguments: str, expected: dict[str, object]
) -> None:
    job = request(*arguments.split(), script(*lines))
    assert {name: getattr(job, name) for name in expected} == expected


def test_unknown_directives_are_listed_in_one_warning() -> None:
    path = script(
        "#SBATCH --mcs-label=a --batch b -n 2",
        "#SBATCH --tmp 1 --exclusive=user --mincpus=2",
    )
    submission, warnings = submitted(path)
    assert warnings == [
        "unknown options ignored, job.sh: --mcs-label, --batch, --exclusive=user, --tmp, --mincpus"
    ]
    assert (submission.jobs[0].tasks, submission.jobs[0].exclusive) == (2, True)


@pytest.mark.parametrize(
    ("lines", "arguments", "array"),
    [
        (["#SBATCH --array=1-9:2%3"], "", "1-9:2%3"),
        (["#SBATCH -a 1,3"], "", "1,3"),
        (["#$ -t 1-100:1", "#$ -tc 7"], "", "1-100:1%7"),
        (["#$ -tc 7", "#$ -t 5"], "", "5%7"),
        (["#$ -tc 7"], "", None),
        (["#PBS -J 1-9:4"], "", "1-9:4"),
        (["#PBS -t 1-9%2"], "", "1-9%2"),
        (["#PBS -t 1-9%2", "#$ -tc 7"], "", "1-9%2"),
        (["#$ -t 1-100"], "--array 3-4", "3-4"),
        (["#$ -t 1-100", "#MS --array 8"], "", "8"),
        ([], "", None),
    ],
)
def test_array_directives_of_every_manager(
    lines: list[str], arguments: str, array: str | None
) -> None:
    submission, warnings = submitted(*arguments.split(), script(*lines))
    assert submission.jobs[0].array == array
    assert warnings == []


def test_dependencies_are_sent_as_written() -> None:
    job = request("-d", " afterok:12:13_4,singleton ", "--kill-on-invalid-dep", "yes", script())
    assert (job.dependency, job.kill_on_invalid_dep) == ("afterok:12:13_4,singleton", True)
    assert request(script("#SBATCH -d after:1+5?afterany:2")).dependency == "after:1+5?afterany:2"


def test_a_range_of_nodes_means_its_minimum_with_a_warning() -> None:
    submission, warnings = submitted(script("#SBATCH -N 2-4"))
    assert submission.jobs[0].nodes == 2
    assert warnings == ["a range of nodes is not supported, --nodes, job.sh line 2: using 2"]
    assert submitted("-N", "2-2", script())[1] == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("#SBATCH --array=x", '"x" is no range of tasks, --array, job.sh line 2; '),
        ("#$ -t 1-", '"1-" is no range of tasks, --array, job.sh line 2; '),
        ("#PBS -J", "-J: expected one argument, job.sh line 2; "),
        (
            "#SBATCH -d afterok",
            '"" in "afterok" is no job to wait for, --dependency, job.sh line 2; ',
        ),
        ("#SBATCH -L matlab:", '"matlab:" is no licence, --licence, job.sh line 2; '),
        ("#SBATCH --licenses=matlab:x", '"x" is no number from 1 to 2147483647, --licence, job.sh'),
        ("#SBATCH --reservation=x", "--reservation is not taken from there, job.sh line 2; "),
        ("#SBATCH hetjob", "hetjob is not supported, job.sh line 2; "),
        ("#SBATCH -W", "--wait "),
        ("#SBATCH -i data.txt", "--input "),
        ("#SBATCH -n two", '"two" is no number from 1 to 2147483647, --ntasks, job.sh line 2; '),
        ("#SBATCH -o %q.out", 'unknown pattern "%q" in "%q.out", --output, job.sh line 2; '),
        ("#SBATCH --time", "--time: expected one argument, job.sh line 2; "),
        ("#SBATCH -J 'open", "no closing quotation, job.sh line 2; "),
        ("#MS --tmie 10", 'unknown option "--tmie", job.sh line 2; did you mean --time?'),
        ("#MS --wait", "write it on the command line"),
        ("#MS --array 0-1000000", "more than 1000000 tasks"),
    ],
)
def test_refused_directives(line: str, message: str) -> None:
    assert message in refused(script(line))


def test_an_invalid_directive_that_is_overridden_is_no_error() -> None:
    assert request("-n", "2", script("#SBATCH -n two")).tasks == 2


# Environment

SURROUNDINGS = {
    "PATH": "/bin",
    "A": "1",
    "SLURM_JOB_ID": "5",
    "SBATCH_ACCOUNT": "x",
    "SGE_ROOT": "/sge",
    "PBS_O_HOST": "h",
    "METASCHED_SOCKET": "/s",
    "METASCHED_TAG": "t",
    "SLURMLESS": "kept",
}
EXPORTED = {"PATH": "/bin", "A": "1", "METASCHED_SOCKET": "/s", "SLURMLESS": "kept"}


@pytest.mark.parametrize(
    ("export", "expected"),
    [
        (None, EXPORTED),
        ("ALL", EXPORTED),
        ("ALL,A=2,B=x=y", EXPORTED | {"A": "2", "B": "x=y", NAMED_VARIABLES: "A,B"}),
        ("NONE", {}),
        ("A", {"A": "1", NAMED_VARIABLES: "A"}),
        ("A,B=", {"A": "1", "B": "", NAMED_VARIABLES: "A,B"}),
        ("SLURM_JOB_ID", {"SLURM_JOB_ID": "5", NAMED_VARIABLES: "SLURM_JOB_ID"}),
    ],
)
def test_environment(export: str | None, expected: dict[str, str]) -> None:
    arguments = [] if export is None else ["--export", export]
    submission, warnings = submitted(*arguments, "--wrap", "x", environ=SURROUNDINGS)
    assert list(submission.environments.values()) == [expected]
    assert warnings == []


def test_variables_that_are_not_text_are_listed_in_one_warning() -> None:
    environ = {"GOOD": "ü", "BAD": "\udcff", "\udcfe": "x"}
    submission, warnings = submitted("--wrap", "x", environ=environ)
    assert list(submission.environments.values()) == [{"GOOD": "ü"}]
    assert len(warnings) == 1
    assert '"BAD"' in warnings[0]


def test_a_variable_that_is_not_set_is_a_warning() -> None:
    _, warnings = submitted("--export", "NOWHERE", "--wrap", "x")
    assert warnings == ["--export: NOWHERE is not set, the job will not have it"]


def test_the_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert request("--wrap", "x").directory == str(tmp_path)
    assert request("-D", "sub", "--wrap", "x").directory == str(tmp_path / "sub")
    assert request("-D", "/", "--wrap", "x").directory == "/"


def test_a_deleted_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "the current directory" in refused("--wrap", "x")


def test_strict_and_dry_run_are_sent() -> None:
    submission, _ = submitted("--strict", "--dry-run", "--wrap", "x")
    assert (submission.strict, submission.dry_run) == (True, True)
    submission, _ = submitted("--wrap", "x")
    assert (submission.strict, submission.dry_run) == (False, False)
