"""Parsing of Slurm's reservations, cores and hosts."""

from __future__ import annotations

import pytest

from metasched.adapters.slurm import listing as text
from metasched.adapters.slurm.reservation_listing import (
    NodeCores,
    ReservedJob,
    SlurmReservation,
    alternate_name,
    build_pool,
    nodes_outside_reservations,
    own_reservations,
    parse_cores,
    parse_reservations,
    parse_reserved_jobs,
    upcoming_windows,
)
from metasched.model.survey import ManagerReservation, ProcessorPool

# as scontrol of 22.05 prints it under SLURM_TIME_FORMAT=%s
SHOWN = (
    "ReservationName=ms-aa-r1 StartTime=1795278692 EndTime=1795278767 Duration=00:01:15 "
    "Nodes=b[2-3] NodeCnt=2 CoreCnt=16 Features=(null) PartitionName=(null) Flags=SPEC_NODES "
    "TRES=cpu=16 Users=ada Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE "
    "BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)\n"
)

# as scontrol of 22.05 prints a reservation of cores, before and after Slurm saves its state
_CORES = (
    "ReservationName=ms-aa-r2 StartTime=100 EndTime=200 Duration=00:01:40 Nodes=a[1-2] NodeCnt=2 "
    "CoreCnt=6 Features=(null) PartitionName=main Flags=STATIC {}TRES=cpu=12 Users=ada "
    "Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a "
    "MaxStartDelay=(null)\n"
)
_IDS = "  NodeName=a1 CoreIDs=0-2,6   NodeName=a2 CoreIDs=0,3 "
FOUR = {name: NodeCores(4, 8) for name in ("a1", "a2", "a3")}  # cores of two processors each


def test_a_reservation() -> None:
    made = SlurmReservation("ms-aa-r1", 1795278692, 1795278767, ("b2", "b3"), 16, {}, "ada")
    assert parse_reservations(SHOWN) == [made]
    assert parse_reservations("No reservations in the system\n") == []
    listed = SHOWN.replace("Users=ada", "Users=(null)")
    listed = listed.replace("Accounts=(null)", "Accounts=aero,marine")
    [of_accounts] = parse_reservations(listed)
    assert (of_accounts.users, of_accounts.accounts) == ("(null)", ("aero", "marine"))


def test_one_that_is_cut_is_not_read_by_half() -> None:
    with pytest.raises(ValueError, match="no times, nodes or cores"):
        parse_reservations(SHOWN[:60])


def test_the_cores_of_a_reservation_are_listed_after_a_while() -> None:
    [early], [reservation] = (parse_reservations(_CORES.format(ids)) for ids in ("", _IDS))
    assert (early.cores, early.cores_by_node, early.cores_on_nodes(FOUR)) == (6, {}, None)
    assert (reservation.cores, reservation.cores_by_node) == (6, {"a1": 4, "a2": 2})
    assert reservation.cores_on_nodes(FOUR) == {"a1": 4, "a2": 2}
    partial, whole = (
        SlurmReservation("x", 0, 9, nodes, n, {}) for nodes, n in ((("a1",), 3), (("a1", "a2"), 8))
    )
    assert partial.cores_on_nodes(FOUR) == {"a1": 3}
    assert whole.cores_on_nodes(FOUR) == {"a1": 4, "a2": 4}


def test_cores_and_jobs_in_reservations() -> None:
    assert parse_cores("a1|0/8/0/8|1|4|\na2|0/4/0/4|2|2|\n", "|") == {
        "a1": NodeCores(4, 8),
        "a2": NodeCores(4, 4),
    }
    sample = "7|RUNNING|x|\n8_[1-2]|PENDING||\n9|PENDING|(null)|\n"
    assert parse_reserved_jobs(sample, "|") == [ReservedJob("7", "RUNNING", "x")]


def job(id: str, cpus: int, nodes: str, start: int = 5, end: int = 50) -> text.QueueLine:
    line = text.QueueLine(*[""] * len(text.QueueLine._fields))
    times = {"start": str(start), "end": str(end)}
    return line._replace(id=id, state="RUNNING", cpus=str(cpus), nodes=nodes, **times)


def test_a_pool_has_the_cores_of_nodes_that_are_up_and_what_takes_them() -> None:
    [reservation] = parse_reservations(_CORES.format(_IDS))
    jobs = [job("1", 3, "a1"), job("2", 2, "a1"), job("3", 8, "a3"), job("4", 9, "a[2-3]")]
    pool = build_pool(["a1", "a2"], FOUR, jobs, [reservation], {"2"}, 10)
    assert pool == ProcessorPool(("a1", "a2"), 8, ((5, 50, 2), (5, 50, 5), (100, 200, 6)), 2)
    [early] = parse_reservations(_CORES.format(""))
    assert build_pool(["a2"], FOUR, [], [early], set(), 10).uses == ((100, 200, 6),)
    assert build_pool(["a2"], FOUR, [], [reservation], set(), 10).uses == ((100, 200, 2),)
    assert build_pool(["a3"], FOUR, [], [reservation], set(), 10).uses == ()


def test_other_jobs_have_what_is_left_of_a_node_that_is_reserved_in_part() -> None:
    def place(name: str, allocated: int) -> text.SinfoRecord:
        line = text.SinfoRecord(*[""] * len(text.SinfoRecord._fields))
        cpus = f"{allocated}/{8 - allocated}/0/8"
        return line._replace(name=name, state="mixed+reserved", cpus=cpus)

    reservations = [
        SlurmReservation("now", 0, 99, ("a1",), 2, {}),
        SlurmReservation("told", 0, 99, ("a1", "a2"), 2, {"a1": 1, "a2": 1}),
        SlurmReservation("later", 50, 99, ("a1",), 4, {}),
        SlurmReservation("whole", 0, 99, ("a3",), 4, {}),
    ]
    jobs = [job("1", 2, "a1"), job("2", 3, "a[1-2]"), job("3", 1, "a1")]
    matches = nodes_outside_reservations(
        [place("a1", 4), place("a2", 2), place("a3", 0)],
        FOUR,
        jobs,
        reservations,
        {"1": "now", "2": "told"},
        10,
    )
    assert [(p.state, p.cpus) for p in matches] == [
        ("mixed", "4/1/3/8"),  # three of the six reserved processors are in use
        ("mixed", "2/5/1/8"),
        ("mixed+reserved", "0/8/0/8"),
    ]


def test_windows_to_come_leave_what_neither_they_nor_jobs_have_when_they_begin() -> None:
    usable = {"a1": 8, "a2": 8, "a3": 8}
    reservations = [
        SlurmReservation("now", 0, 200, ("a3",), 1, {}),
        SlurmReservation("part", 100, 300, ("a1", "a2"), 3, {"a1": 2, "a2": 1}),
        SlurmReservation("whole", 250, 400, ("a1", "gone"), 8, {}),
        SlurmReservation("over", 0, 10, ("a2",), 4, {}),
    ]
    jobs = [job("1", 2, "a1", end=150), job("2", 3, "a2", end=90), job("3", 1, "a1", end=900)]
    # 24, less 2 of `now` on a3, 4 + 2 of `part` on a1 and a2, and 2 + 1 of jobs that still run
    assert upcoming_windows(usable, FOUR, jobs, reservations, 10) == ((100, 13), (250, 14))
    assert upcoming_windows(usable, FOUR, [], reservations, 10)[1] == (
        250,
        14,
    )
    assert upcoming_windows({"a1": 8}, FOUR, [job("1", 8, "a1", end=999)], reservations, 10) == (
        (100, 0),
        (250, 0),
    )
    assert upcoming_windows(usable, FOUR, jobs, reservations[:1], 10) == ()


def test_what_is_being_replaced_is_one_with_the_cores_of_both() -> None:
    names = ["ms-aa-r1", "ms-aa-r1-again", "ms-aa-r2-again", "ms-bb-r1", "ms-aa-r1x"]
    reservations = [SlurmReservation(name, 0, 9, (f"n{i}",), 3, {}) for i, name in enumerate(names)]
    assert own_reservations(reservations, "aa") == (
        ManagerReservation("ms-aa-r1", 0, 9, ("n1",), 6),
        ManagerReservation("ms-aa-r2", 0, 9, ("n2",), 3),
    )
    assert [alternate_name(name) for name in names[:2]] == names[1::-1]


_OF_OTHERS = SHOWN.replace("ms-aa-r1", "maintenance")


@pytest.mark.parametrize(
    ("damaged", "nodes"),
    [
        (_OF_OTHERS.replace("EndTime=1795278767", "EndTime=never"), ("b2", "b3")),
        (_OF_OTHERS.replace("CoreCnt=16", "CoreCnt="), ("b2", "b3")),
        (_OF_OTHERS.replace("StartTime=", "Start"), ("b2", "b3")),
        (_OF_OTHERS.replace("b[2-3]", "b[2-"), None),
    ],
)
def test_a_reservation_of_others_that_cannot_be_read_keeps_its_nodes(
    damaged: str, nodes: tuple[str, ...] | None
) -> None:
    *unreadable, own = parse_reservations(damaged + SHOWN)
    assert own.name == "ms-aa-r1"
    assert [(r.name, r.start, r.nodes) for r in unreadable] == (
        [("maintenance", 0, nodes)] if nodes else []
    )
    assert all(r.end > 1e15 for r in unreadable)


def test_an_unreadable_reservation_takes_all_cores_of_its_nodes() -> None:
    [reservation] = parse_reservations("ReservationName=x Nodes=a[1-2]\n")
    pool = build_pool(["a1", "a2", "a3"], FOUR, [], [reservation], set(), 10)
    assert pool.uses == ((0, reservation.end, 8),)


def test_a_reservation_of_metasched_must_be_readable() -> None:
    for name in ("ms-aa-r1", "ms-aa-r1-again"):
        with pytest.raises(ValueError, match="'never'"):
            parse_reservations(SHOWN.replace("ms-aa-r1", name).replace("1795278767", "never"))


def test_a_line_of_cores_or_jobs_is_set_aside_alone() -> None:
    cores = "garbage\na1|0/8/0/8|1|4|\na2|0/8/0/?|1|4|\na3|0/8/0/8|-|4|\na4|0/4/0/4|2|2|\n"
    assert parse_cores(cores, "|") == {"a1": NodeCores(4, 8), "a4": NodeCores(4, 4)}
    jobs = "7|RUNNING|x|\nslurm_load_jobs error\n8|RUNNING|\n9|PENDING|y|\n"
    assert [job.id for job in parse_reserved_jobs(jobs, "|")] == ["7", "9"]
