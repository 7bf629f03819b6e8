"""Slurm's words for reservations and hosts."""

from __future__ import annotations

import pytest

from metasched.adapters.slurm_windows import hosts, reservations
from metasched.reservation_life import Held

# as scontrol of 22.05 prints it under SLURM_TIME_FORMAT=%s
SHOWN = (
    "ReservationName=ms-aa-r1 StartTime=1795278692 EndTime=1795278767 Duration=00:01:15 "
    "Nodes=b[2-3] NodeCnt=2 CoreCnt=16 Features=(null) PartitionName=(null) Flags=SPEC_NODES "
    "TRES=cpu=16 Users=ada Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE "
    "BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)\n"
)


def test_a_reservation() -> None:
    made = Held("ms-aa-r1", 1795278692, 1795278767, ("b2", "b3"))
    assert reservations(SHOWN) == [made]
    assert reservations("No reservations in the system\n") == []


def test_one_that_is_cut_is_not_read_by_half() -> None:
    with pytest.raises(ValueError, match="no window"):
        reservations(SHOWN[:60])


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("(null)", ()),
        ("n1", ("n1",)),
        ("n1,m2", ("n1", "m2")),
        ("n[1-3,7]", ("n1", "n2", "n3", "n7")),
        ("n[08-10]", ("n08", "n09", "n10")),
        ("r[1-2]n[1-2]x,a", ("r1n1x", "r1n2x", "r2n1x", "r2n2x", "a")),
    ],
)
def test_hosts(words: str, names: tuple[str, ...]) -> None:
    assert hosts(words) == names


@pytest.mark.parametrize("words", ["n[1-", "n1,,n2", "n[x]", "n]"])
def test_what_is_no_list_of_hosts(words: str) -> None:
    with pytest.raises(ValueError, match="no list of hosts"):
        hosts(words)
