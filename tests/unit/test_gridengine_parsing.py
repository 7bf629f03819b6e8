"""Parsing of answers recorded from Grid Engine 8.1.9."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from metasched.adapters.gridengine import listing
from metasched.adapters.gridengine.cell_files import qmaster_address
from metasched.adapters.gridengine.cluster_info import CellDemand, cluster_info, listed_queue
from metasched.model.cluster import ManagerLicences
from metasched.model.job import State
from metasched.model.listing import PendingJob, StartedJob
from tests.unit.gridengine_answers import INSTANCES, QPING, QSTAT, TAG, line

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


def test_a_job_without_any_use_was_removed_by_force() -> None:
    """The qmaster wrote this line of real 8.1.9 for a running job after `qdel -f`."""
    forced = (
        "all.q:n1:ada:ada:ms-k3f9-42-1:1:sge:0:1795719207:1795719207:1795719209:0:0:0:0.000000:"
        "0.000000:0.000000:0:0:0:0:0:0:0:0.000000:0:0:0:0:0:0:NONE:defaultdepartment:NONE:1:0:"
        "0.000000:0.000000:0.000000:NONE:0.000000:NONE:0.000000:0:0"
    )
    assert ended(forced) == ended(forced, killed=True) == (State.CANCELLED, None, None)
    faults = forced.split(":")
    faults[21] = "209"  # of a short run, which has no measured seconds
    assert ended(":".join(faults)) == (State.COMPLETED, 0, None)


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
    assert row.restart_stays == (row.restarts > 0 and state is State.PENDING)


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
    queue = listed_queue(demand)  # without the job in error
    assert queue.jobs == (PendingJob("", 3, 3600.0, 18, "bob"),)
    assert queue.running == (StartedJob(1795230191.0 + 600, 2, 600.0, "ada"),)
    assert queue.complete
    own = listed_queue(replace(demand, own_ids={"11"}, default_time=0.0))
    assert [job.native_id for job in own.jobs] == ["11"]
    assert listed_queue(replace(demand, awaiting={"11"})).jobs == ()
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


@pytest.mark.parametrize(
    ("answer", "times"),
    [
        (QPING, (1795255943.0, 1795256358.0)),
        (QPING.replace("\nrun time [s]:", "\nruns for:"), None),
        (QPING.replace("(1795255943)", "(-)"), None),
        (QPING.replace("(1795255943)", f"({'9' * 400})"), None),
        (QPING.replace("(1795255943)", f"({'9' * 18})"), None),
        (QPING.replace(":             415", ":             -1"), None),
        ("", None),
    ],
)
def test_start_and_clock_of_the_qmaster(answer: str, times: tuple[float, float] | None) -> None:
    if times is not None:
        assert listing.parse_qmaster_times(answer) == times
        return
    with pytest.raises(ValueError, match="no "):
        listing.parse_qmaster_times(answer)


def test_where_the_qmaster_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"SGE_ROOT": str(tmp_path), "SGE_CELL": "c"}
    assert qmaster_address(variables | {"SGE_QMASTER_PORT": "6444"}) is None
    (tmp_path / "c/common").mkdir(parents=True)
    (tmp_path / "c/common/act_qmaster").write_text("master.example\n")
    assert qmaster_address(variables | {"SGE_QMASTER_PORT": "7"}) == ("master.example", "7")
    services = {("sge_qmaster", "tcp"): 6444}
    monkeypatch.setattr(socket, "getservbyname", lambda *service: services[service])
    assert qmaster_address(variables) == ("master.example", "6444")
    (tmp_path / "c/common/act_qmaster").write_text("\n")
    assert qmaster_address(variables) is None


def test_marks() -> None:
    assert listing.parse_job_name(listing.job_name(TAG, 0), INSTANCES) == (TAG, 0)
    assert listing.parse_job_name(listing.job_name(TAG, 12), INSTANCES) == (TAG, 12)
    for other in ("arr", f"{TAG}.x", "ms-other-42-1", "ms-k3f9-42"):
        assert listing.parse_job_name(other, INSTANCES) is None


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
