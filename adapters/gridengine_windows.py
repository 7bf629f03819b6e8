"""What Grid Engine says of advance reservations, read into the model: pure text in."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from xml.etree import ElementTree

from metasched.adapters import gridengine_text as text
from metasched.moving_slots import Places, Taken
from metasched.reservation_life import Held, Pool, id_of

_ONE_HOST = "$pe_slots"
Use = tuple[float, float, int]  # start, end, processors


@dataclass(frozen=True)
class Kept:
    """One advance reservation of the cell; `slots` are those of each queue instance (`q@host`).

    `user` is whose it is, `owner` who has made it.
    """

    id: str
    name: str
    owner: str
    state: str
    start: float
    end: float
    slots: Mapping[str, int]
    user: str = ""

    @property
    def usable(self) -> bool:
        """Whether all of its queues can run jobs, as far as the qmaster knows."""
        return not set(self.state) & set("WE")

    @property
    def size(self) -> int:
        return sum(self.slots.values())

    @property
    def over(self) -> bool:
        return bool(set(self.state) & set("dx"))

    def left(self, now: float) -> int:
        """For how many seconds a job may ask that is queued now; the qmaster refuses longer ones.

        It counts from when it has the job, which may be a second later.
        """
        later = 1.0 if now > self.start - 1 else 0.0
        return math.floor(self.end - max(now, self.start) - later)

    @property
    def places(self) -> tuple[str, ...]:
        """Its hosts, or its queue instances if one of these cannot run jobs."""
        return tuple(sorted(set(map(_host, self.slots)) if self.usable else self.slots))


def reservation_ids(xml: str) -> list[str]:
    """The ids in `qrstat -xml -u '*'`."""
    return [_word(one, "id") for one in text.root(xml, "qrstat").iter("ar_summary")]


def reservations(xml: str) -> list[Kept]:
    """Each advance reservation of `qrstat -xml -ar`; those that ended meanwhile are left out."""
    found = []
    for one in text.root(xml, "qrstat").iter("ar_summary"):
        start, end = (text.when(_word(one, f"{side}_time")) for side in ("start", "end"))
        if start is None or end is None:
            raise ValueError(f"no window in advance reservation {_word(one, 'id')!r}")
        slots: Counter[str] = Counter()
        for granted in one.iter("granted_slots"):
            slots[granted.get("queue_instance", "")] += int(granted.get("slots", "0"))
        id, name, owner, state = (_word(one, word) for word in ("id", "name", "owner", "state"))
        users = [said.get("user", "") for said in one.iter("acl")]
        user = users[0] if len(users) == 1 else ""
        found.append(Kept(id, name, owner, state, start, end, slots, user))
    return [one for one in found if not one.over]


def reserved_jobs(xml: str) -> dict[str, str]:
    """The advance reservation of each job of `qstat -xml -j` that has one, by the job's id."""
    if "<unknown_jobs" in xml[:200]:  # all have ended meanwhile
        return {}
    found = {}
    for job in text.root(xml, "detailed_job_info").iter("element"):
        id, within = job.findtext("JB_job_number"), job.findtext("JB_ar")
        if id is not None and within is not None and within.strip() not in ("", "0"):
            found[id.strip()] = within.strip()
    return found


def spreads(environment: str) -> bool:
    """Whether a parallel environment, by `qconf -sp`, gives one job slots of several hosts."""
    return text.settings(environment).get("allocation_rule") != _ONE_HOST


def pools(
    hosts: Iterable[text.Host],
    jobs: Iterable[text.Job],
    kept: Iterable[Kept],
    within: Mapping[str, str],
    spread: bool,
    default_time: float,
    taken: float,
) -> tuple[Pool, ...]:
    """What is there, and taken when: one pool of all hosts that are up, or one for each.

    `within` names the advance reservations of jobs, whose slots are counted with these.
    """
    uses: dict[str, list[Use]] = {}
    for job in jobs:
        if not job.waits and job.id not in within:
            begun = taken if job.started is None else job.started
            uses.setdefault(job.host, []).append((begun, _end(job, default_time, taken), job.slots))
    for one in kept:
        for instance, slots in one.slots.items():
            uses.setdefault(_host(instance), []).append((one.start, one.end, slots))
    sizes = {host.name: text.slots(host) for host in hosts}
    groups = [[name for name, size in sizes.items() if size]]
    if not spread:
        groups = [[name] for name in groups[0]]
    return tuple(
        Pool(
            tuple(names),
            sum(sizes[name] for name in names),
            tuple(sorted(use for name in names for use in uses.get(name, ()))),
        )
        for names in groups
        if names
    )


def places(
    hosts: Iterable[text.Host],
    jobs: Iterable[text.Job],
    kept: Iterable[Kept],
    within: Mapping[str, str],
    spread: bool,
    movable: Collection[str],
    default_time: float,
    taken: float,
) -> Places:
    """The queue instances that are up, and which reservations may be moved, by their ids.

    Those of a host that has fewer slots than they have together are one place, by the host's name.
    `within` as in `pools`.
    """
    place: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for host in hosts:
        up = {f"{queue.name}@{host.name}": queue.slots for queue in host.queues if queue.up}
        whole = text.slots(host)
        if whole < sum(up.values()):
            place |= dict.fromkeys(up, host.name)
            sizes[host.name] = whole
        else:
            place |= {instance: instance for instance in up}
            sizes |= up
    fixed, moving = [], {}
    for job in jobs:
        if not job.waits and job.id not in within:
            begun = taken if job.started is None else job.started
            end = _end(job, default_time, taken)
            fixed.append(Taken(begun, end, {place.get(job.queue, job.queue): job.slots}))
    for one in kept:
        slots: Counter[str] = Counter()
        for instance, many in one.slots.items():
            slots[place.get(instance, instance)] += many
        if one.id in movable:
            moving[int(one.id)] = Taken(one.start, one.end, slots)
        else:
            fixed.append(Taken(one.start, one.end, slots))
    return Places(sizes, fixed, moving, lambda name: "" if spread else _host(name))


def kept_free(
    hosts: Iterable[text.Host],
    jobs: Iterable[text.Job],
    kept: Iterable[Kept],
    within: Mapping[str, str],
    taken: float,
) -> list[text.Host]:
    """The hosts, of whose queues that is reserved which nobody but jobs to come in there can have.

    `within` as in `pools`.
    """
    idle: Counter[str] = Counter()
    for one in kept:
        if one.start <= taken:
            idle.update(one.slots)
    for job in jobs:
        if not job.waits and job.id in within:
            idle[job.queue] -= job.slots
    return [
        replace(
            host,
            queues=tuple(
                replace(queue, reserved=max(0, idle[f"{queue.name}@{host.name}"]))
                for queue in host.queues
            ),
        )
        for host in hosts
    ]


def coming(
    hosts: Iterable[text.Host],
    jobs: Iterable[text.Job],
    kept: Iterable[Kept],
    within: Mapping[str, str],
    default_time: float,
    taken: float,
) -> tuple[tuple[float, int], ...]:
    """When windows begin, and how many slots they leave to what begins now and still runs then.

    `within` as in `pools`.
    """
    size = sum(map(text.slots, hosts))
    windows = [(one.start, one.end, sum(one.slots.values())) for one in kept]
    ends = [
        (_end(job, default_time, taken), job.slots)
        for job in jobs
        if not job.waits and job.id not in within
    ]
    found = []
    for start in sorted({start for start, _, _ in windows if start > taken}):
        busy = sum(many for begin, end, many in windows if begin <= start < end)
        busy += sum(many for end, many in ends if end > start)
        found.append((start, max(0, size - busy)))
    return tuple(found)


def held(kept: Iterable[Kept], owner: str, instance: str) -> tuple[Held, ...]:
    """Those of this instance, made by this account.

    Of one that is being replaced, the newer, with the slots of both: it is seen to be unfinished.
    """
    ours: dict[str, Held] = {}
    for one in kept:
        if one.owner == owner and id_of(one.name, instance) is not None:
            older = ours[one.name].size or 0 if one.name in ours else 0
            ours[one.name] = Held(one.name, one.start, one.end, one.places, older + one.size)
    return tuple(ours.values())


def lists(ids: Sequence[str], most: int) -> list[str]:
    """The ids as comma-separated lists of at most so many."""
    return [",".join(ids[at : at + most]) for at in range(0, len(ids), most)]


def granted(answer: str) -> str | None:
    """The id in the answer of `qrsub`, None if it granted nothing."""
    found = re.search(r"advance reservation (\d+) has been granted", answer)
    return found[1] if found else None


def _host(instance: str) -> str:
    return instance.rpartition("@")[2]


def _end(job: text.Job, default_time: float, taken: float) -> float:
    """When a job that runs has ended at the latest."""
    begun = taken if job.started is None else job.started
    limit = text.seconds(job.requests.get("h_rt", "")) or default_time
    return max(begun + limit, taken + 1)


def _word(one: ElementTree.Element, name: str) -> str:
    return (one.findtext(name) or "").strip()
