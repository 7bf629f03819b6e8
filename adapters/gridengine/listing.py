"""Answers of Grid Engine's commands, parsed. Pure.

Written for Son of Grid Engine 8.1.9 under TZ=UTC. Text that cannot be parsed raises ValueError,
since a partial listing proves nothing.
"""

from __future__ import annotations

import math
import re
import sys
from calendar import timegm
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import strptime
from typing import NamedTuple
from xml.etree import ElementTree

from metasched.adapters.known_jobs import KnownJobs
from metasched.model.arrays import MAX_INDEX
from metasched.model.cluster import ManagerLicences
from metasched.model.job import State
from metasched.model.listing import JobStatus, QuarantinedRow
from metasched.model.row_checks import is_time
from metasched.model.tags import parse_number, parse_tag

ANY_QUEUE = "*"  # partition of jobs that name no queue, in a cell with several queues
_UNLIMITED = {"INFINITY", "NONE", ""}
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

# Values of `failed` with which the job is queued again.
_RESCHEDULED_CODES = {"24", "25"}
# of a run: ru_wallclock, ru_utime, ru_stime, ru_maxrss, ru_minflt, cpu, maxvmem
_USAGE_COLUMNS = (13, 14, 15, 16, 21, 36, 42)
_LIMIT_EXCEEDED = "37"  # ended at h_rt, h_cpu or h_vmem
_AFTER_JOB = "100"  # a signal ended it: exit_status is 128 + signal
_NOT_IN_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REFERENCE = re.compile(r"&#(x[0-9a-fA-F]{1,8}|[0-9]{1,8});")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_AMOUNT = 2.0**62  # of bytes, seconds and consumables
_MAX_DIGITS = 18  # such numbers fit into 64 bits with a sign
_AMOUNT = re.compile(r"\d+(\.\d+)?[kKmMgGtT]?")
_MEMORY_LIMIT = re.compile(r"[sh]_(data|rss|stack|vmem)")
_HARD_MEMORY_REQUEST = re.compile(r"\b(h_vmem|h_rss|h_data)=")

# Signals that stand for exit codes 99 and 100 of the payload. With these exit codes Grid Engine
# would run the job again, even with `-r n`, or keep it in error.
EXIT_CODE_OF_SIGNAL = {62: 99, 63: 100}

_UNUSABLE_STATES = set("auEsdSDCo")  # letters of a queue's state that keep jobs from starting


@dataclass(frozen=True)
class QstatJob:
    """A job of qstat, or several tasks of an array."""

    id: str
    name: str
    owner: str
    state: str  # letters of qstat
    slots: int
    submitted: float | None = None  # epoch seconds
    started: float | None = None  # epoch seconds
    queue: str = ""  # queue instance (`queue@host`)
    tasks: str = ""  # task ids of an array
    requests: Mapping[str, str] = field(default_factory=dict)  # hard requests as written

    @property
    def is_waiting(self) -> bool:
        """Whether the job is on no host: pending, held or in error."""
        return "q" in self.state or "w" in self.state

    @property
    def was_rescheduled(self) -> bool:
        """Whether the cell has queued the job again after a start; it may have started since."""
        return "R" in self.state

    @property
    def never_started(self) -> bool:
        """Whether the job is on no host and never was."""
        return self.is_waiting and not self.was_rescheduled

    @property
    def waits_only_for_resources(self) -> bool:
        """Whether the job waits only for resources."""
        return self.state in ("qw", "Rq", "Rqw")

    @property
    def task_count(self) -> int:
        return count_tasks(self.tasks)

    @property
    def host(self) -> str:
        return self.queue.partition("@")[2]


class AccountingLine(NamedTuple):
    """A line of the accounting file: an ended run, or a failed start (`started` 0)."""

    host: str
    owner: str
    name: str
    id: str
    started: float  # epoch seconds
    ended: float  # epoch seconds
    failed: str  # code of the cause
    exit_status: int
    wall_seconds: float
    cpu_seconds: float
    category: str  # requests of the job
    max_memory: float  # bytes
    # whether sge_execd has reported the run: without page faults and memory nothing has run
    is_measured: bool
    submitted: float  # epoch seconds


@dataclass(frozen=True)
class QueueInstance:
    """A queue on a host."""

    name: str
    slots: int
    running: int  # slots of running jobs
    # slots of advance reservations: in qhost the maximum from now on, see `hosts_without_reserved`
    reserved: int
    state: str  # letters of qhost

    @property
    def used(self) -> int:
        return self.running + self.reserved

    @property
    def up(self) -> bool:
        return _UNUSABLE_STATES.isdisjoint(self.state)


@dataclass(frozen=True)
class ExecutionHost:
    """An execution host."""

    name: str
    memory: int | None  # MiB
    free: Mapping[str, float]  # remaining consumables, by name
    queues: tuple[QueueInstance, ...]


@dataclass(frozen=True)
class ComplexAttribute:
    """A resource attribute of the cell."""

    name: str
    consumable: str  # NO, YES (counted per slot) or JOB
    default: str = "0"  # amount of a job that requests none

    @property
    def default_amount(self) -> float:
        """Amount of a job, or of a slot, that requests none."""
        return parse_amounts({"": self.default}).get("", 0.0)

    def request_value(self, count: int, slots: int) -> int:
        """Return the value to request for `count` copies on so many slots.

        Raises ValueError if a count per slot cannot be divided equally.
        """
        if self.consumable == "YES":  # counted per slot
            if count % slots:
                raise ValueError(f"{count} {self.name} cannot be shared equally by {slots} slots")
            return count // slots
        return count


@dataclass(frozen=True)
class QueueLimits:
    """Limits of a queue."""

    hard_time: float | None  # seconds; None: no limit
    soft_time: float | None = None  # seconds until a job is warned; None: no limit
    memory: Mapping[str, float] = field(default_factory=dict)  # bytes per slot, by resource


TaskKey = tuple[str, int, str]  # tag, task index, and in site mode the owner of the job
NO_KNOWN_JOBS = KnownJobs({})


class OwnJobs:
    """Recognises the jobs of this instance, and of former instances, by name and owner."""

    def __init__(self, instances: frozenset[str], user: str) -> None:
        """`user` owns all these jobs; in site mode it is empty: any owner counts."""
        self.instances, self.user = instances, user

    def key(self, name: str, owner: str) -> TaskKey | None:
        """Return the task of a job; None if the job is not of this instance."""
        task = parse_job_name(name, self.instances)
        if task is None:
            return None
        if not self.user:
            return *task, owner
        return (*task, "") if owner == self.user else None

    def select(
        self,
        jobs: Iterable[QstatJob],
        known: KnownJobs = NO_KNOWN_JOBS,
        clock_lead: float = 0.0,
    ) -> dict[TaskKey, QstatJob]:
        """Return the jobs of this instance, by task; `known` ones also without their name."""
        return self.identify(jobs, known, clock_lead)[0]

    def identify(
        self, jobs: Iterable[QstatJob], known: KnownJobs, clock_lead: float
    ) -> tuple[dict[TaskKey, QstatJob], list[JobStatus], list[QuarantinedRow]]:
        """Return the jobs of this instance by task, and the others of `KnownJobs.identify`."""
        listed: dict[str, QstatJob] = {}
        tagged, untagged = [], []
        for job in jobs:
            key = self.key(job.name, job.owner)
            if key is not None:
                tagged.append(live_status(job, *key))
            elif job.id in known.by_id and self.user in ("", job.owner):
                untagged.append(live_status(job, "", 0, "" if self.user else job.owner))
            else:
                continue
            listed[job.id] = job
        rows, copies, undecided = known.identify(tagged, untagged, clock_lead)
        by_task = {(row.tag, row.task, row.owner): listed[row.native_id] for row in rows}
        return by_task, copies, undecided

    def renamed(self, jobs: Iterable[QstatJob], known: KnownJobs) -> list[QstatJob]:
        """Return jobs with known ids and other names."""
        return [
            job
            for job in jobs
            if (found := known.by_id.get(job.id)) is not None and self.user in ("", job.owner)
            if self.key(job.name, job.owner) != (found.tag, found.task, found.owner)
        ]

    def set_aside(self, jobs: Iterable[UnreadableJob]) -> dict[TaskKey, QuarantinedRow]:
        """Return the jobs that may be of this instance, by task.

        The qmaster writes the owner, so a job of another owner is none of this instance. A job
        without a name may be any task.
        """
        rows: dict[TaskKey, QuarantinedRow] = {}
        for name, owner, defect in jobs:
            key: TaskKey | None = ("", -1, "")
            if self.user and owner not in ("", self.user):
                key = None
            elif name:
                task = parse_job_name(name, self.instances)
                key = None if task is None else (*task, "" if self.user else owner)
            if key is not None:
                rows[key] = QuarantinedRow(*key, defect)
        return rows


class QstatListing(NamedTuple):
    """The jobs of qstat, pending jobs in the manager's order."""

    jobs: list[QstatJob]
    unreadable: list[UnreadableJob]


class UnreadableJob(NamedTuple):
    """A job of qstat, or a line of the accounting, with values that cannot be used."""

    name: str  # "": it cannot be read either
    owner: str  # "": it cannot be read either
    defect: str


def parse_jobs(xml: str) -> QstatListing:
    """Parse `qstat -xml -r -u '*'`: all jobs. Set aside those that cannot be read."""
    listed = QstatListing([], [])
    for element in xml_root(xml, "job_info").iter("job_list"):
        try:
            listed.jobs.append(_parse_job(element))
        except ValueError as error:
            owner = (element.findtext("JB_owner") or "").strip()
            listed.unreadable.append(UnreadableJob(_full_name(element), owner, str(error)))
    return listed


def _full_name(element: ElementTree.Element) -> str:
    """Return the name of a job; "" if it may be one of metasched, and only its head is listed."""
    name = (element.findtext("full_job_name") or "").strip()
    head = (element.findtext("JB_name") or "").strip()
    return name or ("" if head.startswith("ms-") else head)


def _parse_job(element: ElementTree.Element) -> QstatJob:
    def child_text(name: str) -> str:
        return (element.findtext(name) or "").strip()

    requests = {
        request.get("name", ""): (request.text or "").strip()
        for request in element.iter("hard_request")
    }
    job = QstatJob(
        id=str(parse_int(child_text("JB_job_number"))),
        name=_full_name(element),
        owner=child_text("JB_owner"),
        state=child_text("state"),
        slots=parse_int(child_text("slots") or "1"),
        submitted=parse_epoch_time(child_text("JB_submission_time")),
        started=parse_epoch_time(child_text("JAT_start_time")),
        queue=child_text("queue_name"),
        tasks=child_text("tasks"),
        requests=requests,
    )
    parse_seconds(requests.get("h_rt", ""))
    if not (job.name and job.owner and job.state and job.task_count > 0 and job.slots >= 0):
        raise ValueError(f"job {job.id} has no name, owner, state or tasks")
    return job


def parse_submissions(xml: str) -> dict[str, float]:
    """Parse `qstat -j -xml`: the times of submission by job id; leave out unreadable jobs."""
    times = {}
    for element in xml_root(xml, "detailed_job_info").iter("element"):
        number, submitted = (
            element.findtext(name) for name in ("JB_job_number", "JB_submission_time")
        )
        if number and submitted:
            with suppress(ValueError):
                times[str(parse_int(number))] = epoch_seconds(submitted)
    return times


def parse_hosts(xml: str) -> list[ExecutionHost]:
    """Parse `qhost -xml -q -F`: all execution hosts but those that cannot be read."""
    hosts = []
    for element in xml_root(xml, "qhost").iter("host"):
        if element.get("name") != "global":
            with suppress(ValueError, KeyError):
                hosts.append(_parse_host(element))
    return hosts


def parse_global_licences(xml: str, totals: Mapping[str, float]) -> dict[str, ManagerLicences]:
    """Parse `qhost -xml -F`: used copies of the consumables of the host `global`."""
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
    """Parse `qconf -se`: the total of each consumable that a host counts."""
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
        running = parse_int(values["slots_used"])
        reserved = parse_int(values.get("slots_resv") or "0")
        name, state = queue.get("name", ""), values["state_string"].strip()
        queues.append(QueueInstance(name, parse_int(values["slots"]), running, reserved, state))
    return ExecutionHost(
        name=element.get("name", ""),
        memory=None if total == "-" else int(parse_amount(total) / 2**20),
        free=free,
        queues=tuple(queues),
    )


def xml_root(xml: str, name: str) -> ElementTree.Element:
    """Return the root element, which must have this name. ValueError otherwise."""
    try:
        # a job's texts may contain characters that XML excludes
        element = ElementTree.fromstring(
            _NOT_IN_XML.sub(_REPLACEMENT, _REFERENCE.sub(_reference, xml))
        )
    except ElementTree.ParseError as error:
        raise ValueError(f"no XML: {error}") from None
    if element.tag != name:
        raise ValueError(f"<{element.tag}> where <{name}> was expected")
    return element


def _reference(match: re.Match[str]) -> str:
    """Return a reference to a character if XML allows the character, else its replacement."""
    digits = match[1]
    number = int(digits[1:], 16) if digits[0] == "x" else int(digits)
    is_allowed = number <= sys.maxunicode and not _NOT_IN_XML.match(chr(number))
    return match[0] if is_allowed else _REPLACEMENT


def parse_epoch_time(text: str) -> float | None:
    """Parse `2030-01-31T08:00:00` under TZ=UTC as epoch seconds; None for an empty text."""
    return float(timegm(strptime(text, "%Y-%m-%dT%H:%M:%S"))) if text else None


def parse_amount(text: str) -> float:
    """Parse a number with a memory unit, such as `22.889G`; infinity becomes a large number."""
    scale = _UNITS.get(text[-1:], 1)
    amount = float(text[:-1] if text[-1:] in _UNITS else text) * scale
    if math.isnan(amount):
        raise ValueError(f"{text[:40]!r} is no amount")
    return max(-_MAX_AMOUNT, min(amount, _MAX_AMOUNT))


def parse_int(text: str) -> int:
    """Return the number that a field contains. Raises ValueError, also for more than 18 digits."""
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"{text[:40]!r} is no number")
    return int(text)


def parse_amounts(values: Mapping[str, str]) -> dict[str, float]:
    """Parse the values that are amounts; drop the others."""
    return {name: parse_amount(value) for name, value in values.items() if _AMOUNT.fullmatch(value)}


def parse_seconds(text: str) -> float | None:
    """Parse `3600`, `1:00:00` or `INFINITY` (None) as seconds; overrides by host are ignored."""
    text = text.partition(",")[0].strip()
    if text.upper() in _UNLIMITED:
        return None
    total = 0.0
    for part in text.split(":"):
        total = total * 60 + float(part or 0)
    if not 0 <= total <= _MAX_AMOUNT:
        raise ValueError(f"{text[:40]!r} is no duration")
    return total


def count_tasks(text: str) -> int:
    """Count the tasks of `3-20:1,25`; an empty text and `7` count as 1."""
    count = 0
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        stride = parse_int(step or "1")
        if stride < 1:
            raise ValueError(f"a step of {step!r} in {text[:40]!r}")
        count += max((parse_int(last) - parse_int(first)) // stride + 1, 0) if dash else 1
    return count


def parse_settings(text: str) -> dict[str, str]:
    """Parse the `name  value` lines of qconf, with continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", text)
    pairs = (line.split(None, 1) for line in joined.splitlines() if line.strip())
    return {pair[0]: pair[1].strip() if len(pair) > 1 else "" for pair in pairs}


def parse_queue_limits(text: str) -> dict[str, QueueLimits]:
    """Parse `qconf -sq '*'`: the limits of each queue."""
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
    """Return the lowest amount in `4G,[n1=2G],[@big=INFINITY]`."""
    values = re.findall(r"(?:^|=)([^],\s]+)", listed)
    return min(parse_amounts({value: value for value in values}).values(), default=math.inf)


def parse_complexes(text: str) -> dict[str, ComplexAttribute]:
    """Parse `qconf -sc`: the resource attributes, by name."""
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {row[0]: ComplexAttribute(row[0], row[5], row[6]) for row in rows if len(row) == 8}


def parse_accounting_delay(configuration: str) -> float:
    """Parse `qconf -sconf`: seconds for which the qmaster may delay accounting lines."""
    parameters = _parse_pairs(parse_settings(configuration).get("reporting_params", ""))
    flush_time = (
        parameters.get("accounting_flush_time") or parameters.get("flush_time") or "00:00:15"
    )
    return parse_seconds(flush_time) or 0.0


def parse_release(text: str) -> str:
    """Parse `qstat -help`: the release of the cell's commands, such as SGE 8.1.9."""
    return text.strip().partition("\n")[0]


def parse_qmaster_times(text: str) -> tuple[float, float]:
    """Parse `qping -info`: the qmaster's start and time, whole epoch seconds by its clock."""
    started = re.search(r"^start time: .*\((\d{1,18})\)$", text, re.MULTILINE)
    runs_for = re.search(r"^run time \[s\]:\s+(\d{1,18})$", text, re.MULTILINE)
    if started is None or runs_for is None:
        raise ValueError("no start time and run time of the qmaster")
    # by the same clock, so that a step of it since the start is in the sum
    start, now = float(started[1]), float(started[1]) + float(runs_for[1])
    if not (is_time(start) and is_time(now)):
        raise ValueError(f"no time: {now}")
    return start, now


def parse_duration_offset(scheduler: str) -> float:
    """Parse `qconf -ssconf`: seconds for which a job keeps its slots after its limit."""
    parameters = _parse_pairs(parse_settings(scheduler).get("params", "").upper())
    return parse_seconds(parameters.get("DURATION_OFFSET", "60")) or 0.0


def _parse_pairs(pairs: str) -> dict[str, str]:
    """Parse `a=1,b=2 c=3;d=4`."""
    return dict(pair.partition("=")[::2] for pair in re.split(r"[\s,;]+", pairs))


def parse_accounting_line(line: str) -> AccountingLine:
    """Parse a line of the accounting file."""
    fields = line.rstrip("\n").split(":")
    if len(fields) < 43:
        raise ValueError(f"a line of the accounting has {len(fields)} fields")
    return AccountingLine(
        host=fields[1],
        owner=fields[3],
        name=fields[4],
        id=str(parse_int(fields[5])),
        started=epoch_seconds(fields[9]),
        ended=epoch_seconds(fields[10]),
        failed=(fields[11].split(None, 1) or [""])[0],
        exit_status=parse_int(fields[12]),
        wall_seconds=parse_amount(fields[13]),
        cpu_seconds=parse_amount(fields[36]),
        category=fields[39],
        max_memory=parse_amount(fields[42]),
        is_measured=any(parse_amount(fields[column]) for column in _USAGE_COLUMNS),
        submitted=epoch_seconds(fields[8]),
    )


def epoch_seconds(text: str) -> float:
    """Parse a time in seconds, or in milliseconds as some descendants of Grid Engine write."""
    value = float(parse_int(text))
    seconds = value / 1000 if value > 1e11 else value
    if not is_time(seconds):
        raise ValueError(f"{text!r} is no time")
    return seconds


def job_name(tag: str, index: int) -> str:
    """Return the name of a task's job: the tag, with the index unless it is 0."""
    return f"{tag}.{index}" if index else tag


def parse_job_name(name: str, instances: frozenset[str]) -> tuple[str, int] | None:
    """Return (tag, index) of a name made by `job_name` for an instance; None for other names."""
    tag, dot, index_text = name.partition(".")
    index = parse_number(index_text, MAX_INDEX) if dot else 0
    if index is None or (dot and index == 0) or parse_tag(tag, instances) is None:
        return None
    return tag, index


def live_status(job: QstatJob, tag: str, task: int, owner: str = "") -> JobStatus:
    """Return the status of a job that qstat lists."""
    started = job.started
    if job.is_waiting or ("t" in job.state and not job.was_rescheduled):
        # a requeued job has started before, at a time that is no longer known
        started = job.submitted if job.was_rescheduled else None
    state = _state(job.state)
    return JobStatus(
        tag=tag,
        task=task,
        native_id=job.id,
        state=state,
        started=started,
        manager_reason="" if job.state in ("r", "qw") else job.state,
        node=job.host,
        restarts=int(job.was_rescheduled),
        # no command shows when the host has ended the former run
        restart_stays=job.was_rescheduled and state is State.PENDING,
        owner=owner,
        submitted=job.submitted,
    )


def _state(letters: str) -> State:
    if "q" in letters or "w" in letters or "t" in letters:
        return State.PENDING
    if not set(letters).isdisjoint("sSTNP"):
        return State.SUSPENDED
    return State.RUNNING if "r" in letters else State.UNKNOWN


def ended_status(line: AccountingLine, tag: str, task: int, killed: bool) -> JobStatus | None:
    """Return the status of an ended job; None if the job was queued again or never started.

    `killed`: metasched requested its end; in the accounting it looks like any end by a signal.
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
        reached_limit = requested_time and line.wall_seconds >= requested_time
        if _HARD_MEMORY_REQUEST.search(line.category) and not reached_limit:
            state = State.OUT_OF_MEMORY
    elif line.failed == _AFTER_JOB and signal is not None and killed:
        state = State.CANCELLED
    elif line.failed not in ("0", _AFTER_JOB):
        state, code, signal = State.NODE_FAIL, None, None
    elif line.failed == "0" and state is State.COMPLETED and not line.is_measured:
        # the qmaster writes exit status 0 for a job that it forgets by `qdel -f`
        state, code, message = State.CANCELLED, None, "removed by force"
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
        submitted=line.submitted,
    )


def usable_slots(host: ExecutionHost, include_down: bool = False) -> int:
    """Return the slots of a host that its queues can give to jobs; 0 if all queues are down.

    With `include_down` queues that are down count too.
    """
    total = sum(queue.slots for queue in host.queues if queue.up or include_down)
    used = sum(queue.running for queue in host.queues)
    return min(total, int(host.free["slots"]) + used) if "slots" in host.free else total
