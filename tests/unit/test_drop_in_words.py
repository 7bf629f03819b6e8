"""Slurm's words for tasks of metasched: states, reasons, times, formats. Worked by hand."""

from __future__ import annotations

import os
import pwd
import shlex
import subprocess
import sys
import time
from io import BytesIO, TextIOWrapper
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import metasched
from metasched.adapters.slurm import listing
from metasched.client.connection import Connection, PermissionDenied
from metasched.core.transitions import FINAL, LIVE, QUEUED_OR_HELD
from metasched.drop_in import (
    command,
    job,
    job_filters,
    job_tools,
    native_nodes,
    sacct,
    scancel,
    scontrol,
    squeue,
    srun_options,
)
from metasched.drop_in.command import CommandError
from metasched.drop_in.job import Job
from metasched.drop_in.job_fields import JOB_FORMATS
from metasched.drop_in.native_clusters import NativeClusters
from metasched.model.job import Reason, State
from metasched.model.request_bounds import MAX_SELECTORS

PACKAGE = Path(metasched.__file__).parent


def row(**values: object) -> dict[str, Any]:
    """A row of `GET /jobs/details`."""
    texts = dict.fromkeys(
        ("cluster", "partition", "account", "qos", "dependency", "constraint", "comment")
    )
    times = dict.fromkeys(("submitted", "expected_start", "started", "ended"))
    counts = {"cpus": 2, "tasks": 1, "nodes": None, "restarts": 0, "priority": 3}
    rest: dict[str, object] = {
        "memory": None,
        "memory_per_cpu": None,
        "gres": {},
        "licences": {},
        "time_limit": None,
        "reservation": None,
        "clusters": [],
        "native": {},
    }
    options = {"wckey": "", "nice": 0, "nodelist": "", "exclude": ""}
    fixed = {"job": 17, "number": 17, "task": None, "array": None, "name": "x", "user": "ada"}
    states = {"state": "queued", "reason": "", "attempt_state": None, "node_list": ""}
    codes = {"exit_code": None, "signal": None}
    return {**texts, **times, **counts, **rest, **options, **fixed, **states, **codes, **values}


def test_every_state_and_reason_has_a_word() -> None:
    assert job.STATES.keys() | {"unknown"} == QUEUED_OR_HELD | LIVE | FINAL
    own = {str(reason) for reason in Reason} - {"duplicate"}
    assert job.REASONS.keys() == own


@pytest.mark.parametrize(
    ("values", "word", "code"),
    [
        ({"state": "held"}, "PENDING", "PD"),
        ({"state": "unknown"}, "PENDING", "PD"),
        ({"state": "unknown", "started": "2026-11-22T14:00:00+00:00"}, "RUNNING", "R"),
        ({"state": "failed", "attempt_state": "failed"}, "FAILED", "F"),
        ({"state": "failed", "attempt_state": "out_of_memory"}, "OUT_OF_MEMORY", "OOM"),
        ({"state": "rejected"}, "FAILED", "F"),
    ],
)
def test_states(values: dict[str, object], word: str, code: str) -> None:
    task = Job(row(**values))
    assert (task.state, task.code) == (word, code)


def test_the_sentence_of_a_rejection_is_its_admin_comment() -> None:
    [field] = [field for field in sacct.FIELDS.values() if field.heading == "AdminComment"]
    for state, comment in (("rejected", "Invalid qos"), ("failed", "")):
        task = Job(row(state=state, reason="Invalid qos"))
        assert [field.text(task, step) for step in ("", "batch")] == [comment, ""]


@pytest.mark.parametrize(
    ("state", "reason", "word"),
    [
        ("pending", "manager:Resources", "Resources"),
        ("pending", "manager:hqw", "Priority"),
        ("queued", "licence_busy", "Licenses"),
        ("running", "manager:None", "None"),
        ("failed", "", "NonZeroExitCode"),
    ],
)
def test_reasons(state: str, reason: str, word: str) -> None:
    assert Job(row(state=state, reason=reason)).reason == word


@pytest.mark.parametrize(
    ("seconds", "short", "clock"),
    [
        (0, "0:00", "00:00:00"),
        (59.9, "0:59", "00:00:59"),
        (3723, "1:02:03", "01:02:03"),
        (93784, "1-02:03:04", "1-02:03:04"),
    ],
)
def test_durations(seconds: float, short: str, clock: str) -> None:
    assert (job.format_duration(seconds), job.format_clock(seconds)) == (short, clock)


@pytest.mark.parametrize(
    ("mebibytes", "text", "in_units"),
    [
        (0, "0", "0 0 0"),
        (477, "477M", "488448K 477M 0.47G"),
        (1500, "1500M", "1536000K 1500M 1.46G"),
        (1536, "1.50G", "1572864K 1536M 1.50G"),
        (2047, "2047M", "2096128K 2047M 2.00G"),
        (4096, "4G", "4194304K 4096M 4G"),
        (10_000_000, "10000000M", "10240000000K 10000000M 9765.62G"),
        (2**21, "2T", "2147483648K 2097152M 2048G"),
    ],
)
def test_memory(mebibytes: int, text: str, in_units: str) -> None:
    """As the real squeue and sacct write it."""
    assert job.format_memory(mebibytes) == text
    assert " ".join(job.format_memory(mebibytes, unit) for unit in "KMG") == in_units


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ""),
        ("a1", "a1"),
        ("n[09-11]x[1-2]", "n09x1 n09x2 n10x1 n10x2 n11x1 n11x2"),
        # no answer of a manager may end a listing, or take its time
        *((text, text) for text in ("a[1-", "a[3-1]", "a[0-999999999]", "a[1-1001]" * 2)),
    ],
)
def test_nodes_of_a_job(text: str, hosts: str) -> None:
    nodes = Job(row(node_list=text, nodes=7))
    assert nodes.nodes == hosts.split()
    assert nodes.node_count == (len(hosts.split()) or 7)


@pytest.mark.parametrize("text", ["a[1-", "a[3-1]", "a[0-999999999]"])
def test_nodes_that_are_no_list(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = _Cancellations(monkeypatch)
    with pytest.raises(CommandError) as caught:
        scancel.main(["--me", "-w", text])
    assert str(caught.value) == f"scancel: error: '{text}' invalid entry for --nodelist"
    assert cancelled.ids == []
    with pytest.raises(CommandError, match="unable to parse node list"):
        native_nodes.show_nodes(
            NativeClusters({"first_id": 1, "instances": [], "clusters": []}), [], [text]
        )


def test_a_node_that_is_called_as_an_empty_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = SimpleNamespace(code=0, answers=lambda: [(None, "NodeName=n1 Arch=x86_64\n")])
    monkeypatch.setattr(native_nodes, "_Nodes", lambda *_: answer)
    clusters = NativeClusters({"first_id": 1, "instances": [], "clusters": []})
    assert native_nodes.show_nodes(clusters, [], ["None"]) == 1  # not all nodes
    assert capsys.readouterr().out == "Node None not found\n"


@given(st.text(max_size=40))
def test_any_format_is_parsed(text: str) -> None:
    line = JOB_FORMATS.parse(text).line(Job(row(name="a\nb\x1b[31m")))
    assert line.count("\n") == text.count("\n")


def test_a_name_cannot_forge_a_line() -> None:
    assert JOB_FORMATS.parse("%i %j %t").line(Job(row(name="x\n18 y"))) == "17 x?18 y PD"


@pytest.mark.parametrize(
    ("format", "heading", "line"),
    [
        ("%i^^^%t", "JOBID^^^ST", "17^^^PD"),
        ("%.5i|%.3j|%2T", "JOBID|NAM|ST", "   17|  x|PE"),
        ('"%i","%C"', '"JOBID","CPUS"', '"17","2"'),
        ("a%%%j%i%", "aNAMEJOBID", "ax17"),  # as strtok of the real command reads it
        (f"%{'9' * 12}i|%.{'9' * 5000}t", "JOBID|ST", "17|PD"),  # no column takes all memory
        ("%w|%n|%x|%y", "WCKEY|REQ_NODES|EXC_NODES|NICE", "(null)|||0"),
    ],
)
def test_formats(format: str, heading: str, line: str) -> None:
    parsed = JOB_FORMATS.parse(format)
    assert (parsed.heading, parsed.line(Job(row()))) == (heading, line)


@pytest.mark.parametrize(
    ("format", "line"),
    [
        ("JobID:4,state:.9,Reason:1", "17    PENDINGJ"),
        ("jobid:,state: ,name:|", "17PENDING x|"),
        (" , jobid:3|,,state:.8/", "17 | PENDING/"),
        (f"jobid:{'9' * 5000},name:1", "17x"),
    ],
)
def test_long_formats(format: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert JOB_FORMATS.parse_long(format).line(Job(row(reason="held"))) == line
    assert capsys.readouterr().err == ""


def test_widths_of_sacct_take_no_memory() -> None:
    field = sacct.FIELDS["state"]
    for width, size in (("30", 30), ("-30", -30), ("x", 10), ("9" * 12, 10), ("9" * 5000, 10)):
        assert sacct._parse_column(f"state%{width}") == (field, size)


@pytest.mark.parametrize(
    ("ids", "lines"),
    [
        ("17", "17_[3-5,7%2]"),
        ("17_3,17_5", "17_[3,5]"),
        ("17_3", "17_3"),
        ("17,17_3", "17_[3-5,7%2]"),
    ],
)
def test_tasks_that_are_named_are_listed_without_the_others(ids: str, lines: str) -> None:
    words = ids.split(",")
    tasks = [Job(row(task=i, array="1-9%2", reason="limit_array")) for i in (3, 4, 5, 7)]
    named = [job for job in tasks if {"17", f"17_{job.tasks}"}.intersection(words)]
    folded = job_filters.fold_waiting(named, words)
    assert [line.array_id for line in folded] == lines.split()


@pytest.mark.parametrize(
    ("ids", "rows"),
    [("17", ["", "batch"]), ("17.batch", ["batch"]), ("17.0", []), ("17.batch,17", ["", "batch"])],
)
def test_steps_that_are_named_are_listed_alone(ids: str, rows: list[str]) -> None:
    job = Job(row(state="failed", started="2026-11-22T14:00:00Z", ended="2026-11-22T14:00:09Z"))
    listed = [step for _, step in sacct._rows([job], ids.split(","), False)]
    assert listed == rows
    assert [step for _, step in sacct._rows([job], ids.split(","), True)] == [""]
    assert [sacct.FIELDS["reason"].text(job, step) for step in ("", "batch")] == ["None", ""]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["-o", "%i", "-O", "jobid"], "-O (--Format) is incompatible with -o (--format)"),
        (["-O", "jobid", "-o", "%i"], "-o (--format) is incompatible with -O (--Format)"),
        (["-l", "-o", "%i"], "-o(--format) and -l(--long) are mutually exclusive"),
    ],
)
def test_formats_that_contradict_are_refused(
    words: list[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Cancellations(monkeypatch)
    for name in ("connect", "read_clusters", "listed_tasks"):
        monkeypatch.setattr(squeue, name, getattr(scancel, name))
    with pytest.raises(CommandError) as error:
        squeue.main(words)
    assert problem in str(error.value)


def test_a_format_of_the_command_line_counts_before_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _Cancellations(monkeypatch)
    for name in ("connect", "read_clusters", "listed_tasks"):
        monkeypatch.setattr(squeue, name, getattr(scancel, name))
    monkeypatch.setenv("SQUEUE_FORMAT", "%t")
    monkeypatch.setenv("SQUEUE_FORMAT2", "jobid:3")
    for words, line in (([], "PD"), (["-o", "%j"], "a"), (["-O", "state:4"], "PEND"), (["-l"], "")):
        assert squeue.main(["-h", "-j", "1", *words]) == 0
        listed = capsys.readouterr().out.rstrip("\n")
        assert listed == line if line else "PENDING" in listed


def test_an_id_of_several_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool names a job twice, so that an unknown one is no error."""
    _Cancellations(monkeypatch)
    for name in ("connect", "read_clusters", "listed_tasks"):
        monkeypatch.setattr(squeue, name, getattr(scancel, name))
    for word in ("8,8", "8,9", "1_3"):
        assert squeue.main(["-h", "-j", word]) == 0
    for word in ("8", "8_3"):
        with pytest.raises(CommandError, match="slurm_load_jobs error: Invalid job id specified"):
            squeue.main(["-h", "-j", word])


def test_waiting_tasks_share_a_line() -> None:
    array = {"array": "1-9%2", "job": 17}
    tasks = [Job(row(task=i, number=16 + i, reason="limit_array", **array)) for i in (3, 4, 5, 7)]
    running = Job(row(task=1, number=17, state="running", **array))
    lines = job_filters.fold_waiting([running, *tasks])
    assert [(line.array_id, line.number) for line in lines] == [("17_1", 17), ("17_[3-5,7%2]", 17)]


def test_a_row_may_stand_for_waiting_tasks() -> None:
    waiting = {"array": "1-9%2", "job": 17, "reason": "limit_array"}
    rows = [
        row(task=2, number=18, folded="2-5", **waiting),
        row(task=6, number=22, **waiting),
        row(task=7, number=23, folded="7-9:2", **waiting),
    ]
    [line] = job_filters.fold_waiting(list(map(Job, rows)))
    assert (line.array_id, line.number, line.tasks) == ("17_[2-7,9%2]", 17, "2-7,9%2")
    [line] = job_filters.fold_waiting([Job(rows[0])], ["17_2", "17_3", "17_4", "17_5"])
    assert line.array_id == "17_[2-5]"


@pytest.mark.parametrize("word", ["17", "17_3", "17_[3-9:2,12%4]"])
def test_job_ids(word: str) -> None:
    assert job_filters.is_job_id(word)


@pytest.mark.parametrize(
    "word", ["", "x", "17_", "17_[", "17_[]", "-1", "1" * 30, "17.batch", "\u0661"]
)
def test_other_words_are_no_job_ids(word: str) -> None:
    assert not job_filters.is_job_id(word)


def test_a_text_that_is_cut_ends_in_a_plus() -> None:
    assert sacct._fit("abcdef", 5) == "abcd+"
    assert sacct._fit("abc", -5) == "abc  "


def test_options_may_be_short_long_shortened_and_mixed_with_words() -> None:
    options = {"jobs=": "j", "noheader": "h", "name=": ""}
    parsed = command.parse_options("squeue", options, ["17", "-hj", "1,2", "--nam=x", "18"])
    assert parsed == ([("noheader", ""), ("jobs", "1,2"), ("name", "x")], ["17", "18"])
    parsed = command.parse_options("squeue", options, ["-h", "--", "-j"])
    assert parsed == ([("noheader", "")], ["-j"])


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("--foo=1", "unrecognized option '--foo=1'"),
        ("-Z", "invalid option -- 'Z'"),
        ("-n", "option requires an argument -- 'n'"),
        ("--nam", "option '--name' requires an argument"),
        ("--me=1", "option '--me' doesn't allow an argument"),
        ("--st", "option '--st' is ambiguous; possibilities: '--start' '--states'"),
    ],
)
def test_wrong_options_are_answered_as_by_getopt_long(word: str, problem: str) -> None:
    options = {"me": "", "name=": "n", "start": "", "states=": "t"}
    for name, hint in (("squeue", '\nTry "squeue --help" for more information'), ("sacct", "")):
        with pytest.raises(CommandError) as refused:
            command.parse_options(name, options, ["17", word])
        assert str(refused.value) == f"{name}: {problem}{hint}"


def test_a_shortened_name_of_synonyms_is_not_ambiguous() -> None:
    """As for getopt_long(3), which compares the letters of the options."""
    assert squeue._parse(["--clus=a", "--user=x", "--users=y"])[0] == [
        ("clusters", "a"),
        ("user", "x"),
        ("user", "y"),
    ]
    parsed = command.parse_options("sacct", sacct.OPTIONS, ["--acc=a", "--clusters=b", "-M", "c"])
    assert parsed[0] == [("account", "a"), ("cluster", "b"), ("cluster", "c")]
    for options in (scancel.OPTIONS, scontrol.OPTIONS, job_tools.CLUSTERS):
        parsed = command.parse_options("x", options, ["--clus=a", "--cluster=b"])
        assert parsed[0] == [("clusters", "a"), ("clusters", "b")]


@pytest.mark.parametrize(
    ("arguments", "jobs", "rest"),
    [
        (["-j", "17"], "17", []),
        (["-j17", "-h"], "17", []),
        (["--jobs", "-h", "17", "18"], "17", ["18"]),
        (["--jobs=17", "18"], "18", []),
        (["-hj"], None, []),
        (["--jobs="], "", []),
        (["-j", ""], "", []),
        (["17"], None, ["17"]),
    ],
)
def test_ids_of_squeue_may_follow_other_options(
    arguments: list[str], jobs: str | None, rest: list[str]
) -> None:
    parsed, words = squeue._parse(arguments)
    assert (dict(parsed).get("jobs"), words) == (jobs, rest)


def test_a_long_command_line_is_read_in_linear_time() -> None:
    """A quadratic reader would take minutes: no limit is near."""
    ids = [str(id) for id in range(100_000)]
    names = [word for id in ids for word in ("-n", id)]
    begin = time.process_time()
    assert command.parse_options("scancel", scancel.OPTIONS, ids) == ([], ids)
    assert len(command.parse_options("scancel", scancel.OPTIONS, names)[0]) == len(ids)
    assert len(command.parse_options("scancel", scancel.OPTIONS, [f"-{'v' * 10**6}"])[0]) == 10**6
    assert srun_options.split_options([*names, "--", "true"])[1] == ["--", "true"]
    assert time.process_time() - begin < 15


def test_the_commands_import_the_standard_library_alone() -> None:
    """They run without site-packages, and none of the slow modules is loaded for a listing."""
    code = f"import sys; sys.path.append({str(PACKAGE.parent)!r}); "
    code += "from metasched.drop_in import sacct, scancel, scontrol, sinfo, squeue; "
    code += "print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"typing", "dataclasses", "pathlib", "argparse", "urllib.parse", "datetime"}
    assert {name for name in loaded if name.startswith("metasched.")} == {
        *("metasched.client", "metasched.client.address", "metasched.client.connection"),
        *("metasched.client.option_words", "metasched.client.sudo"),
        "metasched.client.unix_socket",
        *("metasched.errors", "metasched.paths"),
        "metasched.drop_in",
        *(f"metasched.drop_in.{name}" for name in ("command", "command_line")),
        *(f"metasched.drop_in.{name}" for name in ("format_language", "job")),
        *(f"metasched.drop_in.{name}" for name in ("job_fields", "job_filters")),
        *(
            f"metasched.drop_in.{name}"
            for name in ("native_clusters", "sacct", "scancel", "scontrol", "sinfo", "squeue")
        ),
    }


@pytest.mark.parametrize("name", ["program", "job", "../squeue"])
def test_other_names_are_no_commands(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(name) == 1
    assert capsys.readouterr().err.startswith(f"{name}: error: no command of this name; call it")


def test_a_name_outside_the_encoding_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing that broke off at another user's job would be taken for the whole."""
    printed = BytesIO()
    monkeypatch.setattr("sys.stdout", TextIOWrapper(printed, encoding="ascii"))
    monkeypatch.setattr("sys.argv", ["squeue", "-h", "-o", "%j"])
    monkeypatch.setattr(squeue, "connect", lambda: None)
    no_clusters = NativeClusters({"first_id": 1, "instances": [], "clusters": []})
    monkeypatch.setattr(squeue, "read_clusters", lambda _: no_clusters)
    monkeypatch.setattr(squeue, "listed_tasks", lambda *_: [row(name="\u00e9t\u00e9")])
    assert command.run("squeue") == 0
    assert printed.getvalue() == b"\\xe9t\\xe9\n"


def test_each_command_is_the_same_program() -> None:
    folder = PACKAGE / "drop_in/slurm"
    program = (folder / "program").read_text()
    for name in command.COMMANDS:
        assert (folder / name).read_text() == program
        assert (folder / name).stat().st_mode & 0o111 == 0o111


def test_states_of_the_model_are_complete() -> None:
    attempts = {str(state) for state in State} - job.STATES.keys() - {"unknown"}
    assert job.ATTEMPT_STATES.keys() == attempts


def test_states_of_slurm_are_those_of_its_listings() -> None:
    own = {name: state for name, (_, state) in job.SLURM_STATES.items()}
    listed = {name: state for name, state in listing.STATES.items() if name in own}
    assert listed == own
    assert listing.STATES.keys() - own == {"LAUNCH_FAILED", "RECONFIG_FAIL"}  # squeue takes neither
    for state, name in {**job.STATES, **job.ATTEMPT_STATES}.items():
        assert state in job.own_states(job.SLURM_STATES[name][0].lower())
    wider = {job.wider_state(code) for _, (code, _) in job.SLURM_STATES.items()}
    assert wider <= {*job.STATES, *job.ATTEMPT_STATES, "unknown"}


@pytest.mark.parametrize(
    ("order", "jobs"),
    [
        ("i", "1 2 3"),
        ("-i", "3 2 1"),
        ("M,-i", "3 1 2"),
        ("-C+i", "2 1 3"),
        ("t,C", "1 3 2"),
        ("-ti", "1 2 3"),
    ],
)
def test_jobs_are_sorted_by_values(order: str, jobs: str) -> None:
    rows = [
        row(job=1, state="running", cpus=10, started="2026-11-22T14:00:00Z"),
        row(job=2, state="running", cpus=100, started="2026-11-22T13:00:00Z"),
        row(job=3, state="running", cpus=9, started="2026-11-22T15:00:00Z"),
    ]
    if order.startswith("t"):
        rows[0] |= {"state": "queued", "started": None}
    listed = squeue._sorted([Job(values) for values in rows], order)
    assert [str(job.row["job"]) for job in listed] == jobs.split()


def test_resources_of_a_job() -> None:
    assert Job(row(cpus=6, nodes=2)).tres == "cpu=6,node=2"
    whole = row(cpus=6, nodes=2, memory=1536, gres={"gpu:a100": 2, "disk": 1})
    assert Job(whole).tres == "cpu=6,mem=3G,node=2,gres/gpu:a100=4,gres/disk=2"
    assert Job(row(cpus=6, memory_per_cpu=100)).tres == "cpu=6,mem=600M,node=1"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("", "1 0 *:*:* 0 OK"),
        ("--contiguous --mincpus=3 --tmp=5000", "3 5000M *:*:* 1 OK"),
        ("--extra-node-info=2:3 --threads-per-core=1 --oversubscribe", "1 0 2:3:1 0 YES"),
        ("--mincpus=\u0661 --tmp=much -t 5", "1 0 *:*:* 0 OK"),  # Slurm has refused them
        (f"--mincpus={'9' * 5000}", "1 0 *:*:* 0 OK"),
    ],
)
def test_options_that_slurm_alone_reads_are_shown(options: str, shown: str) -> None:
    one = Job(row(cpus=1, native={"north": options} if options else {}, exclusive=False))
    assert JOB_FORMATS.parse("%c %d %z %O %h").line(one) == shown


@pytest.mark.parametrize("option", ["user", "mcs", ""])
def test_users_or_labels_may_share_the_nodes_of_a_job(option: str) -> None:
    native = {"north": f"--exclusive={option}"} if option else {}
    assert Job(row(native=native, exclusive=True)).sharing == (option.upper() or "NO")


def test_paths_of_a_task_and_of_an_array() -> None:
    task = Job(row(number=19, task=5, output="/o/%j-%a-100%%", error=None, array="1-9"))
    assert task.output_path == task.error_path == "/o/19-5-100%"
    task.fold([task])
    assert task.output_path == f"/o/17-{2**32 - 2}-100%"


@pytest.mark.parametrize(
    ("text", "codes"),
    [("all,PD", ""), ("cg", "CG"), ("PD, Completing,TO", "PD CG TO"), (" ,", "")],
)
def test_lists_of_states(text: str, codes: str) -> None:
    assert job_filters.parse_codes(text, "no state {}") == set(codes.split())
    with pytest.raises(CommandError, match=r"^no state PENDINGS$"):
        job_filters.parse_codes(f"R,PENDINGS,{text}", "no state {}")


class _Cancellations:
    """A daemon with the rows of a few jobs, which keeps the ids that it is to cancel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids: list[str] = []
        self.requests: list[list[str]] = []
        self.states: list[str | None] = []
        self.denied = set[str]()
        self.most = MAX_SELECTORS
        no_clusters = NativeClusters({"first_id": 1, "instances": [], "clusters": []})
        user = pwd.getpwuid(os.getuid()).pw_name
        rows = [
            row(job=1, name="a", user=user, reservation=None, partition="long", wckey=""),
            row(job=2, name="b", user=user, reservation=7, partition=None, account="physics"),
            row(job=3, name="a,b", user=user, reservation=None, partition="long", wckey="w")
            | {"node_list": "a2,a7"},
            row(job=4, number=4, name="c", user="bob", partition="short"),
        ]
        monkeypatch.setattr(scancel, "connect", lambda: self)
        monkeypatch.setattr(scancel, "read_clusters", lambda _: no_clusters)
        monkeypatch.setattr(scancel, "listed_tasks", lambda _, query: self._listed(rows, query))

    def _listed(self, rows: list[dict[str, Any]], query: dict[str, Any]) -> list[dict[str, Any]]:
        ids, user = query.get("job"), query.get("user")
        listed = (values for values in rows if ids is None or str(values["job"]) in ids)
        return [values for values in listed if user in (None, values["user"])]

    def request(
        self, _: str, path: str, query: dict[str, str], body: dict[str, Any]
    ) -> tuple[None, dict[str, str]]:
        assert path == "/jobs/cancel"
        assert len(body["jobs"]) <= self.most
        if self.denied.intersection(body["jobs"]):
            raise PermissionDenied("a job of bob")
        self.ids += body["jobs"]
        self.requests.append(body["jobs"])
        self.states.append(body.get("state"))
        return None, {}


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ("--me", "1 2 3"),
        ("-n a", "1"),
        ("-n a,b", "3"),
        ("--name x --jobname a", "1"),
        ("--jobname a --name x", ""),
        ("-R 7", "2"),
        ("-R None", ""),
        ("-A PHYSICS", "2"),
        ("-A phys", ""),
        ("-n A", ""),
        ("-p None", ""),
        ("-p long 1 2", "1"),
        ("--me --wckey=", ""),
        *((f"--me -{letter} ''", "") for letter in "pAqnRw"),
        ("--me -u nobody", ""),
        ("-u nobody --me -p long", "1 3"),
        ("-A physics -t PD", "2"),
        ("-A physics -t R", ""),
        ("'1_*' 2", "1 2"),
        ("-n a '1_*' '2_*'", "1"),
    ],
)
def test_filters_of_scancel(arguments: str, ids: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = _Cancellations(monkeypatch)
    assert scancel.main(shlex.split(arguments)) == 0
    assert cancelled.ids == ids.split()


@pytest.mark.parametrize("word", ["*", "_*", "1*", "1_**", "1_3_*", "1_[*]", "1_*x", "1_*.0"])
def test_other_stars_are_no_ids(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = _Cancellations(monkeypatch)
    with pytest.raises(CommandError, match="Invalid job id"):
        scancel.main([word])
    assert cancelled.ids == []


def test_arrays_of_many_tasks_are_cancelled_as_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cancelled = _Cancellations(monkeypatch)
    array = {"job": 17, "array": "1-150001", "state": "queued"}
    rows = [
        row(task=1, number=17, **array | {"state": "running"}),
        row(task=2, number=18, folded="2-120001", **array),
    ]
    monkeypatch.setattr(scancel, "listed_tasks", lambda *_: rows)
    assert scancel.main(["--me"]) == 0
    assert cancelled.requests == [["17"]]
    assert scancel.main(["-t", "PD"]) == 0
    assert cancelled.requests[1:] == [["17"]]
    assert cancelled.states == [None, "queued,held,dispatching,pending"]
    assert scancel.main(["-p", "", "17"]) == 0
    assert len(cancelled.requests) == 2
    # 18 is the number of a task; a row of tasks that are named would stand for all that wait
    queries: list[dict[str, Any]] = []

    def listed(_: object, query: dict[str, Any]) -> list[dict[str, Any]]:
        queries.append(query)
        return [row(task=2, number=18, **array)]

    monkeypatch.setattr(scancel, "listed_tasks", listed)
    assert scancel.main(["--me", "18"]) == 0
    assert cancelled.requests[2:] == [["17_2"]]
    assert "fold" not in queries[0]


@pytest.mark.parametrize("arguments", ["--me ''", "-u root ,", "'' -p long", "1 '' --me", "--me x"])
def test_an_empty_id_of_scancel_is_no_absent_one(
    arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`scancel --me "$JOB"` with an unset variable would cancel all jobs."""
    cancelled = _Cancellations(monkeypatch)
    with pytest.raises(CommandError, match="Invalid job id"):
        scancel.main(shlex.split(arguments))
    assert cancelled.ids == []


@pytest.mark.parametrize("arguments", ["1 2 4 3", "-t PD"])
def test_jobs_of_others_keep_none_of_the_caller_from_its_end(
    arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cancelled = _Cancellations(monkeypatch)
    cancelled.denied = {"4"}
    assert scancel.main(arguments.split()) == 1
    assert cancelled.ids == ["1", "2", "3"]
    problem = "Kill job error on job id 4: Access/permission denied"
    assert capsys.readouterr().err == f"scancel: error: {problem}\n"
    with pytest.raises(PermissionDenied):
        scancel.main(["4"])


def test_a_step_that_cannot_be_ended_keeps_no_job_from_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cancelled = _Cancellations(monkeypatch)
    monkeypatch.setattr("metasched.drop_in.job_tools.listed_tasks", lambda *_: [])
    assert scancel.main(["1.0", "2"]) == 1
    assert "Kill job error on job step id 1: Invalid job id specified" in capsys.readouterr().err
    assert cancelled.ids == ["2"]


@pytest.mark.parametrize(
    ("name", "value", "ids"),
    [
        ("SCANCEL_PARTITION", "long", "1 3"),
        ("SCANCEL_NAME", "b", "2"),
        ("SCANCEL_NAME", "", ""),
        ("SCANCEL_STATE", "running", ""),
        ("SCANCEL_WCKEY", "w", "3"),
        ("SCANCEL_USER", "nobody", "1 2 3"),
    ],
)
def test_variables_of_scancel_are_filters(
    name: str, value: str, ids: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = _Cancellations(monkeypatch)
    monkeypatch.setenv(name, value)
    assert scancel.main(["--me"]) == 0
    assert cancelled.ids == ids.split()


def test_nodes_of_scancel_may_be_those_of_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cancelled = _Cancellations(monkeypatch)
    nodes = "a[1-2]"
    (tmp_path / "nodes").write_text(f"# a comment\nother  # more\n\n{nodes}\n")
    assert scancel.main(["--me", "-w", f"{tmp_path}/nodes"]) == 0
    assert cancelled.ids == ["3"]
    (tmp_path / "nodes").write_text(f"#{nodes}\n")
    for word in (f"{tmp_path}/nodes", "nodes"):
        assert scancel.main(["--me", "-w", word]) == 0
    with pytest.raises(CommandError, match=r"error opening file \S+/none, No such file"):
        scancel.main(["--me", "-w", f"{tmp_path}/none"])
    (tmp_path / "nodes").write_text(" " * (scancel.MAX_NODE_FILE - 2) + nodes)
    with pytest.raises(CommandError, match="has more than 1048576 characters"):
        scancel.main(["--me", "-w", f"{tmp_path}/nodes"])
    assert cancelled.ids == ["3"]


def test_more_jobs_are_cancelled_than_a_request_may_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = _Cancellations(monkeypatch)
    cancelled.most = scancel.MAX_CANCELLED
    assert cancelled.most < MAX_SELECTORS
    ids = [f"1_{index}" for index in range(MAX_SELECTORS + 1)]
    assert scancel._cancel(cast(Connection, cancelled), ids) == []
    assert cancelled.ids == ids


@pytest.mark.parametrize(
    ("arguments", "ids"), [("-n B,a", "1 2"), ("-A PHYSICS", "2"), ("-p LONG", ""), ("-q X", "")]
)
def test_names_and_accounts_of_squeue_are_those_in_any_case(
    arguments: str, ids: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = _Cancellations(monkeypatch)
    for name in ("connect", "read_clusters", "listed_tasks"):
        monkeypatch.setattr(squeue, name, getattr(scancel, name))
    assert squeue.main(["-h", "-o", "%i", *arguments.split()]) == 0
    assert sorted(capsys.readouterr().out.split()) == ids.split()
    assert site.ids == []


@pytest.mark.parametrize(("value", "is_refused"), [("TRUE", True), ("t", True), ("false", False)])
def test_scancel_asks_nothing(
    value: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = _Cancellations(monkeypatch)
    monkeypatch.setenv("SCANCEL_INTERACTIVE", value)
    if is_refused:
        with pytest.raises(CommandError, match="unset SCANCEL_INTERACTIVE"):
            scancel.main(["--me"])
    else:
        scancel.main(["--me"])
    assert bool(cancelled.ids) is not is_refused


@pytest.mark.parametrize("verb", ["hold", "release", "requeue"])
def test_the_name_of_a_job_is_not_the_id_of_another(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scontrol, "connect", lambda: pytest.fail("the daemon was asked"))
    with pytest.raises(CommandError, match="JobName=17 is no job id"):
        scontrol.main([verb, "18", "JobName=17"])


@pytest.mark.parametrize("id", ["", ",", "x"])
def test_an_empty_id_of_update_makes_no_name_a_selection(
    id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scontrol, "connect", lambda: pytest.fail("the daemon was asked"))
    with pytest.raises(CommandError, match=f"Invalid job id specified for job {id}$"):
        scontrol.main(["update", f"JobId={id}", "JobName=x", "TimeLimit=5"])


def test_a_job_is_not_requeued_where_it_is_to_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    no_clusters = NativeClusters({"first_id": 1, "instances": [], "clusters": []})
    monkeypatch.setattr(scontrol, "connect", lambda: None)  # no request can be made
    monkeypatch.setattr(scontrol, "read_clusters", lambda _: no_clusters)
    with pytest.raises(CommandError, match="requeue them, then hold them"):
        scontrol.main(["requeuehold", "17"])


def test_a_job_that_has_no_scontrol_keeps_no_other_from_its_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    common = {"manager_name": "", "up": True, "accounting": False, "tag_field": ""}
    common |= {"native_jobs": True, "bin_dir": ""}
    rows = [common | {"cluster": "cell", "config": ""}]
    rows.append(common | {"cluster": "alpha", "config": "/etc/slurm.conf"})
    clusters = NativeClusters({"first_id": 100, "instances": [], "clusters": rows})
    calls: list[tuple[list[str], str]] = []

    def run(_: str, cluster: Any, arguments: list[str], __: dict[str, str]) -> int:
        calls.append((arguments, cluster.name))
        return 0

    places = {"cell": {"7": "101"}, "gone": {"8": "102"}, "alpha": {"9": "103"}}
    monkeypatch.setattr(scontrol, "connect", lambda: None)
    monkeypatch.setattr(scontrol, "read_clusters", lambda _: clusters)
    monkeypatch.setattr(job_tools, "run_for_jobs", run)
    missing = {"104": "Job is pending execution"}
    monkeypatch.setattr(job_tools, "native_places", lambda *_, **__: (places, missing))
    assert scontrol.main(["suspend", "101,102,103,104"]) == 1
    assert calls == [(["--", "suspend", "9"], "alpha")]
    problems = ["Job is pending execution for job 104"]
    problems += [f"scontrol: error: cluster {name} has no scontrol" for name in ("cell", "gone")]
    assert capsys.readouterr().err.splitlines() == problems


@pytest.mark.parametrize("command", ["scancel -s USR1 17", "scontrol suspend 17"])
@pytest.mark.parametrize(
    ("state", "is_changed"), [("completed", False), ("queued", False), ("running", True)]
)
def test_what_a_manager_has_no_more_is_not_changed_there(
    command: str, state: str, is_changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a controller has lost its state, its ids are those of other jobs."""
    cluster = {"cluster": "alpha", "manager_name": "", "up": True, "accounting": False}
    cluster |= {"tag_field": "", "native_jobs": True, "bin_dir": "", "config": "/etc/slurm.conf"}
    clusters = NativeClusters({"first_id": 10, "instances": [], "clusters": [cluster]})
    calls: list[list[str]] = []

    def run(_: str, __: Any, arguments: list[str], ___: dict[str, str]) -> int:
        calls.append(arguments)
        return 0

    tried = [row(cluster="alpha", state=state, native_id="9")]
    monkeypatch.setattr(job_tools, "listed_tasks", lambda *_: tried)
    monkeypatch.setattr(job_tools, "run_for_jobs", run)
    for module in (scancel, scontrol):
        monkeypatch.setattr(module, "connect", lambda: None)
        monkeypatch.setattr(module, "read_clusters", lambda _: clusters)
    name, *arguments = command.split()
    code = {"scancel": scancel, "scontrol": scontrol}[name].main(arguments)
    assert (code, bool(calls)) == ((0, True) if is_changed else (1, False))


def test_zeros_of_sacct_are_written() -> None:
    texts = [sacct.FIELDS[name].text(Job(row()), "") for name in ("restarts", "reservation")]
    assert texts == ["0", ""]


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ("--name A,B", "1 2"),
        ("-A PHYSICS", "2"),
        ("-u bob,ME", "1 2 3 4"),
        ("-u bob", "4"),
        ("-a", "1 2 3 4"),
        ("-r LONG", ""),
    ],
)
def test_filters_of_sacct(
    arguments: str, ids: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _Cancellations(monkeypatch)
    for name in ("connect", "read_clusters", "listed_tasks"):
        monkeypatch.setattr(sacct, name, getattr(scancel, name))
    monkeypatch.setattr(sacct, "user_id", lambda user: "nobody" if user == "carl" else "1")
    own = pwd.getpwuid(os.getuid()).pw_name
    words = arguments.replace("ME", own).split()
    assert sacct.main(["-n", "-P", "-X", "-o", "jobid", *words]) == 0
    assert capsys.readouterr().out.split() == ids.split()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("-u bob,carl", "Invalid user id: carl"),
        ("-S 2026-01-02 -E 2026-01-01", "requested is after end time"),
        ("--units x", "Invalid unit type 'x'"),
    ],
)
def test_wrong_filters_of_sacct(
    arguments: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Cancellations(monkeypatch)
    for name in ("connect", "read_clusters", "listed_tasks"):
        monkeypatch.setattr(sacct, name, getattr(scancel, name))
    monkeypatch.setattr(sacct, "user_id", lambda user: "nobody" if user == "carl" else "1")
    with pytest.raises(CommandError, match=problem):
        sacct.main(arguments.split())
