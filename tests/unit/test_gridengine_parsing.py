"""Parsing of answers recorded from Grid Engine 8.1.9, and the submissions sent to it."""

from __future__ import annotations

import math
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
from metasched.adapters.errors import Refused
from metasched.adapters.gridengine import listing, reservation_listing
from metasched.adapters.gridengine.accounting import AccountingFile
from metasched.adapters.gridengine.cluster_info import CellDemand, cluster_info
from metasched.adapters.gridengine.set_aside import SetAsideJobs
from metasched.adapters.gridengine.submission import native_specification
from metasched.adapters.interpreter import interpreter_command
from metasched.carts.relocation import SlotUse
from metasched.model.cluster import ManagerLicences
from metasched.model.job import Job, Payload, State
from metasched.model.survey import ManagerReservation, ProcessorPool, ReservationSpec

INSTANCE = "k3f9"
INSTANCES = frozenset({INSTANCE})
TAG = "ms-k3f9-42-1"
QSTAT = """<?xml version='1.0'?>
<job_info  xmlns:xsd="http://example.org/qstat.xsd">
  <queue_info>
    <job_list state="running">
      <JB_job_number>7</JB_job_number>
      <JAT_prio>0.60500</JAT_prio>
      <JB_name>ms-k3f9-4</JB_name>
      <JB_owner>ada</JB_owner>
      <state>r</state>
      <JAT_start_time>2026-11-21T03:03:11</JAT_start_time>
      <queue_name>all.q@n1</queue_name>
      <slots>2</slots>
      <full_job_name>ms-k3f9-42-1</full_job_name>
      <requested_pe name="smp">2</requested_pe>
      <granted_pe name="smp">2</granted_pe>
      <hard_request name="h_rt" resource_contribution="0.000000">600</hard_request>
      <hard_request name="gpu" resource_contribution="0.000000">1</hard_request>
      <binding>NONE</binding>
    </job_list>
  </queue_info>
  <job_info>
    <job_list state="pending">
      <JB_job_number>11</JB_job_number>
      <JAT_prio>0.55500</JAT_prio>
      <JB_name>arr</JB_name>
      <JB_owner>bob</JB_owner>
      <state>qw</state>
      <JB_submission_time>2026-11-21T03:05:35</JB_submission_time>
      <queue_name></queue_name>
      <slots>3</slots>
      <tasks>3-20:1</tasks>
      <full_job_name>arr</full_job_name>
      <hard_request name="h_rt" resource_contribution="0.000000">1:00:00</hard_request>
    </job_list>
    <job_list state="pending">
      <JB_job_number>9</JB_job_number>
      <JB_name>badout</JB_name>
      <JB_owner>bob</JB_owner>
      <state>Eqw</state>
      <JB_submission_time>2026-11-21T03:03:11</JB_submission_time>
      <queue_name></queue_name>
      <slots>1</slots>
      <full_job_name>badout</full_job_name>
    </job_list>
  </job_info>
</job_info>
"""
QHOST = """<?xml version='1.0'?>
<qhost xmlns:xsd="http://example.org/qhost.xsd">
 <host name='global'>
   <hostvalue name='mem_total'>-</hostvalue>
   <resourcevalue name='matlab' dominance='gc'>3.000000</resourcevalue>
 </host>
 <host name='n1'>
   <hostvalue name='mem_total'>23.5G</hostvalue>
   <resourcevalue name='matlab' dominance='gc'>3.000000</resourcevalue>
   <resourcevalue name='mem_free' dominance='hl'>22.889G</resourcevalue>
   <resourcevalue name='slots' dominance='hc'>6.000000</resourcevalue>
   <resourcevalue name='gpu' dominance='hc'>1.000000</resourcevalue>
   <resourcevalue name='h_vmem' dominance='hc'>16.000G</resourcevalue>
 <queue name='all.q'>
   <queuevalue qname='all.q' name='qtype_string'>BIP</queuevalue>
   <queuevalue qname='all.q' name='slots_used'>2</queuevalue>
   <queuevalue qname='all.q' name='slots'>8</queuevalue>
   <queuevalue qname='all.q' name='slots_resv'>0</queuevalue>
   <queuevalue qname='all.q' name='state_string'></queuevalue>
 </queue>
 </host>
 <host name='n2'>
   <hostvalue name='mem_total'>-</hostvalue>
 <queue name='all.q'>
   <queuevalue qname='all.q' name='qtype_string'>BIP</queuevalue>
   <queuevalue qname='all.q' name='slots_used'>0</queuevalue>
   <queuevalue qname='all.q' name='slots'>8</queuevalue>
   <queuevalue qname='all.q' name='slots_resv'>0</queuevalue>
   <queuevalue qname='all.q' name='state_string'>au</queuevalue>
 </queue>
 </host>
</qhost>
"""
COUNTED = {
    "gpu": listing.ComplexAttribute("gpu", "JOB"),
    "lic": listing.ComplexAttribute("lic", "YES"),
    "h_vmem": listing.ComplexAttribute("h_vmem", "YES"),
    "arch": listing.ComplexAttribute("arch", "NO"),
}


def line(
    failed: str, status: int, *, name: str = TAG, start: int = 1795230191, category: str = "NONE"
) -> str:
    """Build an accounting line as 8.1.9 writes it."""
    end = start + 3 if start else 0
    return (
        f"all.q:n1:ada:ada:{name}:5:{TAG}:0:1795230191:{start}:{end}:{failed}:{status}:3:0.007073:"
        "0.000000:4108.000000:0:0:0:0:204:0:0:0.000000:16:0:0:0:3:3:NONE:defaultdepartment:NONE:1:"
        f"0:0.250000:0.000000:0.000000:{category}:0.000000:NONE:2097152.000000:0:0\n"
    )


def ended(text_line: str, killed: bool = False) -> tuple[State, int | None, int | None] | None:
    row = listing.ended_status(listing.parse_accounting_line(text_line), TAG, 0, killed)
    return None if row is None else (row.state, row.exit_code, row.signal)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (line("0", 0), (State.COMPLETED, 0, None)),
        (line("0", 3), (State.FAILED, 3, None)),
        (line("0", 137), (State.FAILED, 137, None)),
        (line("100", 137), (State.FAILED, None, 9)),
        (line("100", 190), (State.FAILED, 99, None)),
        (line("100", 191), (State.FAILED, 100, None)),
        (line("37", 137, category="-l h_rt=2"), (State.TIMEOUT, None, 9)),
        (line("37", 137, category="-l h_rt=60,h_vmem=1M"), (State.OUT_OF_MEMORY, None, 9)),
        (line("37", 137, category="-l h_rt=3,h_vmem=1M"), (State.TIMEOUT, None, 9)),
        (line("19", 0), (State.NODE_FAIL, None, None)),
        (line("25", 99), None),  # queued again
        (line("28", 0, start=0), None),  # never started, and still listed in error
    ],
)
def test_how_a_job_ended(
    result: str, expected: tuple[State, int | None, int | None] | None
) -> None:
    assert ended(result) == expected


def test_an_end_by_a_signal_that_we_asked_for_is_a_cancellation() -> None:
    assert ended(line("100", 137), killed=True) == (State.CANCELLED, None, 9)
    assert ended(line("0", 0), killed=True) == (State.COMPLETED, 0, None)


def test_a_record_holds_times_and_usage() -> None:
    row = listing.ended_status(listing.parse_accounting_line(line("0", 0)), TAG, 0, False)
    assert row is not None
    assert (row.started, row.ended, row.native_id) == (1795230191, 1795230194, "5")
    assert (row.node, row.cpu_seconds, row.max_memory) == ("n1", 0.25, 2)


def test_half_a_line_is_an_error() -> None:
    with pytest.raises(ValueError, match="fields"):
        listing.parse_accounting_line(line("0", 0)[:60])


@pytest.mark.parametrize(
    ("letters", "state", "begun"),
    [
        ("qw", State.PENDING, False),
        ("hqw", State.PENDING, False),
        ("Eqw", State.PENDING, False),
        ("t", State.PENDING, False),
        ("r", State.RUNNING, True),
        ("dr", State.RUNNING, True),
        ("hr", State.RUNNING, True),
        ("s", State.SUSPENDED, True),
        ("S", State.SUSPENDED, True),
        ("T", State.SUSPENDED, True),
        ("Rr", State.RUNNING, True),
        ("Rq", State.PENDING, True),  # it has started before
        ("hRwq", State.PENDING, True),
    ],
)
def test_states_of_live_jobs(letters: str, state: State, begun: bool) -> None:
    job = listing.QstatJob("7", TAG, "ada", letters, 1, submitted=10.0, started=20.0)
    row = listing.live_status(job, TAG, 0)
    assert row.state is state
    assert (row.started is not None) == begun
    assert row.restarts == ("R" in letters)


def test_jobs_of_qstat() -> None:
    first, second, third = listing.parse_jobs(QSTAT).jobs
    assert (first.id, first.name, first.owner, first.slots) == ("7", TAG, "ada", 2)
    assert (first.started, first.host) == (1795230191.0, "n1")
    assert (second.task_count, second.submitted) == (18, 1795230335.0)
    assert [job.is_waiting for job in (first, second, third)] == [False, True, True]


@pytest.mark.parametrize("broken", ["", QSTAT[:900], "error: commlib error", "<qhost/>"])
def test_half_an_answer_is_an_error(broken: str) -> None:
    with pytest.raises(ValueError, match=r"XML|qhost"):
        listing.parse_jobs(broken)


def test_a_job_that_cannot_be_read_is_set_aside_alone() -> None:
    own = listing.OwnJobs(INSTANCES, "ada")
    broken = QSTAT.replace("<slots>2</slots>", "<slots>two</slots>", 1)
    assert broken != QSTAT
    listed = listing.parse_jobs(broken)
    assert listed.jobs == listing.parse_jobs(QSTAT).jobs[1:]
    assert own.set_aside(listed.unreadable).keys() == {(TAG, 0, "")}
    own_jobs = listing.OwnJobs(INSTANCES, "bob")
    assert own_jobs.set_aside(listed.unreadable) == {}
    nameless = re.sub(r"<full_job_name>ms[^<]*<", r"<full_job_name><", QSTAT)
    assert own.set_aside(listing.parse_jobs(nameless).unreadable).keys() == {("", -1, "")}
    assert own_jobs.set_aside(listing.parse_jobs(nameless).unreadable) == {}


def test_characters_that_xml_excludes_harm_no_other_job() -> None:
    for text in ("\x01", "&#1;", "&#x1F;", "\ufffe"):
        (first, *rest) = listing.parse_jobs(QSTAT.replace(TAG, f"{TAG}{text}", 1)).jobs
        assert first.name == f"{TAG}\N{REPLACEMENT CHARACTER}"
        assert rest == listing.parse_jobs(QSTAT).jobs[1:]


def test_facts() -> None:
    limits = {"all.q": listing.QueueLimits(hard_time=86400.0)}
    totals = {"n1": {"gpu": 2.0, "h_vmem": 32.0 * 2**30}}
    demand = CellDemand(listing.parse_jobs(QSTAT).jobs, 1795230200.0, 50.0, own_ids={"7"})
    facts = cluster_info(demand, listing.parse_hosts(QHOST), limits, totals, "h_vmem")
    assert (facts.cpus, facts.used_cpus, facts.pending_jobs) == (8, 2, 18)  # n2 is not usable
    assert facts.owed_by_others == 18 * 3 * 3600
    assert facts.queue_head == (3, 3600.0)
    assert facts.running_jobs == ((1795230191.0 + 600, 2),)
    partition = facts.partition(None)
    assert partition is not None
    assert (partition.name, partition.max_time, partition.free_cpus) == ("all.q", 86400.0, 6)
    n1, n2 = partition.nodes
    assert (n1.cpus, n1.free_cpus, n1.up) == (8, 6, True)
    assert (n1.gres, n1.free_gres) == ({"gpu": 2}, {"gpu": 1})
    assert (n1.memory, n1.free_memory) == (32768, 16384)
    assert (n2.cpus, n2.free_cpus, n2.up) == (8, 0, False)


def test_jobs_without_a_queue_may_go_to_any() -> None:
    limits = {"short.q": listing.QueueLimits(60.0), "all.q": listing.QueueLimits(None)}
    hosts = [
        listing.ExecutionHost(
            "n1",
            None,
            {},
            (
                listing.QueueInstance("all.q", 4, 1, 0, ""),
                listing.QueueInstance("short.q", 2, 0, 0, ""),
            ),
        )
    ]
    facts = cluster_info(CellDemand([], 0.0, 1.0), hosts, limits, {}, None)
    every = facts.partition(None)
    assert every is not None
    assert (every.name, every.free_cpus, every.max_time) == (listing.ANY_QUEUE, 5, None)
    short = facts.partition("short.q")
    assert short is not None
    assert (short.free_cpus, short.max_time) == (2, 60.0)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("600", 600), ("1:00:00", 3600), ("INFINITY", None), ("00:10:00,[n1=1:0:0]", 600), ("", None)],
)
def test_durations(written: str, seconds: float | None) -> None:
    assert listing.parse_seconds(written) == seconds


@pytest.mark.parametrize(
    ("written", "delay"),
    [
        ("accounting=true flush_time=00:00:15 \\\n   joblog=false", 15),
        ("accounting=true flush_time=00:00:15 accounting_flush_time=00:01:00", 60),
        ("accounting=true accounting_flush_time=00:00:00 flush_time=00:00:15", 0),
    ],
)
def test_how_long_the_accounting_lags(written: str, delay: float) -> None:
    assert (
        listing.parse_accounting_delay(f"mailer /bin/true\nreporting_params    {written}\n")
        == delay
    )


def test_marks() -> None:
    assert listing.parse_job_name(listing.job_name(TAG, 0), INSTANCES) == (TAG, 0)
    assert listing.parse_job_name(listing.job_name(TAG, 12), INSTANCES) == (TAG, 12)
    for other in ("arr", f"{TAG}.x", "ms-other-42-1", "ms-k3f9-42"):
        assert listing.parse_job_name(other, INSTANCES) is None


# The accounting file.


def test_the_accounting_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "accounting"
    path.write_text("# Version: 8.1.9\n" + line("0", 1).replace(TAG, "other") + line("0", 0))
    followed = AccountingFile(path, INSTANCES)
    assert [record.exit_status for record in followed.read_new()] == [0]
    assert followed.since == 1795230195.0
    with path.open("a") as file:
        file.write(line("0", 3)[:50])
        file.flush()
        assert followed.read_new() == []
        file.write(line("0", 3)[50:])
    assert [record.exit_status for record in followed.read_new()] == [3]
    path.rename(tmp_path / "accounting.1")
    with (tmp_path / "accounting.1").open("a") as old:
        old.write(line("0", 4))
    path.write_text(line("0", 5))
    assert [record.exit_status for record in followed.read_new()] == [4, 5]
    assert followed.since == 1795230195.0
    followed.close()


def test_a_bad_line_of_the_accounting_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "accounting"
    bad = line("0", 7).replace(":1795230194:", ":yesterday:", 1)
    path.write_text(bad + line("0", 1) + bad[:40] + "\n" + line("0", 2) + "nonsense\n" + bad)
    followed = AccountingFile(path, INSTANCES)
    assert [record.exit_status for record in followed.read_new()] == [1, 2]
    assert {job.name for job in followed.unreadable} == {TAG}
    assert followed.since == 1795230195.0
    with path.open("a") as file:
        file.write(line("0", 3))
    assert [record.exit_status for record in followed.read_new()] == [3]
    assert followed.unreadable == []
    followed.close()


def test_an_accounting_that_is_not_there_yet_is_followed_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "accounting"
    followed = AccountingFile(path, INSTANCES)
    assert followed.read_new() == []
    since = followed.since
    assert since is not None
    path.write_text(line("0", 3, start=int(since) + 100))
    assert [record.exit_status for record in followed.read_new()] == [3]
    assert followed.since == since
    followed.close()


def test_an_accounting_out_of_reach_proves_nothing(tmp_path: Path) -> None:
    followed = AccountingFile(tmp_path / "unmounted" / "accounting", INSTANCES)
    assert followed.read_new() == []
    assert followed.since is None


# Submissions.


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


def test_consumables_of_the_whole_cell() -> None:
    complexes = {
        name: listing.ComplexAttribute(name, consumable)
        for name, consumable in (("lic", "JOB"), ("arch", "NO"))
    }
    complexes |= {
        "memory": listing.ComplexAttribute("memory", "YES"),
        "lic2": listing.ComplexAttribute("lic2", "JOB"),
    }
    host = "complex_values  lic=4,arch=7, \\\n    other=3,lic2=INFINITY,memory=1.5T\n"
    assert listing.parse_host_totals(host, complexes) == {"lic": 4, "memory": 1.5 * 2**40}
    totals = {"lic": 4.0}
    assert listing.parse_host_totals("complex_values NONE\n", complexes) == {}
    xml = (
        "<qhost><host name='h'><resourcevalue name='lic' dominance='gc'>9</resourcevalue></host>"
        "<host name='global'><resourcevalue name='lic' dominance='gc'>1.000000</resourcevalue>"
        "</host></qhost>"
    )
    assert listing.parse_global_licences(xml, totals) == {"lic": ManagerLicences(4, 3)}
    assert listing.parse_global_licences("<qhost></qhost>", totals) == {}


def ar_xml(
    id: int, name: str, state: str, *slots: tuple[str, int], owner: str = "root", extra: str = ""
) -> str:
    granted = "".join(
        f'<granted_slots queue_instance="all.q@{host}" slots="{count}"/>' for host, count in slots
    )
    return (
        f"<ar_summary><id>{id}</id><name>{name}</name><owner>{owner}</owner>"
        f"<state>{state}</state><start_time>1970-01-01T01:00:00</start_time>"
        f"<end_time>1970-01-01T02:00:00</end_time>{extra}<granted_slots_list>{granted}"
        '</granted_slots_list><acl_list><acl user="ada"/></acl_list></ar_summary>'
    )


def test_reservations_are_read_and_those_that_end_are_left_out() -> None:
    rows = (
        ar_xml(1, "ms-k3f9-r1", "w", ("n1", 2), ("n2", 1)),
        ar_xml(2, "ms-k3f9-r2", "d", ("n1", 2)),
        ar_xml(3, "ms-k3f9-r3", "W", ("n2", 2)),
        ar_xml(4, "ms-k3f9-r4", "w", ("n2", 2), owner="eve"),
    )
    xml = f"<qrstat>{''.join(rows)}<ar_unknown><id>9</id></ar_unknown></qrstat>"
    reservations = reservation_listing.parse_reservations(xml)
    assert [(reservation.id, reservation.usable) for reservation in reservations] == [
        ("1", True),
        ("3", False),
        ("4", True),
    ]
    assert {reservation.user for reservation in reservations} == {"ada"}
    assert reservation_listing.parse_reservation_ids(xml) == ["1", "2", "3", "4"]
    assert reservation_listing.own_reservations(reservations, "root", INSTANCE) == (
        ManagerReservation("ms-k3f9-r1", 3600.0, 7200.0, ("n1", "n2"), 3),
        ManagerReservation(
            "ms-k3f9-r3", 3600.0, 7200.0, ("all.q@n2",), 2
        ),  # in no pool, since it is unusable
    )
    hosts = [
        listing.ExecutionHost(
            "n1", None, {"slots": 3.0}, (listing.QueueInstance("all.q", 4, 1, 2, ""),)
        ),
        listing.ExecutionHost("n2", None, {}, (listing.QueueInstance("all.q", 8, 0, 5, ""),)),
        listing.ExecutionHost("n3", None, {}, (listing.QueueInstance("all.q", 8, 0, 0, "au"),)),
    ]
    jobs = [
        listing.QstatJob(
            "7", "x", "ada", "r", 1, None, 100.0, "all.q@n1", requests={"h_rt": "600"}
        ),
        listing.QstatJob("8", "x", "ada", "r", 2, None, 100.0, "all.q@n2"),
        listing.QstatJob("9", "x", "ada", "qw", 2),
    ]
    reserved = reservation_listing.parse_reserved_jobs(
        "<detailed_job_info><djob_info>"
        "<element><JB_job_number>7</JB_job_number></element>"
        "<element><JB_job_number>8</JB_job_number><JB_ar>4</JB_ar></element>"
        "</djob_info></detailed_job_info>"
    )
    assert reserved == {"8": "4"}
    assert (
        reservation_listing.parse_reserved_jobs(
            "<unknown_jobs ><ST_name>7</ST_name></unknown_jobs>"
        )
        == {}
    )
    rules = reservation_listing.SchedulingRules(
        limits={"all.q": listing.QueueLimits(None, 50.0)}, duration_offset=10.0
    )
    cell = reservation_listing.Occupancy(jobs, hosts, 100.0, rules, reservations, reserved)
    each = cell.pools(spread=False)
    of_n1 = ((100.0, 710.0, 1), (3600.0, 7200.0, 2))
    of_n2 = ((3600.0, 7200.0, 1), (3600.0, 7200.0, 2), (3600.0, 7200.0, 2))
    assert each == (ProcessorPool(("n1",), 4, of_n1), ProcessorPool(("n2",), 8, of_n2))
    [all] = cell.pools(spread=True)
    assert all == ProcessorPool(("n1", "n2"), 12, tuple(sorted(of_n1 + of_n2)))
    assert not reservation_listing.spans_hosts("pe_name smp\nallocation_rule    $pe_slots\n")
    assert reservation_listing.spans_hosts("pe_name mpi\nallocation_rule    $fill_up\n")


def test_what_each_slot_of_a_reservation_has_is_read_and_what_of_it_is_unused_is_kept_free() -> (
    None
):
    requested = "".join(
        f'<resource name="{name}" type="{value}"/>'
        for name, value in (("h_vmem", "2G"), ("h_rt", "0:10:00"))
    )
    held = f"<resource_list>{requested}</resource_list>"
    rows = ar_xml(1, "ms-k3f9-r1", "r", ("n1", 3), ("n2", 1), extra=held)
    reservations = reservation_listing.parse_reservations(f"<qrstat>{rows}</qrstat>")
    assert reservations[0].per_slot == {"h_vmem": 2.0 * 2**30}
    hosts = [
        listing.ExecutionHost(
            name,
            None,
            {"h_vmem": remaining * 2.0**30},
            (listing.QueueInstance("all.q", 8, 0, 3, ""),),
        )
        for name, remaining in (("n1", 9.0), ("n2", 1.0))
    ]
    inside = listing.QstatJob(
        "7", "x", "ada", "r", 1, None, 3600.0, "all.q@n1", "", {"h_vmem": "1G"}
    )
    rules = reservation_listing.SchedulingRules(reservation_listing.MemoryConsumable("h_vmem"))
    for taken, kept_back in ((3599.0, (0.0, 0.0)), (3600.0, (5.0, 1.0))):
        cell = reservation_listing.Occupancy(
            [inside], hosts, taken, rules, reservations, {"7": "1"}
        )
        remaining = [host.free["h_vmem"] / 2**30 for host in cell.hosts_without_reserved()]
        assert remaining == [9.0 - kept_back[0], 1.0 - kept_back[1]]


def test_a_job_has_its_slots_as_long_as_the_qmaster_takes_it_to_run() -> None:
    for params, offset in (
        ("none", 60.0),
        ("PROFILE=0,DURATION_OFFSET=7 MONITOR=0", 7.0),
        ("monitor=1;duration_offset=0:1:0", 60.0),
        ("a=1;Duration_Offset=5", 5.0),
    ):
        assert listing.parse_duration_offset(f"algorithm default\nparams  {params}\n") == offset
    limits = listing.parse_queue_limits(
        "qname a.q\nh_rt 1:0:0\ns_rt 0:50:0\nqname b.q\nh_rt INFINITY\n"
    )
    assert (limits["b.q"].hard_time, limits["b.q"].memory) == (None, {})
    configuration = "qname c.q\nh_rt 9\nh_vmem INFINITY,[n1=4G], \\\n  [@few=2G]\ns_data INFINITY\n"
    memory = {"h_vmem": 2.0 * 2**30, "s_data": math.inf}
    assert listing.parse_queue_limits(configuration)["c.q"].memory == memory
    rules = reservation_listing.SchedulingRules(limits=limits, duration_offset=60.0)
    for queue, requests, lasts in (
        ("a.q", {"h_rt": "300"}, 360.0),
        ("a.q", {"h_rt": "300", "s_rt": "0:1:40"}, 160.0),
        ("a.q", {"s_rt": "300", "h_cpu": "5"}, 360.0),
        ("a.q", {"h_rt": "INFINITY"}, 3060.0),
        ("a.q", {"h_cpu": "5"}, 3060.0),
        ("b.q", {"h_rt": "300"}, 360.0),
        ("b.q", {}, 100 * 365 * 86400.0),
    ):
        job = listing.QstatJob("7", "x", "ada", "r", 1, None, 0.0, f"{queue}@n1", "", requests)
        assert rules.job_duration(job) == lasts


def test_a_reservation_under_replacement_is_listed_with_the_slots_of_both() -> None:
    rows = (
        ar_xml(1, "ms-k3f9-r1", "w", ("n1", 2)),
        ar_xml(5, "ms-k3f9-r1", "w", ("n2", 2)),
    )
    reservations = reservation_listing.parse_reservations(f"<qrstat>{''.join(rows)}</qrstat>")
    assert reservation_listing.own_reservations(reservations, "root", INSTANCE) == (
        ManagerReservation("ms-k3f9-r1", 3600.0, 7200.0, ("n2",), 4),
    )


def test_queues_are_places_of_their_own_unless_their_host_has_fewer_slots() -> None:
    both = (
        listing.QueueInstance("all.q", 4, 0, 0, ""),
        listing.QueueInstance("second.q", 4, 0, 0, ""),
    )
    hosts = [
        listing.ExecutionHost("n1", None, {"slots": 8.0}, both),
        listing.ExecutionHost("n2", None, {"slots": 6.0}, both),
        listing.ExecutionHost("n3", None, {}, (listing.QueueInstance("all.q", 4, 0, 0, "d"),)),
    ]
    queues = [
        reservation_listing.AdvanceReservation(
            "1", "x", "root", "w", 100.0, 200.0, {"all.q@n2": 2, "second.q@n2": 1}
        ),
        reservation_listing.AdvanceReservation(
            "2", "x", "root", "w", 100.0, 200.0, {"all.q@n1": 3}
        ),
    ]
    jobs = [listing.QstatJob("7", "x", "ada", "r", 2, None, 50.0, "all.q@n1")]
    rules = reservation_listing.SchedulingRules(
        limits={"all.q": listing.QueueLimits(50.0)}, duration_offset=10.0
    )
    for spread, groups in ((True, {""}), (False, {"n1", "n2"})):
        cell = reservation_listing.Occupancy(jobs, hosts, 100.0, rules, queues).pool_map(
            spread, {"1"}
        )
        assert cell.slots == {"all.q@n1": 4, "second.q@n1": 4, "n2": 6}
        assert cell.movable == {1: SlotUse(100.0, 200.0, {"n2": 3})}
        assert cell.fixed == [
            SlotUse(50.0, 110.0, {"all.q@n1": 2}),
            SlotUse(100.0, 200.0, {"all.q@n1": 3}),
        ]
        assert {cell.group(queue_instance) for queue_instance in cell.slots} == groups


def test_only_windows_that_have_begun_keep_slots_from_others_and_the_rest_are_coming() -> None:
    hosts = [listing.ExecutionHost("n1", None, {}, (listing.QueueInstance("all.q", 8, 5, 7, ""),))]
    reservations = [
        reservation_listing.AdvanceReservation("1", "x", "ada", "r", 0.0, 1000.0, {"all.q@n1": 3}),
        reservation_listing.AdvanceReservation("2", "x", "ada", "w", 500.0, 900.0, {"all.q@n1": 4}),
        reservation_listing.AdvanceReservation(
            "3", "x", "ada", "w", 2000.0, 3000.0, {"all.q@n1": 7}
        ),
    ]
    jobs = [
        listing.QstatJob("7", "x", "ada", "r", 2, None, 50.0, "all.q@n1"),
        listing.QstatJob("8", "x", "ada", "r", 3, None, 50.0, "all.q@n1", requests={"h_rt": "600"}),
        listing.QstatJob("9", "x", "ada", "qw", 8),
    ]
    rules = reservation_listing.SchedulingRules(
        limits={"all.q": listing.QueueLimits(60.0)}, duration_offset=5.0
    )
    cell = reservation_listing.Occupancy(jobs, hosts, 100.0, rules, reservations, {"7": "1"})
    [now] = cell.hosts_without_reserved()
    assert [(queue.running, queue.reserved) for queue in now.queues] == [(5, 1)]
    # at 500, reservations 1 and 2 have 3 + 4 of 8 slots, and job 8 still runs
    assert cell.upcoming_windows() == ((495.0, 0), (1995.0, 1))
    facts = cluster_info(
        CellDemand([], 100.0, 60.0), [now], {"all.q": listing.QueueLimits(None)}, {}, None
    )
    assert (facts.cpus, facts.used_cpus) == (8, 6)


def test_who_waits_in_a_reservation_is_not_the_head_of_the_line() -> None:
    listed = [
        listing.QstatJob("7", "x", "ada", "qw", 8, requests={"h_rt": "3600"}),
        listing.QstatJob("8", "x", "bob", "qw", 2, requests={"h_rt": "60"}),
    ]
    every = cluster_info(CellDemand(listed, 100.0, 60.0), [], {}, {}, None)
    assert (every.queue_head, every.pending_jobs, every.owed_by_others) == (
        (8, 3600.0),
        2,
        28_920.0,
    )
    without = cluster_info(CellDemand(listed, 100.0, 60.0, awaiting={"7"}), [], {}, {}, None)
    assert (without.queue_head, without.pending_jobs, without.owed_by_others) == (
        (2, 60.0),
        1,
        120.0,
    )


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


KEEP, LAG = 100.0, 10.0  # seconds


def set_aside_jobs() -> SetAsideJobs:
    return SetAsideJobs(listing.OwnJobs(INSTANCES, "ada"), KEEP)


def unreadable(name: str = f"{TAG}.7", owner: str = "ada") -> list[listing.UnreadableJob]:
    return [listing.UnreadableJob(name, owner, "no slots")]


def test_an_unreadable_job_of_qstat_stays_until_the_accounting_would_have_its_end() -> None:
    jobs, key = set_aside_jobs(), (TAG, 7, "")
    for listed_at in (0.0, 5.0):
        jobs.update(unreadable(), [], {}, listed_at, LAG)
        assert list(jobs) == [key]
    assert [(row.tag, row.task) for row in jobs.rows] == [(TAG, 7)]
    jobs.update([], [], {}, 15.0, LAG)  # it was listed at 5
    assert list(jobs) == [key]
    jobs.update([], [], {}, 15.1, LAG)
    assert list(jobs) == []


def test_an_unreadable_line_of_the_accounting_stays_for_long() -> None:
    jobs = set_aside_jobs()
    jobs.update(unreadable(), unreadable(), {}, 0.0, LAG)
    jobs.update(unreadable(), [], {}, 50.0, LAG)  # qstat does not shorten it
    jobs.update([], [], {}, KEEP, LAG)
    assert list(jobs) == [(TAG, 7, "")]
    jobs.update([], [], {}, KEEP + 0.1, LAG)
    assert list(jobs) == []


def test_a_readable_job_replaces_its_unreadable_row() -> None:
    jobs = set_aside_jobs()
    jobs.update(unreadable() + unreadable(""), [], {}, 0.0, LAG)
    assert set(jobs) == {(TAG, 7, ""), ("", -1, "")}
    jobs.update([], [], {(TAG, 7, ""): object()}, 1.0, LAG)
    assert set(jobs) == {("", -1, "")}
    jobs.discard(("", -1, ""))
    assert jobs.rows == ()


def test_an_unreadable_job_of_another_account_is_no_task() -> None:
    jobs = set_aside_jobs()
    jobs.update(unreadable(owner="bob"), unreadable("", "bob"), {}, 0.0, LAG)
    assert jobs.rows == ()
