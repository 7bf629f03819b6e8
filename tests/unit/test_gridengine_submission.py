"""Submissions to Grid Engine and to systems with DRMAA alone."""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from metasched.adapters.base import Submission
from metasched.adapters.drmaa.generic import NativeTemplates
from metasched.adapters.drmaa.job_script import build_job_script
from metasched.adapters.drmaa_cluster import DrmaaOptions
from metasched.adapters.gridengine import listing, reservation_listing
from metasched.adapters.gridengine.submission import native_specification, parse_answer
from metasched.adapters.interpreter import interpreter_command
from metasched.model.adapter_errors import Refused, Unreachable
from metasched.model.job import Job, Payload
from metasched.model.survey import ReservationSpec
from metasched.processes.commands import CommandResult
from tests.unit.gridengine_answers import TAG

COUNTED = {
    "gpu": listing.ComplexAttribute("gpu", "JOB"),
    "lic": listing.ComplexAttribute("lic", "YES"),
    "h_vmem": listing.ComplexAttribute("h_vmem", "YES"),
    "arch": listing.ComplexAttribute("arch", "NO"),
}


def order(
    source: str = "#!/bin/sh\nexit 0\n", options: tuple[str, ...] = (), **job: object
) -> Submission:
    requests: dict[str, object] = {"id": 42, "submitted": 0.0, "estimated": 60.0, **job}
    return Submission(
        tag=TAG,
        job=Job(**requests),  # type: ignore[arg-type]
        payload=Payload(script=source),
        options=options,
    )


def test_the_native_specification() -> None:
    requested = order(
        cpus=4,
        time_limit=59.2,
        memory=4000,
        gres={"gpu": 1, "lic": 8},
        partition="all.q",
        account="lab",
        constraint="arch=lx-amd64",
    )
    arguments = native_specification(requested, 3, "mp", "h_vmem", COUNTED)
    assert arguments == (
        f"-b n -S /bin/sh -A {TAG}.3 -w e -r n -pe mp 4 "
        "-l h_rt=60,h_vmem=1000M,gpu=1,lic=2,arch=lx-amd64 -q all.q -P lab"
    )


@pytest.mark.parametrize("requeue", [None, True, False])
def test_no_cell_may_rerun_a_job(requeue: bool | None) -> None:
    arguments = native_specification(order(requeue=requeue), 0, "smp", None, {})
    assert arguments == f"-b n -S /bin/sh -A {TAG} -w e -r n"


def test_a_parallel_environment_of_the_user_s_own() -> None:
    arguments = native_specification(
        order(cpus=4, tasks=4, nodes=2, options=("-pe", "mpi", "4")), 0, "smp", None, {}
    )
    assert arguments.endswith("-r n -pe mpi 4")


@pytest.mark.parametrize(
    "options",
    [
        ("-p", "-100", "-l", "a=1", "-V"),
        ("-pe", "mpi", "-4", "-binding", "linear:2", "-j", "y"),
        ("-binding", "set", "linear:2", "-h"),
        ("-of-another-release", "one", "two", "three", "-cwd"),
    ],
)
def test_native_options_that_are_passed_on(options: tuple[str, ...]) -> None:
    assert native_specification(order(options=options), 0, "smp", None, {}).endswith(
        " ".join(options)
    )


@pytest.mark.parametrize(
    "options",
    [
        *[
            ("-N", "x"),
            ("-t", "1-3"),
            ("-r", "y"),
            ("-jsv", "/bin/verify"),
            ("-l", "a b"),
            ("-l", "'"),
            ("-l", "a\x01b"),
        ],
        # qsub would take the extra word as the script
        *[("script.sh",), ("-l", "a=1", "b=2"), ("-cwd", "script.sh"), ("-pe", "mpi", "4", "-")],
    ],
)
def test_native_options_that_are_refused(options: tuple[str, ...]) -> None:
    with pytest.raises(Refused, match="native option"):
        native_specification(order(options=options), 0, "smp", None, {})


@pytest.mark.parametrize(
    ("first", "command"),
    [
        ("#!/bin/sh", ["/bin/sh"]),
        ("#! /usr/bin/env  python3 -u", ["/usr/bin/env", "python3 -u"]),
        ("echo", ["/bin/sh"]),
        ("#!", ["/bin/sh"]),
    ],
)
def test_the_interpreter_is_the_kernel_s(first: str, command: list[str]) -> None:
    assert interpreter_command(f"{first}\nrest\n") == command


@pytest.mark.parametrize(
    ("commands", "status"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("exit 147", 147),  # returned as signal 19, it would stop the wrapper
        ("exit 99", -62),
        ("exit 100", -63),
        ("kill -KILL $$", -9),
        ("kill -KILL $PPID", -9),
        ("kill -USR1 $PPID; exit 4", 4),  # as a warning before the time limit does
    ],
)
def test_the_wrapper_ends_as_the_payload_did(tmp_path: Path, commands: str, status: int) -> None:
    wrapper = build_job_script(
        order(f"#!/bin/sh\n{commands}\n"), 0, "grid", listing.EXIT_CODE_OF_SIGNAL
    )
    ran = subprocess.run(
        ["/bin/sh"],
        input=wrapper,
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert ran.returncode == status
    assert list(tmp_path.iterdir()) == []


def test_the_generic_templates() -> None:
    templates = NativeTemplates(
        always="-r n", time="-W {minutes}", cpus="-n {cpus}", tag="-J {tag}"
    )
    assert templates.fill(order(cpus=2, time_limit=61.0).job, TAG, ("-x",)) == (
        f"-r n -W 2 -n 2 -J {TAG} -x"
    )
    assert NativeTemplates(time="{clock} {seconds}").fill(
        order(time_limit=3661.0).job, TAG, ()
    ) == ("1:01:01 3661")


JOB = order(
    cpus=2, time_limit=5400.0, account="lab", partition="long", licences={"matlab": 2, "nx": 1}
).job
DOCUMENTED = {
    "PBS": f"-l walltime=1:30:00 -l ncpus=2 -N {TAG} -A lab -q long -l matlab=2,nx=1",
    "LSF": f"-W 90 -n 2 -R span[hosts=1] -J {TAG} -P lab -q long -R rusage[matlab=2,nx=1]",
    "Slurm": (
        f"--no-requeue --time=90 --ntasks=1 --cpus-per-task=2 --comment={TAG} --account=lab "
        "--partition=long --licenses=matlab:2,nx:1"
    ),
}


@pytest.mark.parametrize("manager", DOCUMENTED)
def test_the_documented_templates_of_other_managers(manager: str) -> None:
    """Check only the expansion of the templates; the managers are not available to the tests."""
    page = (Path(__file__).parents[2] / "docs/contributing/drmaa.md").read_text()
    [block] = (part for part in page.split("\n\n") if re.match(f" *# .*{manager}", part))
    options = DrmaaOptions(
        library="/l.so",
        profile="generic",
        cpus=8,
        partitions=("long",),
        licences={"matlab": 4, "nx": 4},
        native=tomllib.loads(block)["native"],
    )
    assert NativeTemplates(**options.native).fill(JOB, TAG, ()) == DOCUMENTED[manager]


GENERIC: dict[str, object] = {"library": "/l.so", "profile": "generic", "cpus": 8}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"library": "lib.so"}, "absolute path"),
        ({"library": "/l.so", "timeout": 0.0}, "positive"),
        ({"library": "/l.so", "profile": "generic"}, "needs cpus"),
        ({"library": "/l.so", "native": {"tme": ""}}, "none of always, time"),
        ({"library": "/l.so", "native": {"time": "{hours}"}}, "may hold"),
        ({"library": "/l.so", "native": {"licence": "{name}"}}, "may hold {licence}, {count}"),
        (GENERIC | {"licences": {"nx": 1}}, "native has no key licences"),
        (GENERIC | {"partitions": ("long",)}, "native has no key partition"),
        (GENERIC | {"licences": {"nx": -1}, "native": {"licences": "-l {licences}"}}, "nx is -1"),
    ],
)
def test_options_that_make_no_sense(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DrmaaOptions(**wrong)  # type: ignore[arg-type]


def test_a_job_that_is_queued_in_a_window_may_ask_for_what_is_left_of_it() -> None:
    reservation = reservation_listing.AdvanceReservation("1", "x", "root", "w", 100.0, 200.0, {})
    for now, remaining in (
        (10.0, 100),
        (99.5, 99),
        (100.0, 99),
        (150.5, 48),
        (198.9, 0),
        (300.0, -101),
    ):
        assert reservation.remaining_seconds(now) == remaining


def test_a_job_in_a_reservation_names_it_once() -> None:
    reservation = reservation_listing.AdvanceReservation(
        "7", "x", "root", "w", 100.0, 200.0, {"all.q@n1": 4}
    )
    assert "-ar 7" in native_specification(order(), 0, "smp", None, {}, reservation)
    with pytest.raises(Refused, match="beside --reservation"):
        native_specification(order(options=("-ar", "3")), 0, "smp", None, {}, reservation)


def test_a_job_may_have_the_licences_of_its_reservation_and_no_others() -> None:
    each = {"lic": 2.0, "gpu": 1.0}  # per slot; the reservation has two slots
    reservation = reservation_listing.AdvanceReservation(
        "7", "x", "root", "w", 0.0, 9.0, {"a@n1": 2}, per_slot=each
    )
    wants = order(cpus=2, licences={"lic": 4}, gres={"gpu": 1})
    assert "-l gpu=1,lic=2 -ar 7" in native_specification(
        wants, 0, "smp", None, COUNTED, reservation
    )
    with pytest.raises(Refused, match="5 lic requested, but its reservation has 4"):
        native_specification(
            order(cpus=1, licences={"lic": 5}), 0, "smp", None, COUNTED, reservation
        )
    with pytest.raises(Refused, match="2 gpu requested, but its reservation has 1"):
        native_specification(order(gres={"gpu": 2}), 0, "smp", None, COUNTED, reservation)


def test_a_reservation_asks_for_its_licences_that_the_cell_counts() -> None:
    hosts = [listing.ExecutionHost("n1", None, {}, (listing.QueueInstance("all.q", 4, 0, 0, ""),))]
    window = ReservationSpec("x", "ada", 0.0, 9.0, (), 3, {"lic": 6, "gpu": 1, "nx": 1})
    tokens = {name: COUNTED[name] for name in ("lic", "gpu")}
    rules = reservation_listing.SchedulingRules(
        reservation_listing.MemoryConsumable("h_vmem", 0.0, {"n1": 9.0 * 2**30}), tokens
    )
    assert rules.resource_requests(window, hosts) == ["h_vmem=2304M", "lic=2", "gpu=1"]
    assert reservation_listing.SchedulingRules().resource_requests(window, hosts) == []
    with pytest.raises(ValueError, match="4 lic cannot be shared equally by 3 slots"):
        rules.resource_requests(replace(window, licences={"lic": 4}), hosts)


def test_a_job_may_have_the_memory_of_its_reservation_and_no_more() -> None:
    reservation = reservation_listing.AdvanceReservation(
        "7", "x", "root", "w", 0.0, 9.0, {"a@n1": 2}, per_slot={"h_vmem": 2.0 * 2**30}
    )
    assert "h_vmem=4096M -ar 7" in native_specification(
        order(memory=4096), 0, "smp", "h_vmem", COUNTED, reservation
    )
    with pytest.raises(Refused, match="5000 MiB requested, but its reservation has 4096 MiB"):
        native_specification(order(memory=5000), 0, "smp", "h_vmem", COUNTED, reservation)
    none = replace(reservation, per_slot={})  # hosts that do not count memory allow any amount
    assert "h_vmem=1M" in native_specification(order(memory=1), 0, "smp", "h_vmem", COUNTED, none)


@pytest.mark.parametrize(
    ("exit_code", "stdout", "stderr", "outcome"),
    [
        # measured with 8.1.9
        (0, 'Your job 1 ("STDIN") has been submitted\n', "", "1"),
        (137, 'a wrapper\nYour job 1 ("x") has been submitted\n', "killed", "1"),
        (1, "Your job 1 (x)\nYour job 2 (x)\n", "Unable to run job: job rejected: x", "refusal"),
        (1, "", 'Unable to run job: unknown resource "nope"\nExiting.\n', "refused"),
        (1, "", 'Unable to run job: attribute "h_rt" is not a time value\nExiting.\n', "refused"),
        (1, "", "Unable to run job: job rejected: the requested project\nExiting.\n", "refused"),
        (1, "", 'Unable to run job: "job" denied: use parallel\nExiting.\n', "refused"),
        (1, "", "Unable to run job: error: no suitable queues\nExiting.\n", "refused"),
        (2, "", 'qsub: invalid option argument "-foo"\n', "refused"),
        (7, "", '\nInvalid format\nqsub: Wrong date/time format "zz" specified\n', "refused"),
        (137, "", "Unable to run job: job rejected: x\n", "lost"),
        (1, "", "Unable to run job: JSV stderr: no\nExiting.\n", "refusal"),
        (1, "", "access denied by a wrapper\n", "refusal"),
        (0, "", "", "refusal"),
        (
            1,
            "",
            "error: commlib error: got select error (Connection refused)\nUnable to run job: unable"
            ' to send message to qmaster using port 16444 on host "vm": got send error\nExiting.\n',
            "lost",
        ),
    ],
)
def test_what_the_end_of_qsub_means(exit_code: int, stdout: str, stderr: str, outcome: str) -> None:
    """ "refusal": the words are the refusal if the job is absent; "lost": it is sent again."""
    try:
        found = parse_answer(CommandResult(exit_code, stdout, stderr))
    except Refused:
        found = "refused"
    except Unreachable as error:
        found = "refusal" if error.sentence else "lost"
    assert found == outcome
