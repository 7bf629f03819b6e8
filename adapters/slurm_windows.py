"""What `scontrol show reservation` says, and Slurm's lists of hosts: pure text in."""

from __future__ import annotations

import re
from collections.abc import Iterator

from metasched.adapters import slurm_text as text
from metasched.reservation_life import Held


def reservations(answer: str) -> list[Held]:
    """The reservations of `scontrol --oneliner show reservation`. ValueError if one is not read."""
    found = []
    for line in answer.splitlines():
        said = dict(re.findall(r"(\w+)=(\S*)", line))
        if "ReservationName" not in said:
            continue
        if not {"StartTime", "EndTime", "Nodes"} <= said.keys():
            raise ValueError(f"no window in {line[:100]!r}")
        start, end = float(said["StartTime"]), float(said["EndTime"])
        found.append(Held(said["ReservationName"], start, end, hosts(said["Nodes"])))
    return found


def hosts(words: str) -> tuple[str, ...]:
    """The names in `n1,rack[1-2,07]x[1-2]`. ValueError if it is no such list."""
    if words in text.NOTHING:
        return ()
    if re.fullmatch(r"([^\[\],]|\[[\d,-]+\])+(,([^\[\],]|\[[\d,-]+\])+)*", words) is None:
        raise ValueError(f"{words[:80]!r} is no list of hosts")
    return tuple(
        name for one in re.findall(r"(?:[^\[\],]|\[[^\]]*\])+", words) for name in _names(one)
    )


def _names(one: str) -> Iterator[str]:
    before, bracket, rest = one.partition("[")
    if not bracket:
        yield one
        return
    inside, _, after = rest.partition("]")
    for part in inside.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            for tail in _names(after):
                yield f"{before}{number:0{len(first)}}{tail}"
