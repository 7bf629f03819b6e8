"""Advance reservations of Grid Engine, and the slots that they keep free."""

from __future__ import annotations

import math

from metasched.adapters.gridengine import listing, reservation_listing
from metasched.adapters.gridengine.cluster_info import CellDemand, cluster_info
from metasched.carts.relocation import SlotUse
from metasched.model.survey import ManagerReservation, ProcessorPool
from tests.unit.gridengine_answers import INSTANCE


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
