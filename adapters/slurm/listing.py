"""What Slurm's listings say, read into the model: pure text in, rows and facts out.

Written for the answers of Slurm 22.05 to 26.05 under SLURM_TIME_FORMAT=%s, --noconvert and
SLURM_BITSTR_LEN=0 (times in epoch seconds, plain numbers, array ranges in full). Text that
cannot be read raises ValueError: a listing that is understood by half proves nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from metasched.model.arrays import parse_array
from metasched.model.cluster import ManagerLicences
from metasched.model.job import State
from metasched.model.listing import JobStatus
from metasched.model.tags import parse_tag

IDS_PER_CALL = 500
NO_LIMIT = 365 * 86400.0  # seconds; stands for a job's UNLIMITED where a number is needed
_LIMIT_CHECK_INTERVAL = 30.0  # seconds between two looks of slurmctld at time limits

QUEUE_FIELDS = (
    *("jobarrayid", "userid", "state", "partition", "numcpus", "timelimit", "submittime"),
    *("eligibletime", "starttime", "endtime", "restartcnt", "exit_code", "prioritylong"),
    *("nodelist", "reason"),
)
NODE_FIELDS = (
    *("nodelist", "statecomplete", "partition", "cpusstate", "memory", "allocmem", "gres"),
    *("gresused", "features_act", "available", "time", "defaulttime", "size", "prioritytier"),
)

_STATES = {
    "PENDING": State.PENDING,
    "REQUEUED": State.PENDING,
    "REQUEUE_FED": State.PENDING,
    "REQUEUE_HOLD": State.PENDING,
    "RESV_DEL_HOLD": State.PENDING,
    "SPECIAL_EXIT": State.PENDING,
    "CONFIGURING": State.PENDING,  # nodes are being made ready; the script has not begun
    "RUNNING": State.RUNNING,
    "COMPLETING": State.RUNNING,
    "RESIZING": State.RUNNING,
    "SIGNALING": State.RUNNING,
    "STAGE_OUT": State.RUNNING,
    "SUSPENDED": State.SUSPENDED,
    "STOPPED": State.SUSPENDED,
    "COMPLETED": State.COMPLETED,
    "FAILED": State.FAILED,
    "LAUNCH_FAILED": State.FAILED,
    "RECONFIG_FAIL": State.FAILED,
    "TIMEOUT": State.TIMEOUT,
    "DEADLINE": State.TIMEOUT,
    "CANCELLED": State.CANCELLED,
    "NODE_FAIL": State.NODE_FAIL,
    "BOOT_FAIL": State.NODE_FAIL,
    "PREEMPTED": State.PREEMPTED,
    "OUT_OF_MEMORY": State.OUT_OF_MEMORY,
    "REVOKED": State.UNKNOWN,  # a sibling of a federation has taken it over
}
_HOLDS_PROCESSORS = {State.RUNNING, State.SUSPENDED}
_ACTIVE = {State.PENDING, State.RUNNING, State.SUSPENDED, State.UNKNOWN}
_HAS_STATUS = {
    *(State.COMPLETED, State.FAILED, State.TIMEOUT, State.CANCELLED),
    *(State.PREEMPTED, State.OUT_OF_MEMORY),
}
EMPTY_VALUES = {"", "(null)", "None", "N/A", "Unknown", "NONE"}

# Reasons with which a pending job takes no part in the competition for processors. Limits of
# accounts and of QOS (Assoc..., QOS...) too: Slurm passes such jobs over.
_CANNOT_START = re.compile(
    r"JobHeld|Dependency|BeginTime|Partition(Config|Down|Inactive|NodeLimit|TimeLimit)"
    r"|BadConstraints|InactiveLimit|Invalid(Account|QOS)|AccountNotAllowed|QOSNotAllowed"
    r"|Assoc|QOS|JobArrayTaskLimit|ReservationDeleted|Reservation$|launch_failed|job_requeued"
)
UNUSABLE_FLAGS = {
    *("down", "unknown", "error", "future", "drain", "fail", "not_responding", "invalid_reg"),
    *("invalid", "reboot_requested", "reboot_issued", "powering_down", "maint", "reserved"),
    *("blocked", "dynamic_future"),
}


class QueueLine(NamedTuple):
    """One record of squeue, as printed; `tag` is the comment or the name."""

    id: str
    user: str
    state: str
    partition: str
    cpus: str
    limit: str
    submitted: str
    eligible: str
    start: str
    end: str
    restarts: str
    status: str
    priority: str
    nodes: str
    reason: str
    tag: str


class NodeLine(NamedTuple):
    """One record of `sinfo -N`: a node in one of its partitions, as printed."""

    name: str
    state: str
    partition: str
    cpus: str  # allocated/idle/other/total
    memory: str
    used_memory: str
    gres: str
    used_gres: str
    features: str
    available: str
    limit: str
    default_limit: str
    job_sizes: str  # least-most nodes of a job
    priority_tier: str


@dataclass(frozen=True)
class ControllerInfo:
    """What `scontrol show config` says, in the controller's clock (seconds).

    `min_job_age` None: ended jobs are never forgotten. Task ids of an array are below
    `array_size`. `slurmdbd`: there is accounting, which keeps comments if `comments`; `completions`
    is the file of jobcomp/filetxt. `overrun` are the seconds for which a job may hold its nodes
    after its limit; None: not told. `select` is what chooses nodes.
    """

    now: float
    boot: float
    min_job_age: float | None
    array_size: int = 0
    slurmdbd: bool = False
    comments: bool = False
    completions: str | None = None
    overrun: float | None = None
    select: str = ""


def comma_lists(ids: Collection[str]) -> Iterator[str]:
    """The ids as comma-separated lists, none too long for a command line."""
    id_list = list(ids)
    for start in range(0, len(id_list), IDS_PER_CALL):
        yield ",".join(id_list[start : start + IDS_PER_CALL])


def job_arguments(ids: Collection[str]) -> Iterator[list[str]]:
    """The ids as words for scontrol and scancel, which take `7_[1-3,9]` for tasks of an array.

    They take no steps (`1-9:2`), unlike sbatch.
    """
    arrays: dict[str, list[int]] = {}
    for native_id in ids:
        job, _, task = native_id.partition("_")
        arrays.setdefault(job, []).extend([int(task)] if task else [])
    parts = [
        (job, part) for job, tasks in arrays.items() for part in _ranges(sorted(tasks)) or [""]
    ]
    for start in range(0, len(parts), IDS_PER_CALL):
        parts_by_job: dict[str, list[str]] = {}
        for job, part in parts[start : start + IDS_PER_CALL]:
            parts_by_job.setdefault(job, []).append(part)
        yield [
            f"{job}_[{','.join(job_parts)}]" if job_parts[0] else job
            for job, job_parts in parts_by_job.items()
        ]


def _ranges(tasks: Sequence[int]) -> list[str]:
    """Ascending numbers as ranges: `1-3`, `7`."""
    ranges = []
    for _, run in groupby(enumerate(tasks), key=lambda pair: pair[1] - pair[0]):
        numbers = [task for _, task in run]
        ranges.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ranges


def separate_arrays(ids: Iterable[str]) -> tuple[list[str], list[str]]:
    """The ids in two parts, no array whole in the first one, and one task of each in the second.

    Held so, every task gets a record of its own, which tells what has become of it.
    """
    first, last_by_array = [], {}
    for native_id in ids:
        array, underscore, _ = native_id.partition("_")
        if underscore and array not in last_by_array:
            last_by_array[array] = native_id
        else:
            first.append(native_id)
    return first, list(last_by_array.values())


def split_records(text: str, delimiter: str, width: int) -> list[list[str]]:
    """Lines of `width` fields that each end in `delimiter`, whatever newlines they hold."""
    if not text.strip():
        return []
    fields = text.split(delimiter)
    if len(fields) % width != 1 or fields.pop().strip():
        raise ValueError(f"{len(fields)} fields cannot be read as lines of {width}")
    lines = [fields[i : i + width] for i in range(0, len(fields), width)]
    for line in lines[1:]:
        if not line[0].startswith("\n"):
            raise ValueError(f"a line begins with {line[0][:20]!r}")
        line[0] = line[0][1:]
    return lines


def parse_queue(text: str, delimiter: str) -> list[QueueLine]:
    """The records of squeue with QUEUE_FIELDS and the field of the tag, all ending so."""
    return [QueueLine(*line) for line in split_records(text, delimiter, len(QueueLine._fields))]


def parse_nodes(text: str, delimiter: str) -> list[NodeLine]:
    """The records of sinfo with NODE_FIELDS, all ending in `delimiter`."""
    return [NodeLine(*line) for line in split_records(text, delimiter, len(NodeLine._fields))]


def parse_controller(text: str) -> ControllerInfo:
    """What the answer of `scontrol show config` says. ValueError if a time is not in it."""
    now = re.search(r"^Configuration data as of (\d+)", text, re.MULTILINE)
    config = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", text, re.MULTILINE))
    if now is None or "BOOT_TIME" not in config or "MinJobAge" not in config:
        raise ValueError("no times in the answer of scontrol show config")
    return ControllerInfo(
        now=float(now[1]),
        boot=float(config["BOOT_TIME"]),
        min_job_age=float(config["MinJobAge"].split()[0]) or None,
        array_size=int(config.get("MaxArraySize", 0)),
        slurmdbd=config.get("AccountingStorageType") == "accounting_storage/slurmdbd",
        comments="job_comment" in config.get("AccountingStoreFlags", "").split(","),
        completions=config.get("JobCompLoc")
        if config.get("JobCompType") == "jobcomp/filetxt"
        else None,
        overrun=_overrun(config),
        select=config.get("SelectType", ""),
    )


def _overrun(config: Mapping[str, str]) -> float | None:
    allowed, kill_wait = config.get("OverTimeLimit", ""), config.get("KillWait", "")
    if not (allowed and kill_wait):
        return None
    if allowed == "UNLIMITED":
        return NO_LIMIT
    return 60.0 * float(allowed.split()[0]) + float(kill_wait.split()[0]) + _LIMIT_CHECK_INTERVAL


def parse_licences(text: str) -> dict[str, ManagerLicences]:
    """The licences of `scontrol --oneliner show licenses`, those that others reserve as taken."""
    licences = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if "LicenseName" not in fields:
            continue
        if not {"Total", "Free"} <= fields.keys():
            raise ValueError(f"no number of licences in {line[:100]!r}")
        total, free = int(fields["Total"]), int(fields["Free"])
        licences[fields["LicenseName"]] = ManagerLicences(total, max(total - free, 0))
    return licences


def parse_release(text: str) -> tuple[int, int]:
    """Major and minor number in `slurm 24.11.5` or `slurm-wlm 22.05.8`."""
    match = re.match(r"slurm\S* (\d+)\.(\d+)", text)
    if match is None:
        raise ValueError(f"{text[:40]!r} tells no release of Slurm")
    return int(match[1]), int(match[2])


def parse_time(text: str) -> float | None:
    """A time of day; None where Slurm has none."""
    return None if text in EMPTY_VALUES else float(int(text))


def parse_duration(text: str) -> float | None:
    """Seconds of `[D-]HH:MM:SS` or `MM:SS`; None for no limit and for none said."""
    if text.lower() in {"unlimited", "infinite", "not_set", "partition_limit", "n/a", "invalid"}:
        return None
    days, dash, rest = text.rpartition("-")
    seconds = 0
    for part in rest.split(":"):
        seconds = seconds * 60 + int(part)
    return float(seconds + (int(days) * 86400 if dash else 0))


def parse_exit_status(text: str) -> tuple[int | None, int | None]:
    """(exit code, signal) from a wait status such as 2304, or from `9:0` of later releases.

    Both None if it is neither: a code above zero together with a signal is Slurm's own error
    number (4021: the script could not be launched).
    """
    code, colon, signal = text.partition(":")
    status = (int(code), int(signal)) if colon else (int(code) >> 8, int(code) & 0x7F)
    match status:
        case (code_, 0):
            return code_, None
        case (0, signal_):
            return None, signal_
    return None, None


def task_count(job: str) -> int:
    """How many tasks a record stands for: `7_[1-9:2,12%3]` for six, `7` and `7_4` for one."""
    match = re.search(r"_\[([^\]%]*)", job)
    if match is None:
        return 1
    count = 0
    for part in match[1].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        count += (int(last or first) - int(first)) // int(step or 1) + 1
    return count


def parse_gres(text: str) -> dict[str, int]:
    """`gpu:a100:2(S:0-1),shard:8` as {"gpu": 2, "gpu:a100": 2, "shard": 8}."""
    counts: Counter[str] = Counter()
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        *names, count = part.split(":")
        if names and count.isdecimal():
            for depth in range(1, len(names) + 1):
                counts[":".join(names[:depth])] += int(count)
    return dict(counts)


def format_mark(tag: str, index: int | None) -> str:
    """What a job carries in Slurm: the tag of its sending, with its index if that is not 0.

    None: an array, whose tasks are told by their ids.
    """
    return f"{tag}/a" if index is None else f"{tag}/{index}" if index else tag


def parse_mark(text: str, job: str) -> dict[tuple[str, int], str]:
    """The tasks, as (tag, index), that a job with this mark and id stands for, with their ids.

    None for other people's texts, nor for an array of which all that waited was cancelled at once.
    """
    tag, _, index = text.partition("/")
    if index != "a":
        return {(tag, int(index or 0)): job} if not index or index.isdecimal() else {}
    array, _, tasks = job.partition("_")
    if not tasks:
        return {}
    return {(tag, i): f"{array}_{i}" for i in parse_array(tasks.strip("[]")).indices}


def parse_state(name: str) -> State:
    """The state that a word of Slurm's means."""
    return _STATES.get(name, State.UNKNOWN)


def has_ended(state: State) -> bool:
    return state in _HAS_STATUS or state is State.NODE_FAIL


def is_active(line: QueueLine) -> bool:
    """Whether the job has not ended."""
    return parse_state(line.state) in _ACTIVE


def is_own(line: QueueLine, instance: str, user: int | None) -> bool:
    """Whether it is a job of `instance`, and of `user`, if any: others may forge a tag."""
    return (
        user in (None, int(line.user))
        and parse_tag(line.tag.partition("/")[0], instance) is not None
    )


def job_statuses(lines: Iterable[QueueLine], instance: str, user: int | None) -> list[JobStatus]:
    """Our tasks; if `user` is None each with the user id of its owner."""
    return [
        status
        for line in lines
        if is_own(line, instance, user)
        for status in _statuses_of(line, "" if user is not None else str(int(line.user)))
    ]


def _statuses_of(line: QueueLine, owner: str) -> Iterator[JobStatus]:
    """The tasks that a record of ours stands for."""
    tasks = parse_mark(line.tag, line.id)
    current = parse_state(line.state)
    started, code, signal = _start_time(line, current), None, None
    if started is not None and current in _HAS_STATUS:
        code, signal = parse_exit_status(line.status)
    ended = parse_time(line.end) if has_ended(current) else None
    manager_reason = "" if line.reason in EMPTY_VALUES else line.reason
    node = "" if line.nodes in EMPTY_VALUES else line.nodes
    restarts = int(line.restarts)
    # of several tasks Slurm says when the last one begins that it has planned, and not which
    expected = _expected_start(line) if current is State.PENDING and len(tasks) == 1 else None
    for (tag, task), native_id in tasks.items():
        yield JobStatus(
            tag=tag,
            task=task,
            native_id=native_id,
            state=current,
            started=started,
            ended=ended,
            exit_code=code,
            signal=signal,
            manager_reason=manager_reason,
            node=node,
            restarts=restarts,
            owner=owner,
            expected=expected,
        )


def _expected_start(line: QueueLine) -> float | None:
    """When Slurm expects a pending job to begin; what is held keeps what was planned before."""
    return None if line.eligible in EMPTY_VALUES else parse_time(line.start)


def _start_time(line: QueueLine, state: State) -> float | None:
    """When it began; None if it never did.

    A job that is cancelled while pending gets a start time too, but never a node. One that was
    requeued has begun before; when, is no longer known: at the latest when it was requeued.
    """
    if int(line.restarts) > 0 and state is State.PENDING:
        return parse_time(line.submitted)
    if state is State.PENDING:
        return None
    if state in _HOLDS_PROCESSORS or line.nodes not in EMPTY_VALUES or int(line.restarts) > 0:
        start = parse_time(line.start)
        return parse_time(line.submitted) if start is None else start
    return None
