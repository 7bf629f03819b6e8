"""Output of Slurm's commands, parsed: jobs, nodes, the controller. Pure.

Written for Slurm 22.05 to 26.05 with SLURM_TIME_FORMAT=%s, --noconvert and SLURM_BITSTR_LEN=0
(times in epoch seconds, plain numbers, array ranges in full). Functions raise ValueError for
unexpected text. A line that cannot be read is set aside: its task is never taken as absent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from metasched.adapters.slurm.records import EMPTY_VALUES, parse_int, split_records
from metasched.model.arrays import MAX_INDEX, parse_array
from metasched.model.cluster import ManagerLicences
from metasched.model.job import State
from metasched.model.tags import parse_number

IDS_PER_CALL = 500  # job ids in a command line
MAX_DISPATCHED_TASKS = 1000  # with one tag; `Slurm.chunk` is far below
NO_LIMIT = 365 * 86400.0  # seconds; stands for UNLIMITED where a number is needed
_LIMIT_CHECK_INTERVAL = 30.0  # seconds between checks of time limits by slurmctld

QUEUE_FIELDS = (
    *("jobarrayid", "userid", "state", "partition", "numcpus", "timelimit", "submittime"),
    *("eligibletime", "starttime", "endtime", "restartcnt", "exit_code", "prioritylong"),
    *("nodelist", "reason"),
)
NODE_FIELDS = (
    *("nodelist", "statecomplete", "partition", "cpusstate", "memory", "allocmem", "gres"),
    *("gresused", "features_act", "available", "time", "defaulttime", "size", "prioritytier"),
)

STATES = {
    "PENDING": State.PENDING,
    "REQUEUED": State.PENDING,
    "REQUEUE_FED": State.PENDING,
    "REQUEUE_HOLD": State.PENDING,
    "RESV_DEL_HOLD": State.PENDING,
    "SPECIAL_EXIT": State.PENDING,
    "CONFIGURING": State.PENDING,  # nodes are being prepared; the script has not started
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
HOLDS_PROCESSORS = {State.RUNNING, State.SUSPENDED}
_ACTIVE = {State.PENDING, State.RUNNING, State.SUSPENDED, State.UNKNOWN}
HAS_STATUS = {
    *(State.COMPLETED, State.FAILED, State.TIMEOUT, State.CANCELLED),
    *(State.PREEMPTED, State.OUT_OF_MEMORY),
}


UNUSABLE_FLAGS = {
    *("down", "unknown", "error", "future", "drain", "fail", "not_responding", "invalid_reg"),
    *("invalid", "reboot_requested", "reboot_issued", "powering_down", "maint", "reserved"),
    *("blocked", "dynamic_future"),
}


class QueueLine(NamedTuple):
    """One record of squeue, as printed."""

    id: str  # 7, 7_4 or, for pending tasks of an array, 7_[1-9:2,12]
    user: str  # user id
    state: str
    partition: str
    cpus: str  # a number or, of a pending job, a range
    limit: str  # [D-]HH:MM:SS
    submitted: str
    eligible: str
    start: str
    end: str
    restarts: str
    status: str  # exit status
    priority: str
    nodes: str
    reason: str
    tag: str  # the comment, wckey or name


class QueueListing(NamedTuple):
    """The records of squeue."""

    lines: list[QueueLine]
    unreadable: str = ""  # a line that is no record; with it, no job is certainly absent


class SinfoRecord(NamedTuple):
    """A record of `sinfo -N`: a node in one of its partitions, as printed."""

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
    job_sizes: str  # minimum-maximum nodes of a job
    priority_tier: str


@dataclass(frozen=True)
class ControllerInfo:
    """The output of `scontrol show config`."""

    now: float  # epoch seconds of the controller's clock
    boot: float  # epoch seconds of the controller's clock
    min_job_age: float | None  # seconds that ended jobs stay listed; None: without limit
    array_size: int = 0  # task ids of an array are below it
    slurmdbd: bool = False  # accounting by slurmdbd
    comments: bool = False  # slurmdbd stores comments
    completions: str | None = None  # path of the file of jobcomp/filetxt
    overrun: float | None = None  # seconds a job may hold nodes after its limit; None: unknown
    select: str = ""  # SelectType
    cluster: str = ""  # ClusterName
    requires_associations: bool = False  # jobs of users without association are rejected
    max_job_id: int | None = None  # MaxJobId; ids of a federation are higher
    in_order: bool = False  # SchedulerType starts no job before an earlier job
    hides_jobs: bool = False  # it lists jobs to their owners and to operators only (PrivateData)
    slurm_user: int | None = None  # user id of SlurmUser
    slurmd_user: int | None = None  # user id of SlurmdUser


def comma_lists(ids: Collection[str]) -> Iterator[str]:
    """Yield the ids as comma-separated lists that fit into a command line."""
    id_list = list(ids)
    for start in range(0, len(id_list), IDS_PER_CALL):
        yield ",".join(id_list[start : start + IDS_PER_CALL])


def job_arguments(ids: Collection[str]) -> Iterator[list[str]]:
    """Yield the ids as arguments of scontrol and scancel, tasks of an array as `7_[1-3,9]`.

    Unlike sbatch, these commands take no steps (`1-9:2`).
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
    """Return ascending numbers as ranges: `1-3`, `7`."""
    ranges = []
    for _, run in groupby(enumerate(tasks), key=lambda pair: pair[1] - pair[0]):
        numbers = [task for _, task in run]
        ranges.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ranges


def separate_arrays(ids: Iterable[str]) -> tuple[list[str], list[str]]:
    """Divide the ids into two lists; the second contains a single task of each array.

    If the lists are held in turn, Slurm splits off a record for every task. The
    record later shows the task's end.
    """
    first, last_by_array = [], {}
    for native_id in ids:
        array, underscore, _ = native_id.partition("_")
        if underscore and array not in last_by_array:
            last_by_array[array] = native_id
        else:
            first.append(native_id)
    return first, list(last_by_array.values())


def parse_queue(text: str, delimiter: str) -> QueueListing:
    """Parse the output of squeue with QUEUE_FIELDS and the tag's field."""
    records, unreadable = split_records(text, delimiter, len(QueueLine._fields))
    return QueueListing([QueueLine(*record) for record in records], unreadable)


def parse_accounts(text: str, delimiter: str) -> dict[str, str]:
    """Parse the output of squeue with job ids and accounts; leave out lines that are no records."""
    records, _ = split_records(text, delimiter, 2)
    return {record[0]: record[1] for record in records}


def parse_nodes(text: str, delimiter: str) -> list[SinfoRecord]:
    """Parse the output of sinfo with NODE_FIELDS; leave out lines that cannot be read."""
    records, _ = split_records(text, delimiter, len(SinfoRecord._fields))
    return [line for record in records if _is_readable_node(line := SinfoRecord(*record))]


def _is_readable_node(line: SinfoRecord) -> bool:
    try:
        cpus = [parse_int(count) for count in line.cpus.split("/")]
        numbers = (line.memory, line.used_memory, line.priority_tier)
        amounts = [*cpus, *map(parse_int, numbers)]
        parse_duration(line.limit), parse_duration(line.default_limit)
        parse_gres(line.gres), parse_gres(line.used_gres)
        if (most := line.job_sizes.rpartition("-")[2]).isdecimal():
            parse_int(most)
    except ValueError:
        return False
    return len(cpus) == 4 and min(amounts) >= 0


def parse_controller(text: str) -> ControllerInfo:
    """Parse the output of `scontrol show config`."""
    now = re.search(r"^Configuration data as of (\d+)", text, re.MULTILINE)
    config = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", text, re.MULTILINE))
    if now is None or "BOOT_TIME" not in config or "MinJobAge" not in config:
        raise ValueError("no times in the output of scontrol show config")
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
        cluster=config.get("ClusterName", ""),
        requires_associations="associations"
        in config.get("AccountingStorageEnforce", "").split(","),
        max_job_id=int(config["MaxJobId"]) if config.get("MaxJobId", "").isdecimal() else None,
        in_order=config.get("SchedulerType") == "sched/builtin",
        hides_jobs="jobs" in config.get("PrivateData", "").split(","),
        slurm_user=_uid(config.get("SlurmUser", "")),
        slurmd_user=_uid(config.get("SlurmdUser", "")),
    )


def _uid(account: str) -> int | None:
    """Return the user id of `slurm(64030)`."""
    match = re.fullmatch(r".*\((\d+)\)", account)
    return int(match[1]) if match else None


def parse_admin_level(text: str, user: str) -> str:
    """Return the AdminLevel of a user in `scontrol show assoc_mgr flags=users`; "" if unknown."""
    match = re.search(rf"^UserName={re.escape(user)}\(.* AdminLevel=(\S+)", text, re.MULTILINE)
    return match[1] if match else ""


def parse_federation(text: str) -> bool:
    """Return whether `scontrol show federation` shows that the cluster is in a federation."""
    return text.lstrip().startswith("Federation:")


def _overrun(config: Mapping[str, str]) -> float | None:
    allowed, kill_wait = config.get("OverTimeLimit", ""), config.get("KillWait", "")
    if not (allowed and kill_wait):
        return None
    if allowed == "UNLIMITED":
        return NO_LIMIT
    return 60.0 * float(allowed.split()[0]) + float(kill_wait.split()[0]) + _LIMIT_CHECK_INTERVAL


def parse_licences(text: str) -> dict[str, ManagerLicences]:
    """Parse the output of `scontrol --oneliner show licenses`; reserved licences count as used."""
    licences = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if "LicenseName" not in fields:
            continue
        if not {"Total", "Free"} <= fields.keys():
            raise ValueError(f"no number of licences in {line[:100]!r}")
        total, free = parse_int(fields["Total"]), parse_int(fields["Free"])
        licences[fields["LicenseName"]] = ManagerLicences(total, max(total - free, 0))
    return licences


def parse_release(text: str) -> tuple[int, int]:
    """Return (major, minor) of `slurm 24.11.5` or `slurm-wlm 22.05.8`."""
    match = re.match(r"slurm\S* (\d+)\.(\d+)", text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is no release of Slurm")
    return int(match[1]), int(match[2])


def parse_epoch_time(text: str) -> float | None:
    """Return epoch seconds; None if the field is empty."""
    return None if text in EMPTY_VALUES else float(parse_int(text))


def parse_duration(text: str) -> float | None:
    """Return the seconds of `[D-]HH:MM:SS` or `MM:SS`; None for no limit or an unset limit."""
    if text.lower() in {"unlimited", "infinite", "not_set", "partition_limit", "n/a", "invalid"}:
        return None
    days, dash, rest = text.rpartition("-")
    seconds = 0
    for part in rest.split(":"):
        seconds = seconds * 60 + parse_int(part)
    return float(seconds + (parse_int(days) * 86400 if dash else 0))


def parse_exit_status(text: str) -> tuple[int | None, int | None]:
    """Return (exit code, signal) of a wait status such as 2304, or `9:0` in later releases.

    Both are None for Slurm's own error numbers, which have a code and a signal (4021: the script
    could not be launched).
    """
    code, colon, signal = text.partition(":")
    status = (
        (parse_int(code), parse_int(signal))
        if colon
        else (parse_int(code) >> 8, parse_int(code) & 0x7F)
    )
    match status:
        case (code_, 0):
            return code_, None
        case (0, signal_):
            return None, signal_
    return None, None


def task_count(job: str) -> int:
    """Return the number of tasks of a record: 6 for `7_[1-9:2,12%3]`, 1 for `7` and `7_4`."""
    match = re.search(r"_\[([^\]%]*)", job)
    if match is None:
        return 1
    count = 0
    for part in match[1].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        stride = parse_int(step or "1")
        if stride < 1:
            raise ValueError(f"a step of {step!r} in {job[:40]!r}")
        count += max((parse_int(last or first) - parse_int(first)) // stride + 1, 0)
    return count


def task_ids(record: str) -> list[str]:
    """Return the native ids of the tasks of a record; none of more tasks than any dispatch has."""
    array, _, tasks = record.partition("_")
    try:
        if not tasks or task_count(record) > MAX_DISPATCHED_TASKS:
            return []
        return [f"{array}_{index}" for index in parse_array(tasks.strip("[]")).indices]
    except ValueError:
        return []


def parse_gres(text: str) -> dict[str, int]:
    """Parse `gpu:a100:2(S:0-1),shard:8` to {"gpu": 2, "gpu:a100": 2, "shard": 8}."""
    counts: Counter[str] = Counter()
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        *names, count = part.split(":")
        if names and count.isdecimal():
            for depth in range(1, len(names) + 1):
                counts[":".join(names[:depth])] += parse_int(count)
    return dict(counts)


def format_mark(tag: str, index: int | None) -> str:
    """Return the mark that a job carries in Slurm: its tag, and its index if that is not 0.

    With index None the mark is that of an array, whose task ids are the indices.
    """
    return f"{tag}/a" if index is None else f"{tag}/{index}" if index else tag


def parse_mark(text: str, job: str) -> dict[tuple[str, int], str]:
    """Return the native ids, by (tag, index), of the tasks of a job with this mark and id.

    The result is empty for text that `format_mark` cannot have made, for an array larger than
    any dispatch, and for an array whose pending tasks were all cancelled together.
    """
    tag, slash, index_text = text.partition("/")
    if index_text == "a":
        array, _, tasks = job.partition("_")
        try:
            if task_count(job) > MAX_DISPATCHED_TASKS:
                return {}
            indices = parse_array(tasks.strip("[]")).indices if tasks else ()
        except ValueError:
            return {}
        return {(tag, i): f"{array}_{i}" for i in indices}
    index = parse_number(index_text, MAX_INDEX) if slash else 0
    return {} if index is None or (slash and index == 0) else {(tag, index): job}


def parse_state(name: str) -> State:
    """Return the state that a name of Slurm stands for."""
    return STATES.get(name, State.UNKNOWN)


def has_ended(state: State) -> bool:
    return state in HAS_STATUS or state is State.NODE_FAIL


def is_active(line: QueueLine) -> bool:
    """Return whether the job has not ended."""
    return parse_state(line.state) in _ACTIVE
