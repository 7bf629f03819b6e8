"""What Grid Engine's listings say, read into the model: pure text in, rows and facts out.

Written for the answers of Son of Grid Engine 8.1.9 under TZ=UTC. Text that cannot be read raises
ValueError: a listing that is understood by half proves nothing.
"""

from __future__ import annotations

import math
import re
from calendar import timegm
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import strptime
from typing import NamedTuple
from xml.etree import ElementTree

from metasched.model.cluster import Copies
from metasched.model.job import State
from metasched.model.listing import Row
from metasched.model.tags import parse_tag

EVERYWHERE = "*"  # the partition of jobs that name no queue, where there are several
_NO_LIMITS = {"INFINITY", "NONE", ""}
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

# Why a line of the accounting does not end its job: it is queued again.
_AGAIN = {"24", "25"}
_LIMIT = "37"  # ended at h_rt, h_cpu or h_vmem
_AFTER_JOB = "100"  # a signal ended it: exit_status is 128 + signal
_AMOUNT = re.compile(r"\d+(\.\d+)?[kKmMgGtT]?")
_MEMORY = re.compile(r"[sh]_(data|rss|stack|vmem)")
_HARD_MEMORY = re.compile(r"\b(h_vmem|h_rss|h_data)=")

# Signals by which the script says that the payload ended with 99 or 100: Grid Engine would run
# the job once more (whatever `-r n` says), or keep it in error.
HIDDEN_CODES = {62: 99, 63: 100}

_UNUSABLE = set("auEsdSDCo")  # letters of a queue's state that keep jobs from starting


@dataclass(frozen=True)
class Job:
    """One job (or some tasks of an array) of qstat; `requests` are hard requests as written."""

    id: str
    name: str
    owner: str
    state: str
    slots: int
    submitted: float | None = None
    started: float | None = None
    queue: str = ""
    tasks: str = ""
    requests: Mapping[str, str] = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        """Whether no host has it: pending, held or in error."""
        return "q" in self.state or "w" in self.state

    @property
    def queued(self) -> bool:
        """Whether it waits for nothing but its turn."""
        return self.state in ("qw", "Rq", "Rqw")

    @property
    def count(self) -> int:
        """How many tasks it stands for."""
        return tasks_in(self.tasks)

    @property
    def host(self) -> str:
        return self.queue.partition("@")[2]


class Record(NamedTuple):
    """One line of the accounting: one end, or one start that failed (`started` 0)."""

    host: str
    owner: str
    name: str
    id: str
    started: float
    ended: float
    failed: str
    status: int
    wall: float
    cpu: float
    category: str
    memory: float


@dataclass(frozen=True)
class Queue:
    """One queue instance: this queue on one host.

    As qhost tells it, `reserved` is the most that advance reservations have together at any time
    from now on; see `gridengine_windows.kept_free`.
    """

    name: str
    slots: int
    running: int
    reserved: int
    state: str

    @property
    def used(self) -> int:
        return self.running + self.reserved

    @property
    def up(self) -> bool:
        return _UNUSABLE.isdisjoint(self.state)


@dataclass(frozen=True)
class Host:
    """One execution host: `free` are its remaining consumables, memory in MiB."""

    name: str
    memory: int | None
    free: Mapping[str, float]
    queues: tuple[Queue, ...]


@dataclass(frozen=True)
class Complex:
    """A resource attribute; `consumable` is NO, YES (per slot) or JOB, `default` what none asks."""

    name: str
    consumable: str
    default: str = "0"

    @property
    def unasked(self) -> float:
        """What a job, or a slot of it, has that does not say how much."""
        return amounts({"": self.default}).get("", 0.0)

    def each(self, count: int, slots: int) -> int:
        """What to ask for, to have so many on so many slots. ValueError if it cannot be said."""
        if self.consumable == "YES":  # counted for each slot
            if count % slots:
                raise ValueError(f"{count} {self.name} cannot be shared equally by {slots} slots")
            return count // slots
        return count


@dataclass(frozen=True)
class Limits:
    """Of one queue, seconds; None: no limit. A job is warned at the soft one.

    `memory` are the most bytes that a slot may ask for, on any of its hosts, by resource.
    """

    time: float | None
    soft: float | None = None
    memory: Mapping[str, float] = field(default_factory=dict)


def jobs(xml: str) -> list[Job]:
    """Every job of `qstat -xml -r -u '*'`, the pending ones in the manager's order."""
    return [_job(element) for element in root(xml, "job_info").iter("job_list")]


def _job(element: ElementTree.Element) -> Job:
    def text(name: str) -> str:
        return (element.findtext(name) or "").strip()

    requests = {
        request.get("name", ""): (request.text or "").strip()
        for request in element.iter("hard_request")
    }
    return Job(
        id=str(int(text("JB_job_number"))),
        name=text("full_job_name") or text("JB_name"),
        owner=text("JB_owner"),
        state=text("state"),
        slots=int(text("slots") or 1),
        submitted=when(text("JB_submission_time")),
        started=when(text("JAT_start_time")),
        queue=text("queue_name"),
        tasks=text("tasks"),
        requests=requests,
    )


def hosts(xml: str) -> list[Host]:
    """Every execution host of `qhost -xml -q -F`."""
    return [
        _host(element)
        for element in root(xml, "qhost").iter("host")
        if element.get("name") != "global"
    ]


def tokens(xml: str, totals: Mapping[str, float]) -> dict[str, Copies]:
    """What is left and taken of the consumables of the host `global`, by `qhost -xml -F`."""
    left = {
        value.get("name", ""): int(amount(value.text or "0"))
        for host in root(xml, "qhost").iter("host")
        if host.get("name") == "global"
        for value in host.findall("resourcevalue")
    }
    return {
        name: Copies(int(total), max(int(total) - left[name], 0))
        for name, total in totals.items()
        if name in left
    }


def totals(host: str, known: Mapping[str, Complex]) -> dict[str, float]:
    """How much there is of each consumable that a host counts, by `qconf -se`."""
    given = _pairs(settings(host).get("complex_values", ""))
    return {
        name: count
        for name, count in amounts(given).items()
        if name in known and known[name].consumable != "NO"
    }


def _host(element: ElementTree.Element) -> Host:
    free = {
        value.get("name", ""): amount(value.text or "0")
        for value in element.findall("resourcevalue")
        if value.get("dominance") == "hc"
    }
    total = next(
        ((v.text or "-") for v in element.findall("hostvalue") if v.get("name") == "mem_total"), "-"
    )
    queues = []
    for queue in element.findall("queue"):
        said = {v.get("name"): v.text or "" for v in queue.findall("queuevalue")}
        running, reserved = int(said["slots_used"]), int(said.get("slots_resv") or 0)
        name, state = queue.get("name", ""), said["state_string"].strip()
        queues.append(Queue(name, int(said["slots"]), running, reserved, state))
    return Host(
        name=element.get("name", ""),
        memory=None if total == "-" else int(amount(total) / 2**20),
        free=free,
        queues=tuple(queues),
    )


def root(xml: str, name: str) -> ElementTree.Element:
    """The outermost element, which must have this name. ValueError if it has not."""
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise ValueError(f"no XML: {error}") from None
    if root.tag != name:
        raise ValueError(f"<{root.tag}> where <{name}> was expected")
    return root


def when(text: str) -> float | None:
    """Epoch seconds of `2030-01-31T08:00:00` under TZ=UTC."""
    return float(timegm(strptime(text, "%Y-%m-%dT%H:%M:%S"))) if text else None


def amount(text: str) -> float:
    """A number with a memory unit, such as `22.889G`, in plain units."""
    scale = _UNITS.get(text[-1:], 1)
    return float(text[:-1] if text[-1:] in _UNITS else text) * scale


def amounts(said: Mapping[str, str]) -> dict[str, float]:
    """Those of the values that are amounts."""
    return {name: amount(much) for name, much in said.items() if _AMOUNT.fullmatch(much)}


def seconds(text: str) -> float | None:
    """Seconds of `3600`, `1:00:00` or `INFINITY` (None); host overrides are left out."""
    text = text.partition(",")[0].strip()
    if text in _NO_LIMITS:
        return None
    total = 0.0
    for part in text.split(":"):
        total = total * 60 + float(part or 0)
    return total


def tasks_in(text: str) -> int:
    """How many tasks `3-20:1,25` stands for; `` and `7` are one."""
    count = 0
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        count += (int(last) - int(first)) // int(step or 1) + 1 if dash else 1
    return count


def settings(text: str) -> dict[str, str]:
    """The `name  value` lines of qconf, continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", text)
    pairs = (line.split(None, 1) for line in joined.splitlines() if line.strip())
    return {pair[0]: pair[1].strip() if len(pair) > 1 else "" for pair in pairs}


def queues(text: str) -> dict[str, Limits]:
    """Each queue of `qconf -sq '*'` with its limits."""
    found = {}
    for block in re.split(r"^(?=qname\s)", text, flags=re.MULTILINE):
        if block.strip():
            said = settings(block)
            memory = {name: _least(said[name]) for name in said if _MEMORY.fullmatch(name)}
            time, soft = seconds(said["h_rt"]), seconds(said.get("s_rt", ""))
            found[said["qname"]] = Limits(time, soft, memory)
    return found


def _least(said: str) -> float:
    """The least of `4G,[n1=2G],[@big=INFINITY]`."""
    values = re.findall(r"(?:^|=)([^],\s]+)", said)
    return min(amounts({value: value for value in values}).values(), default=math.inf)


def complexes(text: str) -> dict[str, Complex]:
    """Each resource attribute of `qconf -sc`, by its name."""
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {row[0]: Complex(row[0], row[5], row[6]) for row in rows if len(row) == 8}


def accounting_delay(configuration: str) -> float:
    """Seconds for which the qmaster may keep lines of the accounting to itself."""
    given = _pairs(settings(configuration).get("reporting_params", ""))
    time = given.get("accounting_flush_time") or given.get("flush_time") or "00:00:15"
    return seconds(time) or 0.0


def duration_offset(scheduler: str) -> float:
    """Seconds for which a job keeps its slots after its limit, by `qconf -ssconf`."""
    given = _pairs(settings(scheduler).get("params", "").upper())
    return seconds(given.get("DURATION_OFFSET", "60")) or 0.0


def _pairs(said: str) -> dict[str, str]:
    """`a=1,b=2 c=3;d=4`."""
    return dict(pair.partition("=")[::2] for pair in re.split(r"[\s,;]+", said))


def record(line: str) -> Record:
    """One line of the accounting file."""
    fields = line.rstrip("\n").split(":")
    if len(fields) < 43:
        raise ValueError(f"a line of the accounting has {len(fields)} fields")
    return Record(
        host=fields[1],
        owner=fields[3],
        name=fields[4],
        id=str(int(fields[5])),
        started=_epoch(fields[9]),
        ended=_epoch(fields[10]),
        failed=fields[11].split(None, 1)[0],
        status=int(fields[12]),
        wall=float(fields[13]),
        cpu=float(fields[36]),
        category=fields[39],
        memory=float(fields[42]),
    )


def _epoch(text: str) -> float:
    """Seconds; some descendants of Grid Engine write milliseconds."""
    value = float(int(text))
    return value / 1000 if value > 1e11 else value


def mark(tag: str, index: int) -> str:
    """The name of a task in Grid Engine: the tag, with its index if that is not 0."""
    return f"{tag}.{index}" if index else tag


def read_mark(name: str, instance: str) -> tuple[str, int] | None:
    """(tag, index) of what `mark` made for this instance; None for other names."""
    tag, dot, index = name.partition(".")
    if (dot and not index.isdecimal()) or parse_tag(tag, instance) is None:
        return None
    return tag, int(index or 0)


def live_row(job: Job, tag: str, task: int) -> Row:
    """The row of a job that qstat lists."""
    started = job.started
    if job.waits or ("t" in job.state and "R" not in job.state):
        # One that was queued again has begun before; when, is no longer known.
        started = job.submitted if "R" in job.state else None
    state = _state(job.state)
    return Row(
        tag=tag,
        task=task,
        native_id=job.id,
        state=state,
        started=started,
        word="" if job.state in ("r", "qw") else job.state,
        node=job.host,
        restarts=int("R" in job.state),
    )


def _state(letters: str) -> State:
    if "q" in letters or "w" in letters or "t" in letters:
        return State.PENDING
    if not set(letters).isdisjoint("sSTNP"):
        return State.SUSPENDED
    return State.RUNNING if "r" in letters else State.UNKNOWN


def ended_row(found: Record, tag: str, task: int, killed: bool) -> Row | None:
    """The row of a job that has ended; None if this record is not its end.

    `killed`: we had asked for its end. Grid Engine accounts such an end as any other by a signal.
    """
    if found.failed in _AGAIN or not found.started:
        return None
    code: int | None = found.status
    signal: int | None = None
    state = State.COMPLETED if found.status == 0 else State.FAILED
    word = "" if found.failed == "0" else f"failed {found.failed}"
    if found.failed in (_AFTER_JOB, _LIMIT) and found.status > 128:
        code, signal = None, found.status - 128
        if signal in HIDDEN_CODES:
            code, signal, word = HIDDEN_CODES[signal], None, ""
    if found.failed == _LIMIT:
        state = State.TIMEOUT
        limit = re.search(r"\bh_rt=([\d:]+)", found.category)
        asked = seconds(limit[1]) if limit else None
        if _HARD_MEMORY.search(found.category) and not (asked and found.wall >= asked):
            state = State.OUT_OF_MEMORY
    elif found.failed == _AFTER_JOB and signal is not None and killed:
        state = State.CANCELLED
    elif found.failed not in ("0", _AFTER_JOB):
        state, code, signal = State.NODE_FAIL, None, None
    return Row(
        tag=tag,
        task=task,
        native_id=found.id,
        state=state,
        started=found.started,
        ended=max(found.ended, found.started),
        exit_code=code,
        signal=signal,
        word=word,
        node=found.host,
        cpu_seconds=found.cpu,
        max_memory=int(found.memory / 2**20),
    )


def slots(host: Host, down: bool = False) -> int:
    """The processors of a host that can be given to jobs, by its queues that are up; 0: none.

    `down`: by all of its queues.
    """
    most = sum(queue.slots for queue in host.queues if queue.up or down)
    used = sum(queue.running for queue in host.queues)
    return min(most, int(host.free["slots"]) + used) if "slots" in host.free else most
