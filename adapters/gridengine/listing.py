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

from metasched.model.cluster import ManagerLicences
from metasched.model.job import State
from metasched.model.listing import JobStatus
from metasched.model.tags import parse_tag

ANY_QUEUE = "*"  # the partition of jobs that name no queue, where there are several
_UNLIMITED = {"INFINITY", "NONE", ""}
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

# Why a line of the accounting does not end its job: it is queued again.
_RESCHEDULED_CODES = {"24", "25"}
_LIMIT_EXCEEDED = "37"  # ended at h_rt, h_cpu or h_vmem
_AFTER_JOB = "100"  # a signal ended it: exit_status is 128 + signal
_AMOUNT = re.compile(r"\d+(\.\d+)?[kKmMgGtT]?")
_MEMORY_LIMIT = re.compile(r"[sh]_(data|rss|stack|vmem)")
_HARD_MEMORY_REQUEST = re.compile(r"\b(h_vmem|h_rss|h_data)=")

# Signals by which the script says that the payload ended with 99 or 100: Grid Engine would run
# the job once more (whatever `-r n` says), or keep it in error.
EXIT_CODE_OF_SIGNAL = {62: 99, 63: 100}

_UNUSABLE_STATES = set("auEsdSDCo")  # letters of a queue's state that keep jobs from starting


@dataclass(frozen=True)
class QstatJob:
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
    def is_waiting(self) -> bool:
        """Whether no host has it: pending, held or in error."""
        return "q" in self.state or "w" in self.state

    @property
    def is_eligible(self) -> bool:
        """Whether it waits for nothing but its turn."""
        return self.state in ("qw", "Rq", "Rqw")

    @property
    def task_count(self) -> int:
        """How many tasks it stands for."""
        return count_tasks(self.tasks)

    @property
    def host(self) -> str:
        return self.queue.partition("@")[2]


class AccountingLine(NamedTuple):
    """One line of the accounting: one end, or one start that failed (`started` 0)."""

    host: str
    owner: str
    name: str
    id: str
    started: float
    ended: float
    failed: str
    exit_status: int
    wall_seconds: float
    cpu_seconds: float
    category: str
    max_memory: float


@dataclass(frozen=True)
class QueueInstance:
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
        return _UNUSABLE_STATES.isdisjoint(self.state)


@dataclass(frozen=True)
class ExecutionHost:
    """One execution host: `free` are its remaining consumables, memory in MiB."""

    name: str
    memory: int | None
    free: Mapping[str, float]
    queues: tuple[QueueInstance, ...]


@dataclass(frozen=True)
class ComplexAttribute:
    """A resource attribute; `consumable` is NO, YES (per slot) or JOB, `default` what none asks."""

    name: str
    consumable: str
    default: str = "0"

    @property
    def default_amount(self) -> float:
        """What a job, or a slot of it, has that does not say how much."""
        return parse_amounts({"": self.default}).get("", 0.0)

    def request_value(self, count: int, slots: int) -> int:
        """What to ask for, to have so many on so many slots. ValueError if it cannot be said."""
        if self.consumable == "YES":  # counted for each slot
            if count % slots:
                raise ValueError(f"{count} {self.name} cannot be shared equally by {slots} slots")
            return count // slots
        return count


@dataclass(frozen=True)
class QueueLimits:
    """Of one queue, seconds; None: no limit. A job is warned at the soft one.

    `memory` are the most bytes that a slot may ask for, on any of its hosts, by resource.
    """

    hard_time: float | None
    soft_time: float | None = None
    memory: Mapping[str, float] = field(default_factory=dict)


def parse_jobs(xml: str) -> list[QstatJob]:
    """Every job of `qstat -xml -r -u '*'`, the pending ones in the manager's order."""
    return [_parse_job(element) for element in xml_root(xml, "job_info").iter("job_list")]


def _parse_job(element: ElementTree.Element) -> QstatJob:
    def child_text(name: str) -> str:
        return (element.findtext(name) or "").strip()

    requests = {
        request.get("name", ""): (request.text or "").strip()
        for request in element.iter("hard_request")
    }
    return QstatJob(
        id=str(int(child_text("JB_job_number"))),
        name=child_text("full_job_name") or child_text("JB_name"),
        owner=child_text("JB_owner"),
        state=child_text("state"),
        slots=int(child_text("slots") or 1),
        submitted=parse_time(child_text("JB_submission_time")),
        started=parse_time(child_text("JAT_start_time")),
        queue=child_text("queue_name"),
        tasks=child_text("tasks"),
        requests=requests,
    )


def parse_hosts(xml: str) -> list[ExecutionHost]:
    """Every execution host of `qhost -xml -q -F`."""
    return [
        _parse_host(element)
        for element in xml_root(xml, "qhost").iter("host")
        if element.get("name") != "global"
    ]


def parse_global_licences(xml: str, totals: Mapping[str, float]) -> dict[str, ManagerLicences]:
    """What is left and taken of the consumables of the host `global`, by `qhost -xml -F`."""
    remaining = {
        value.get("name", ""): int(parse_amount(value.text or "0"))
        for host in xml_root(xml, "qhost").iter("host")
        if host.get("name") == "global"
        for value in host.findall("resourcevalue")
    }
    return {
        name: ManagerLicences(int(total), max(int(total) - remaining[name], 0))
        for name, total in totals.items()
        if name in remaining
    }


def parse_host_totals(host: str, complexes: Mapping[str, ComplexAttribute]) -> dict[str, float]:
    """How much there is of each consumable that a host counts, by `qconf -se`."""
    declared = _parse_pairs(parse_settings(host).get("complex_values", ""))
    return {
        name: count
        for name, count in parse_amounts(declared).items()
        if name in complexes and complexes[name].consumable != "NO"
    }


def _parse_host(element: ElementTree.Element) -> ExecutionHost:
    free = {
        value.get("name", ""): parse_amount(value.text or "0")
        for value in element.findall("resourcevalue")
        if value.get("dominance") == "hc"
    }
    total = next(
        (
            (element_value.text or "-")
            for element_value in element.findall("hostvalue")
            if element_value.get("name") == "mem_total"
        ),
        "-",
    )
    queues = []
    for queue in element.findall("queue"):
        values = {
            element_value.get("name"): element_value.text or ""
            for element_value in queue.findall("queuevalue")
        }
        running, reserved = int(values["slots_used"]), int(values.get("slots_resv") or 0)
        name, state = queue.get("name", ""), values["state_string"].strip()
        queues.append(QueueInstance(name, int(values["slots"]), running, reserved, state))
    return ExecutionHost(
        name=element.get("name", ""),
        memory=None if total == "-" else int(parse_amount(total) / 2**20),
        free=free,
        queues=tuple(queues),
    )


def xml_root(xml: str, name: str) -> ElementTree.Element:
    """The outermost element, which must have this name. ValueError if it has not."""
    try:
        element = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise ValueError(f"no XML: {error}") from None
    if element.tag != name:
        raise ValueError(f"<{element.tag}> where <{name}> was expected")
    return element


def parse_time(text: str) -> float | None:
    """Epoch seconds of `2030-01-31T08:00:00` under TZ=UTC."""
    return float(timegm(strptime(text, "%Y-%m-%dT%H:%M:%S"))) if text else None


def parse_amount(text: str) -> float:
    """A number with a memory unit, such as `22.889G`, in plain units."""
    scale = _UNITS.get(text[-1:], 1)
    return float(text[:-1] if text[-1:] in _UNITS else text) * scale


def parse_amounts(values: Mapping[str, str]) -> dict[str, float]:
    """Those of the values that are amounts."""
    return {name: parse_amount(value) for name, value in values.items() if _AMOUNT.fullmatch(value)}


def parse_seconds(text: str) -> float | None:
    """Seconds of `3600`, `1:00:00` or `INFINITY` (None); host overrides are left out."""
    text = text.partition(",")[0].strip()
    if text in _UNLIMITED:
        return None
    total = 0.0
    for part in text.split(":"):
        total = total * 60 + float(part or 0)
    return total


def count_tasks(text: str) -> int:
    """How many tasks `3-20:1,25` stands for; `` and `7` are one."""
    count = 0
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        count += (int(last) - int(first)) // int(step or 1) + 1 if dash else 1
    return count


def parse_settings(text: str) -> dict[str, str]:
    """The `name  value` lines of qconf, continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", text)
    pairs = (line.split(None, 1) for line in joined.splitlines() if line.strip())
    return {pair[0]: pair[1].strip() if len(pair) > 1 else "" for pair in pairs}


def parse_queue_limits(text: str) -> dict[str, QueueLimits]:
    """Each queue of `qconf -sq '*'` with its limits."""
    limits = {}
    for block in re.split(r"^(?=qname\s)", text, flags=re.MULTILINE):
        if block.strip():
            values = parse_settings(block)
            memory = {
                name: _lowest_amount(values[name])
                for name in values
                if _MEMORY_LIMIT.fullmatch(name)
            }
            hard_time, soft_time = (
                parse_seconds(values["h_rt"]),
                parse_seconds(values.get("s_rt", "")),
            )
            limits[values["qname"]] = QueueLimits(hard_time, soft_time, memory)
    return limits


def _lowest_amount(listed: str) -> float:
    """The least of `4G,[n1=2G],[@big=INFINITY]`."""
    values = re.findall(r"(?:^|=)([^],\s]+)", listed)
    return min(parse_amounts({value: value for value in values}).values(), default=math.inf)


def parse_complexes(text: str) -> dict[str, ComplexAttribute]:
    """Each resource attribute of `qconf -sc`, by its name."""
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {row[0]: ComplexAttribute(row[0], row[5], row[6]) for row in rows if len(row) == 8}


def parse_accounting_delay(configuration: str) -> float:
    """Seconds for which the qmaster may keep lines of the accounting to itself."""
    parameters = _parse_pairs(parse_settings(configuration).get("reporting_params", ""))
    flush_time = (
        parameters.get("accounting_flush_time") or parameters.get("flush_time") or "00:00:15"
    )
    return parse_seconds(flush_time) or 0.0


def parse_duration_offset(scheduler: str) -> float:
    """Seconds for which a job keeps its slots after its limit, by `qconf -ssconf`."""
    parameters = _parse_pairs(parse_settings(scheduler).get("params", "").upper())
    return parse_seconds(parameters.get("DURATION_OFFSET", "60")) or 0.0


def _parse_pairs(pairs: str) -> dict[str, str]:
    """`a=1,b=2 c=3;d=4`."""
    return dict(pair.partition("=")[::2] for pair in re.split(r"[\s,;]+", pairs))


def parse_accounting_line(line: str) -> AccountingLine:
    """One line of the accounting file."""
    fields = line.rstrip("\n").split(":")
    if len(fields) < 43:
        raise ValueError(f"a line of the accounting has {len(fields)} fields")
    return AccountingLine(
        host=fields[1],
        owner=fields[3],
        name=fields[4],
        id=str(int(fields[5])),
        started=_epoch_seconds(fields[9]),
        ended=_epoch_seconds(fields[10]),
        failed=fields[11].split(None, 1)[0],
        exit_status=int(fields[12]),
        wall_seconds=float(fields[13]),
        cpu_seconds=float(fields[36]),
        category=fields[39],
        max_memory=float(fields[42]),
    )


def _epoch_seconds(text: str) -> float:
    """Seconds; some descendants of Grid Engine write milliseconds."""
    value = float(int(text))
    return value / 1000 if value > 1e11 else value


def job_name(tag: str, index: int) -> str:
    """The name of a task in Grid Engine: the tag, with its index if that is not 0."""
    return f"{tag}.{index}" if index else tag


def parse_job_name(name: str, instance: str) -> tuple[str, int] | None:
    """(tag, index) of what `mark` made for this instance; None for other names."""
    tag, dot, index = name.partition(".")
    if (dot and not index.isdecimal()) or parse_tag(tag, instance) is None:
        return None
    return tag, int(index or 0)


def live_status(job: QstatJob, tag: str, task: int) -> JobStatus:
    """The row of a job that qstat lists."""
    started = job.started
    if job.is_waiting or ("t" in job.state and "R" not in job.state):
        # One that was queued again has begun before; when, is no longer known.
        started = job.submitted if "R" in job.state else None
    state = _state(job.state)
    return JobStatus(
        tag=tag,
        task=task,
        native_id=job.id,
        state=state,
        started=started,
        manager_reason="" if job.state in ("r", "qw") else job.state,
        node=job.host,
        restarts=int("R" in job.state),
    )


def _state(letters: str) -> State:
    if "q" in letters or "w" in letters or "t" in letters:
        return State.PENDING
    if not set(letters).isdisjoint("sSTNP"):
        return State.SUSPENDED
    return State.RUNNING if "r" in letters else State.UNKNOWN


def ended_status(line: AccountingLine, tag: str, task: int, killed: bool) -> JobStatus | None:
    """The row of a job that has ended; None if this record is not its end.

    `killed`: we had asked for its end. Grid Engine accounts such an end as any other by a signal.
    """
    if line.failed in _RESCHEDULED_CODES or not line.started:
        return None
    code: int | None = line.exit_status
    signal: int | None = None
    state = State.COMPLETED if line.exit_status == 0 else State.FAILED
    message = "" if line.failed == "0" else f"failed {line.failed}"
    if line.failed in (_AFTER_JOB, _LIMIT_EXCEEDED) and line.exit_status > 128:
        code, signal = None, line.exit_status - 128
        if signal in EXIT_CODE_OF_SIGNAL:
            code, signal, message = EXIT_CODE_OF_SIGNAL[signal], None, ""
    if line.failed == _LIMIT_EXCEEDED:
        state = State.TIMEOUT
        limit = re.search(r"\bh_rt=([\d:]+)", line.category)
        requested_time = parse_seconds(limit[1]) if limit else None
        if _HARD_MEMORY_REQUEST.search(line.category) and not (
            requested_time and line.wall_seconds >= requested_time
        ):
            state = State.OUT_OF_MEMORY
    elif line.failed == _AFTER_JOB and signal is not None and killed:
        state = State.CANCELLED
    elif line.failed not in ("0", _AFTER_JOB):
        state, code, signal = State.NODE_FAIL, None, None
    return JobStatus(
        tag=tag,
        task=task,
        native_id=line.id,
        state=state,
        started=line.started,
        ended=max(line.ended, line.started),
        exit_code=code,
        signal=signal,
        manager_reason=message,
        node=line.host,
        cpu_seconds=line.cpu_seconds,
        max_memory=int(line.max_memory / 2**20),
    )


def usable_slots(host: ExecutionHost, include_down: bool = False) -> int:
    """The processors of a host that can be given to jobs, by its queues that are up; 0: none.

    `down`: by all of its queues.
    """
    total = sum(queue.slots for queue in host.queues if queue.up or include_down)
    used = sum(queue.running for queue in host.queues)
    return min(total, int(host.free["slots"]) + used) if "slots" in host.free else total
