"""What Slurm says of reservations, of the cores in them, and its lists of hosts: pure text in."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from metasched.adapters.slurm import listing as text
from metasched.model.reservation import id_of
from metasched.model.survey import Held, Pool

WITHIN_FIELDS = ("jobarrayid", "state", "reservation")
CORES_FIELDS = ("nodelist", "cpusstate", "sockets", "cores")


@dataclass(frozen=True)
class Kept:
    """One reservation of the cluster for its `users`, of so many `cores`.

    `parts` are those of each node; empty where these are whole nodes, and in the first seconds.
    """

    name: str
    start: float
    end: float
    nodes: tuple[str, ...]
    cores: int
    parts: Mapping[str, int]
    users: str = ""

    def on_each(self, cores: Mapping[str, Cores]) -> Mapping[str, int] | None:
        """Its cores on each node; None: not told as yet."""
        if self.parts:
            return self.parts
        if len(self.nodes) == 1:
            return {self.nodes[0]: self.cores}
        whole = {node: cores[node].count for node in self.nodes if node in cores}
        return whole if sum(whole.values()) == self.cores else None


class Within(NamedTuple):
    """A job in a reservation, as printed."""

    id: str
    state: str
    reservation: str


@dataclass(frozen=True)
class Cores:
    """So many on one node, which have so many processors together."""

    count: int
    cpus: int

    @property
    def threads(self) -> int:
        """Processors of each."""
        return max(1, self.cpus // max(1, self.count))


def reservations(answer: str) -> list[Kept]:
    """The reservations of `scontrol --oneliner show reservation`. ValueError if one is not read."""
    found = []
    for line in answer.splitlines():
        said = dict(re.findall(r"(\w+)=(\S*)", line))
        if "ReservationName" not in said:
            continue
        if not {"StartTime", "EndTime", "Nodes", "CoreCnt"} <= said.keys():
            raise ValueError(f"no window in {line[:100]!r}")
        start, end = float(said["StartTime"]), float(said["EndTime"])
        told = re.findall(r"NodeName=(\S+) CoreIDs=([\d,-]+)", line)
        parts = {node: text.tasks_in(f"_[{ids}]") for node, ids in told}
        nodes, cores = hosts(said["Nodes"]), int(said["CoreCnt"])
        name, users = said["ReservationName"], said.get("Users", "")
        found.append(Kept(name, start, end, nodes, cores, parts, users))
    return found


def reserved_jobs(answer: str, delimiter: str) -> list[Within]:
    """The jobs of squeue with WITHIN_FIELDS that are in a reservation."""
    width = len(WITHIN_FIELDS)
    found = (Within(*line) for line in text.records(answer, delimiter, width))
    return [one for one in found if one.reservation not in text.NOTHING]


def cores(answer: str, delimiter: str) -> dict[str, Cores]:
    """The nodes of sinfo with CORES_FIELDS."""
    lines = text.records(answer, delimiter, len(CORES_FIELDS))
    return {
        node: Cores(int(sockets) * int(each), int(cpus.rpartition("/")[2]))
        for node, cpus, sockets, each in lines
    }


def pool(
    up: Collection[str],
    cores: Mapping[str, Cores],
    jobs: Iterable[text.QueueLine],
    kept: Iterable[Kept],
    within: Collection[str],
    taken: float,
) -> Pool:
    """The cores of the nodes that are `up`, and when some are taken.

    `within` are the ids of jobs in reservations, whose cores are counted with these.
    """
    threads = min(cores[node].threads for node in up)
    uses = []
    for job in jobs:
        if text.lives(job) and job.id not in within and not set(hosts(job.nodes)).isdisjoint(up):
            begin = text.when(job.start) or taken
            end = text.when(job.end) or begin + text.NO_LIMIT
            uses.append((begin, end, -(-int(job.cpus) // threads)))
    for one in kept:
        if here := [node for node in one.nodes if node in up]:
            parts = one.on_each(cores)
            many = one.cores if parts is None else sum(parts.get(node, 0) for node in here)
            uses.append((one.start, one.end, many))
    size = sum(cores[node].count for node in up)
    return Pool(tuple(up), size, tuple(sorted(uses)), threads)


def beside(
    places: Sequence[text.NodeLine],
    cores: Mapping[str, Cores],
    jobs: Iterable[text.QueueLine],
    kept: Iterable[Kept],
    within: Mapping[str, str],
    taken: float,
) -> list[text.NodeLine]:
    """The nodes as jobs in no reservation can have them: what is left of those reserved in part.

    `within` names the reservations of jobs.
    """
    now = [one for one in kept if one.start <= taken < one.end]
    idle: Counter[str] = Counter()  # processors that only jobs to come in reservations can have
    closed = set()
    for one in now:
        for node in cores.keys() & set(one.nodes):
            many = (one.on_each(cores) or {}).get(node, cores[node].count)
            idle[node] += many * cores[node].threads
            if many >= cores[node].count:
                closed.add(node)
    active = {one.name for one in now}
    for job in jobs:
        if text.lives(job) and within.get(job.id) in active:
            on = hosts(job.nodes)
            for node in on:  # how many on each of several nodes it has is not told: one at least
                idle[node] -= int(job.cpus) if len(on) == 1 else 1
    return [
        _left(place, max(0, idle[place.name])) if place.name not in closed else place
        for place in places
    ]


def _left(place: text.NodeLine, reserved: int) -> text.NodeLine:
    allocated, idle, other, total = map(int, place.cpus.split("/"))
    kept = min(idle, reserved)
    states = [word for word in place.state.split("+") if word.lower() != "reserved"]
    return place._replace(
        state="+".join(states) or "idle",
        cpus=f"{allocated}/{idle - kept}/{other + kept}/{total}",
    )


def coming(
    usable: Mapping[str, int],
    cores: Mapping[str, Cores],
    jobs: Sequence[text.QueueLine],
    kept: Sequence[Kept],
    taken: float,
) -> tuple[tuple[float, int], ...]:
    """When windows begin, and how many processors they leave to what begins now and runs then.

    `usable` are the processors of each node that can be used. What runs in another window may be
    counted twice: less is left then.
    """
    found = []
    for start in sorted({one.start for one in kept if one.start > taken}):
        reserved: Counter[str] = Counter()
        for one in kept:
            if one.start <= start < one.end:
                parts = one.on_each(cores) or {}
                for node in one.nodes:
                    reserved[node] += (
                        parts[node] * cores[node].threads if node in parts else usable.get(node, 0)
                    )
        left = sum(max(0, cpus - reserved[node]) for node, cpus in usable.items())
        for job in jobs:
            if text.lives(job) and (text.when(job.end) or math.inf) > start:
                on = hosts(job.nodes)
                if any(node in usable and reserved[node] < usable[node] for node in on):
                    left -= int(job.cpus)
        found.append((start, max(0, left)))
    return tuple(found)


def held(kept: Iterable[Kept], instance: str) -> tuple[Held, ...]:
    """Those of this instance; of one that is being replaced, the newer, with the cores of both."""
    ours: dict[str, Held] = {}
    for one in kept:
        name = first_name(one.name)
        if id_of(name, instance) is not None:
            older = ours[name].size or 0 if name in ours else 0
            ours[name] = Held(name, one.start, one.end, one.nodes, older + one.cores)
    return tuple(ours.values())


def first_name(name: str) -> str:
    """The name of a reservation, before it was replaced by one of another name."""
    return name.removesuffix(_AGAIN)


def other_name(name: str) -> str:
    """What replaces a reservation is called."""
    return first_name(name) if name.endswith(_AGAIN) else name + _AGAIN


_AGAIN = "-again"


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
