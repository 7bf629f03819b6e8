"""Free slots of a Grid Engine cell for reservations: slots that have their share of memory."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from metasched.adapters.gridengine import listing
from metasched.adapters.gridengine.reservation_listing import (
    AdvanceReservation,
    MemoryConsumable,
    Occupancy,
    SchedulingRules,
)

GIB = 2**30
SIZES = {"n1": 4, "n2": 6, "n3": 3}
TOTALS = {"n1": 17.0 * GIB, "n2": 24.0 * GIB, "n3": 40.0 * GIB}
NOW = 10.0

takes = st.tuples(
    st.sampled_from(sorted(SIZES)),
    st.integers(0, 9),  # start: seconds before now (job) or after now (reservation)
    st.integers(1, 9),  # duration in seconds
    st.integers(1, 4),  # slots
    st.sampled_from((None, 0.5, 1.0, 3.0, 4.0, 5.5, 9.0)),  # GiB per slot
)


def cell(specs: list[tuple[str, int, int, int, float | None]], running: int) -> Occupancy:
    """Return a cell with all uses that fit: the first `running` are jobs, others reservations."""
    memory = MemoryConsumable("h_vmem", 0.25 * GIB, TOTALS)
    hosts = [
        listing.ExecutionHost(name, None, {}, (listing.QueueInstance("all.q", size, 0, 0, ""),))
        for name, size in SIZES.items()
    ]
    occupancy = Occupancy((), hosts, NOW, SchedulingRules(memory, duration_offset=2.0))
    for number, (host, begin, lasts, slots, each) in enumerate(specs):
        where = f"all.q@{host}"
        if number < running:
            requests = {"h_rt": f"{begin + lasts}"}
            requests |= {} if each is None else {"h_vmem": f"{each * 1024:g}M"}
            job = listing.QstatJob(
                f"{number}", "x", "a", "r", slots, None, NOW - begin, where, "", requests
            )
            then = replace(occupancy, jobs=(*occupancy.jobs, job))
        else:
            requested_memory = {} if each is None else {"h_vmem": each * GIB}
            start = NOW + begin
            reservation = AdvanceReservation(
                f"{number}",
                "x",
                "a",
                "w",
                start,
                start + lasts,
                {where: slots},
                "",
                requested_memory,
            )
            then = replace(occupancy, reservations=(*occupancy.reservations, reservation))
        if all(remaining >= 0 for moment in range(30) for remaining in both(then, host, moment)):
            occupancy = then
    return occupancy


def share(cell: Occupancy) -> int:
    return cell.rules.memory.share_per_slot(cell.hosts)


def both(cell: Occupancy, host: str, moment: float) -> tuple[int, float]:
    """Return the free slots and the free bytes of a host."""
    slots, free_memory = SIZES[host], TOTALS[host]
    for job in cell.jobs:
        start = NOW if job.started is None else job.started
        end = max(start + float(job.requests["h_rt"]) + 2, NOW + 1)
        if job.host == host and start <= moment < end:
            slots, free_memory = slots - job.slots, free_memory - cell.rules.memory.of_job(job)
    for reservation in cell.reservations:
        count = reservation.slots.get(f"all.q@{host}", 0)
        if reservation.start <= moment < reservation.end:
            slots, free_memory = (
                slots - count,
                free_memory - count * cell.rules.memory.of_slot(reservation),
            )
    return slots, free_memory


@given(st.lists(takes, max_size=12), st.integers(0, 8))
@example([("n1", 0, 1, 1, None), ("n1", 0, 1, 1, 9.0)], 0)  # the default of h_vmem counts
def test_a_slot_is_free_as_long_as_its_share_of_memory_is(
    specs: list[tuple[str, int, int, int, float | None]], running: int
) -> None:
    occupancy = cell(specs, running)
    assert share(occupancy) == 4096  # MiB: the smallest share, 24 GiB / 6 slots
    pools = occupancy.pools(spread=False)
    assert [pool.size for pool in pools] == [*SIZES.values()]
    for pool in pools:
        for moment in range(int(NOW), 30):
            taken = sum(count for start, end, count in pool.uses if start <= moment < end)
            slots, memory = both(occupancy, pool.nodes[0], moment)
            assert pool.size - taken == min(slots, int(memory // (4 * GIB)))
    [whole] = occupancy.pools(spread=True)
    assert sorted(whole.uses) == sorted(use for pool in pools for use in pool.uses)


@given(st.lists(takes, max_size=12), st.integers(0, 8))
def test_what_may_move_keeps_no_memory_from_where_it_could_go(
    specs: list[tuple[str, int, int, int, float | None]], running: int
) -> None:
    occupancy = cell(specs, running)
    rest = replace(occupancy, reservations=())
    for moving in (
        occupancy.pool_map(True, {reservation.id for reservation in occupancy.reservations}),
        rest.pool_map(True, ()),
    ):
        for host in SIZES:
            for moment in range(int(NOW), 30):
                taken = sum(
                    use.slots.get(f"all.q@{host}", 0)
                    for use in moving.fixed
                    if use.start <= moment < use.end
                )
                slots, memory = both(rest, host, moment)
                assert SIZES[host] - taken == min(slots, int(memory // (4 * GIB)))


def test_a_host_that_counts_no_memory_gives_any_amount() -> None:
    occupancy = cell([("n1", 0, 9, 1, 9.0)], running=1)
    none = replace(
        occupancy,
        rules=SchedulingRules(
            MemoryConsumable("h_vmem", 0.0, {"n1": 17.0 * GIB}), duration_offset=0.0
        ),
    )
    assert (share(none), MemoryConsumable().share_per_slot(occupancy.hosts)) == (4352, 0)
    first, *rest = none.pools(spread=False)
    assert first.uses == ((NOW, NOW + 9, 1), (NOW, NOW + 9, 2))
    assert [pool.uses for pool in rest] == [(), ()]
    bare = replace(
        occupancy, rules=SchedulingRules(MemoryConsumable("h_vmem"), duration_offset=0.0)
    )
    assert (share(bare), bare.pools(spread=False)[0].uses) == (0, ((NOW, NOW + 9, 1),))


def test_a_slot_has_no_less_than_a_job_that_asks_for_no_memory() -> None:
    """A host whose memory is short for that has fewer slots at any time."""
    occupancy = replace(
        cell([], 0),
        rules=SchedulingRules(MemoryConsumable("h_vmem", 5.0 * GIB, {"n1": 17.0 * GIB})),
    )
    assert share(occupancy) == 5120
    [(start, end, short)] = occupancy.pools(spread=False)[0].uses
    assert (start, short) == (NOW, 1)
    assert end > NOW + 10 * 365 * 86400
    reservation = AdvanceReservation("1", "x", "a", "w", NOW + 5, NOW + 9, {"all.q@n1": 2})
    uses = replace(occupancy, reservations=(reservation,)).pools(spread=False)[0].uses
    assert (NOW + 5, NOW + 9, 2) in uses  # without -l it holds the default, too
    assert sum(count for start, end, count in uses if start <= NOW + 6 < end) == 3


def test_a_slot_has_no_more_memory_than_a_queue_gives_it() -> None:
    hosts = [
        listing.ExecutionHost("n1", 24_000, {}, (listing.QueueInstance("all.q", 4, 0, 0, ""),))
    ]
    for totals, most, share in (
        ({"n1": 64.0 * GIB}, None, 16384),
        ({"n1": 64.0 * GIB}, 4.0 * GIB, 4096),
        ({"n1": 64.0 * GIB}, float("inf"), 16384),
        ({}, float("inf"), 24_000),  # memory is not counted
        ({}, 4.0 * GIB, 4096),
        ({}, None, 0),
    ):
        assert MemoryConsumable("h_vmem", 0.0, totals, most).share_per_slot(hosts) == share


def test_the_share_of_memory_is_the_same_when_a_queue_is_down() -> None:
    for states in (("", ""), ("d", ""), ("", "au")):
        queues = tuple(
            listing.QueueInstance(f"{n}.q", 4, 0, 0, state) for n, state in enumerate(states)
        )
        hosts = [listing.ExecutionHost("n1", None, {}, queues)]
        assert MemoryConsumable("h_vmem", 0.0, {"n1": 64.0 * GIB}).share_per_slot(hosts) == 8192
