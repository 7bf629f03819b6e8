"""`sacct`: lists jobs from the record, also those that ended long ago."""

from __future__ import annotations

import math
import os
import time

from metasched.client.connection import PermissionDenied
from metasched.drop_in.command import (
    VERSION_LINE,
    CommandError,
    connect,
    exec_real,
    listed_tasks,
    parse_options,
    real_arguments,
)
from metasched.drop_in.format_language import parse_width, printable
from metasched.drop_in.job import (
    Job,
    format_clock,
    format_memory,
    format_time,
    user_group,
    user_id,
)
from metasched.drop_in.job_filters import (
    fold_waiting,
    is_job_id,
    named_nodes,
    parse_codes,
    user_name,
    words_of,
)
from metasched.drop_in.native_clusters import read_clusters, slurm_clusters
from metasched.paths import FOLD

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from metasched.client.connection import Connection
    from metasched.drop_in.native_clusters import NativeCluster

OPTIONS = {
    "account=": "A",
    "accounts=": "A",
    "allclusters": "L",
    "allocations": "X",
    "allusers": "a",
    "array": "",
    "brief": "b",
    "constraints=": "C",
    "cluster=": "M",
    "clusters=": "M",
    "delimiter=": "",
    "duplicates": "D",
    "endtime=": "E",
    "format=": "o",
    "help": "h",
    "helpformat": "e",
    "jobs=": "j",
    "local": "",
    "long": "l",
    "name=": "",
    "ncpus=": "I",
    "nnodes=": "i",
    "nodelist=": "N",
    "noconvert": "",
    "noheader": "n",
    "parsable": "p",
    "parsable2": "P",
    "partition=": "r",
    "qos=": "q",
    "starttime=": "S",
    "state=": "s",
    "truncate": "T",
    "units=": "",
    "usage": "",
    "user=": "u",
    "uid=": "u",
    "verbose": "v",
    "version": "V",
    "wckeys=": "W",
}
_DEFAULT_FORMAT = "jobid,jobname,partition,account,alloccpus,state,exitcode"
_BRIEF_FORMAT = "jobid,state,exitcode"
_LONG_FORMAT = (
    "jobid,jobidraw,jobname,partition,maxvmsize,maxvmsizenode,maxvmsizetask,avevmsize,maxrss,"
    "maxrssnode,maxrsstask,averss,maxpages,maxpagesnode,maxpagestask,avepages,mincpu,mincpunode,"
    "mincputask,avecpu,ntasks,alloccpus,elapsed,state,exitcode,avecpufreq,reqcpufreqmin,"
    "reqcpufreqmax,reqcpufreqgov,reqmem,consumedenergy,maxdiskread,maxdiskreadnode,"
    "maxdiskreadtask,avediskread,maxdiskwrite,maxdiskwritenode,maxdiskwritetask,avediskwrite,"
    "reqtres,alloctres,tresusageinave,tresusageinmax,tresusageinmaxnode,tresusageinmaxtask,"
    "tresusageinmin,tresusageinminnode,tresusageinmintask,tresusageintot,tresusageoutmax,"
    "tresusageoutmaxnode,tresusageoutmaxtask,tresusageoutave,tresusageouttot"
)
USAGE = "Usage: sacct [-X] [-n] [-p | -P] [-j jobs] [-o fields] [-S time] [-E time] [-s states]\n"
USAGE += "             [-u user] [--name names] [-q qos] [-N nodes] [-l | -b] [--helpformat]"


class Field:
    """A field: its heading, its width, and its text for a row; `step` is `batch` or empty.

    A negative width aligns to the left.
    """

    def __init__(self, heading: str, width: int, text: Callable[[Job, str], str]) -> None:
        self.heading, self.width, self.text = heading, width, text


def _of_row(key: str, unset: str = "") -> Callable[[Job, str], str]:
    def text(job: Job, step: str) -> str:
        value = job.row[key]
        return unset if value is None else str(value)

    return text


def _of_allocation(key: str) -> Callable[[Job, str], str]:
    """Return the text of a value that steps do not repeat."""
    return lambda job, step: "" if step else job.text_of(key) or ""


def _with_step(id: str, step: str) -> str:
    return f"{id}.{step}" if step else id


def _limit(job: Job, step: str) -> str:
    limit = job.row["time_limit"]
    if step:
        return ""
    return "Partition_Limit" if limit is None else format_clock(limit)


def _limit_in_minutes(job: Job, step: str) -> str:
    limit = job.row["time_limit"]
    if step:
        return ""
    return "Partition_Limit" if limit is None else str(round(limit / 60))


def _peak_memory(job: Job, step: str) -> str:
    peak = job.row["max_memory"]
    return format_memory(peak, job.unit or "K") if step and peak is not None else ""


def _cpu_time(job: Job, step: str) -> str:
    return format_clock(job.time_used * job.row["cpus"])


def _total_cpu(job: Job, step: str) -> str:
    seconds = job.row["cpu_seconds"] or 0.0
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes):02}:{rest:06.3f}" if minutes < 60 else format_clock(seconds)


def _allocated(job: Job, count: int) -> str:
    return str(count if job.has_started else 0)


def _requested_memory(job: Job, step: str) -> str:
    """Return the memory of the whole job, as in the accounting; squeue lists what was asked for."""
    if step:
        return ""
    if job.row["memory"]:
        return format_memory(job.row["memory"] * job.node_count, job.unit)
    return format_memory((job.row["memory_per_cpu"] or 0) * job.row["cpus"], job.unit)


def _state(job: Job, step: str) -> str:
    """Return the state of a job, or of its script: one that a signal ended is cancelled."""
    return "CANCELLED" if step and job.state == "FAILED" and job.wait_status[1] else job.state


def _exit_code(job: Job, step: str) -> str:
    """Return `code:signal`; of a cancelled job only the script has a signal."""
    status = (0, 0) if job.state == "CANCELLED" and not step else job.wait_status
    return "{}:{}".format(*status)


def _reason(job: Job, step: str) -> str:
    """Return why it waits; of others slurmdbd knows none, though squeue says why they failed."""
    return "" if step else job.reason if job.waits else "None"


def _start(job: Job, step: str) -> str:
    return format_time(job.started, "Unknown" if job.ended is None else "None")


_UNKNOWN_STATE = "sacct: fatal: unrecognized job state value '{}'"
# fields of Slurm's releases of which metasched knows nothing, also when Slurm reports no use
EMPTY = (
    *("AssocID", "AveCPU", "AveCPUFreq", "AveDiskRead", "AveDiskWrite", "AvePages", "AveRSS"),
    *("AveVMSize", "BlockID", "ConsumedEnergy", "ConsumedEnergyRaw", "Container", "DBIndex"),
    *("Extra", "FailedNode", "Flags", "Layout", "MaxDiskRead", "MaxDiskReadNode"),
    *("MaxDiskReadTask", "MaxDiskWrite", "MaxDiskWriteNode", "MaxDiskWriteTask", "MaxPages"),
    *("MaxPagesNode", "MaxPagesTask", "MaxRSSNode", "MaxRSSTask", "MaxVMSize", "MaxVMSizeNode"),
    *("MaxVMSizeTask", "McsLabel", "MinCPU", "MinCPUNode", "MinCPUTask", "Planned", "PlannedCPU"),
    *("PlannedCPURAW", "QOSRAW", "QOSREQ", "ReqCPUFreq", "ReqCPUFreqGov", "ReqCPUFreqMax"),
    *("ReqCPUFreqMin", "ReqReservation", "ReservationId", "Reserved", "ResvCPU", "ResvCPURAW"),
    *("SubmitLine", "Suspended", "SystemComment", "SystemCPU", "UserCPU", "WCKeyID"),
    *(f"TRESUsage{way}{kind}" for way in ("In", "Out") for kind in ("Ave", "Tot")),
    *(
        f"TRESUsage{way}{kind}{part}"
        for way in ("In", "Out")
        for kind in ("Max", "Min")
        for part in ("", "Node", "Task")
    ),
)
# codes of states that Slurm never accounts
_UNACCOUNTED = frozenset(("CG", "CF", "RD", "RF", "RH", "SI", "SE", "SO", "ST"))
FIELDS = {
    field.heading.lower(): field
    for field in (
        Field("JobID", -12, lambda job, step: _with_step(job.array_id, step)),
        Field("JobIDRaw", -12, lambda job, step: _with_step(str(job.number), step)),
        Field("JobName", 10, lambda job, step: step or str(job.row["name"])),
        Field("User", 9, _of_allocation("user")),
        Field("UID", 6, lambda job, step: "" if step else user_id(job.row["user"])),
        Field("Partition", 10, _of_allocation("partition")),
        Field("Account", 10, _of_row("account")),
        Field("QOS", 10, _of_allocation("qos")),
        Field("Cluster", 10, _of_row("cluster")),
        Field("State", 10, _state),
        Field("ExitCode", 8, _exit_code),
        Field("DerivedExitCode", 15, lambda job, step: "" if step else "0:0"),
        Field("Reason", 22, _reason),
        Field("AdminComment", 19, lambda job, step: "" if step else job.admin_comment),
        Field("Comment", 14, lambda job, step: "" if step else job.row["comment"] or ""),
        Field("WCKey", 10, _of_row("wckey")),
        Field("AllocCPUS", 10, lambda job, step: _allocated(job, job.row["cpus"])),
        Field("ReqCPUS", 8, _of_row("cpus")),
        Field("NCPUS", 10, lambda job, step: _allocated(job, job.row["cpus"])),
        Field("NTasks", 8, lambda job, step: "1" if step else ""),
        Field("AllocNodes", 10, lambda job, step: _allocated(job, job.node_count)),
        Field("NNodes", 8, lambda job, step: str(job.node_count)),
        Field("ReqNodes", 8, lambda job, step: str(job.row["nodes"] or 1)),
        Field("NodeList", 15, lambda job, step: job.row["node_list"] or "None assigned"),
        Field("ReqMem", 10, _requested_memory),
        Field("MaxRSS", 10, _peak_memory),
        Field("Timelimit", 10, _limit),
        Field("Elapsed", 10, lambda job, step: format_clock(job.time_used)),
        Field("ElapsedRaw", 10, lambda job, step: str(int(job.time_used))),
        Field("CPUTime", 10, _cpu_time),
        Field("CPUTimeRAW", 10, lambda job, step: str(int(job.time_used * job.row["cpus"]))),
        Field("TotalCPU", 10, _total_cpu),
        Field("Submit", 19, lambda job, step: format_time(job.submitted, "Unknown")),
        Field("Eligible", 19, lambda job, step: format_time(job.submitted, "Unknown")),
        Field("Start", 19, _start),
        Field("End", 19, lambda job, step: format_time(job.ended, "Unknown")),
        Field("Priority", 10, _of_allocation("priority")),
        Field("WorkDir", 20, _of_allocation("directory")),
        Field("AllocTRES", 10, lambda job, step: job.tres if job.has_started else ""),
        Field("ReqTRES", 10, lambda job, step: "" if step else job.tres),
        Field("Group", 9, lambda job, step: "" if step else user_group(job.row["user"])[0]),
        Field("GID", 6, lambda job, step: "" if step else user_group(job.row["user"])[1]),
        Field("TimelimitRaw", 10, _limit_in_minutes),
        Field("Constraints", 19, _of_allocation("constraint")),
        Field("Reservation", 20, _of_allocation("reservation")),
        Field("Licenses", 10, lambda job, step: "" if step else job.licences),
        Field("Restarts", 8, _of_allocation("restarts")),
        Field("StdErr", 20, lambda job, step: "" if step else job.error_path),
        Field("StdIn", 20, lambda job, step: "" if step else "/dev/null"),
        Field("StdOut", 20, lambda job, step: "" if step else job.output_path),
        *(Field(name, max(len(name), 10), lambda job, step: "") for name in EMPTY),
    )
}


def main(arguments: Sequence[str]) -> int:
    """List the jobs that the options select. Return the exit code."""
    parsed, words = parse_options("sacct", OPTIONS, arguments)
    options: dict[str, str] = {"format": os.environ.get("SACCT_FORMAT", "")}
    for name, value in parsed:
        repeated = name in ("jobs", "format", "name", "state") and options.get(name)
        options[name] = f"{options[name]},{value}" if repeated else value
    if dict(parsed).get("format"):
        options["format"] = ",".join(value for name, value in parsed if name == "format")
    if "help" in options or "usage" in options:
        print(USAGE)
        return 0
    if "version" in options:
        print(VERSION_LINE)
        return 0
    if "helpformat" in options:
        headings = [field.heading for field in FIELDS.values()]
        for first in range(0, len(headings), 4):
            print(" ".join(f"{heading:<19}" for heading in headings[first : first + 4]).rstrip())
        return 0
    if words:
        raise CommandError(f"sacct: error: Unknown arguments: {' '.join(words)}")
    connection = connect()
    clusters = read_clusters(connection)
    chosen = clusters.choose("sacct", options.get("cluster"))
    ids = words_of(options.get("jobs", ""))
    native_ids = [word for word in ids if clusters.is_native(word)]
    if native_ids and len(native_ids) == len(ids) and chosen is None:
        exec_real("sacct", real_arguments(OPTIONS, parsed, []))
    own_ids = [word for word in ids if not clusters.is_native(word)]
    default = _BRIEF_FORMAT if "brief" in options else _DEFAULT_FORMAT
    default = _LONG_FORMAT if "long" in options else default
    columns = [_parse_column(word) for word in words_of(options["format"] or default)]
    asked: Sequence[NativeCluster | None] = ()
    if native_ids:
        asked = [None] if chosen is None else slurm_clusters("sacct", chosen)
    elif not ids:
        asked = [cluster for cluster in clusters.listed("sacct", chosen) if cluster.has_accounting]
    records = None
    if asked:
        from metasched.drop_in.native_records import NativeRecords  # the others start more quickly

        headings = [field.heading for field, _ in columns]
        records = NativeRecords(asked, headings, options, native_ids, clusters.tag_prefixes)
    jobs = [] if ids and not own_ids else _listed(connection, options, own_ids)
    native: list[tuple[str, list[str]]] = []
    code = 0
    if records is not None:
        sent = {(job.row["cluster"], job.row["native_id"]) for job in jobs}
        native, code = records.cells(sent, bool(native_ids) or chosen is not None)
        if code and ids and not own_ids:
            return code  # nothing is no listing
    lines = [
        (job.row["cluster"] or "", [printable(field.text(job, step)) for field, _ in columns])
        for job, step in _rows(_selected(jobs, options, chosen), own_ids, "allocations" in options)
    ]
    if native and not options["format"]:
        columns.append((FIELDS["cluster"], FIELDS["cluster"].width))
        lines = [(name, [*cells, name]) for name, cells in lines]
        native = [(name, [*cells, name]) for name, cells in native]
    _print_lines(columns, [cells for _, cells in lines + native], options)
    return code


def _parse_column(word: str) -> tuple[Field, int]:
    """Parse `state%20`; a negative width aligns to the left. CommandError if there is no field."""
    name, _, width = word.partition("%")
    field = FIELDS.get(name.lower())
    if field is None:
        raise CommandError(f'sacct: error: Invalid field requested: "{name}"')
    digits = width[1:] if width.startswith("-") else width
    size = parse_width(digits) if digits.isdecimal() else 0
    return field, (-size if width.startswith("-") else size) or field.width


def _unit(options: Mapping[str, str]) -> str:
    """Return the unit of sizes, a letter; "": that in which each is short. Raises CommandError."""
    if "units" not in options:
        return "M" if "noconvert" in options else ""
    unit = options["units"][:1].upper()
    if unit not in tuple("KMGTP"):
        problem = f"Invalid unit type '{options['units']}'. Possible options are 'KMGTP'"
        raise CommandError(f"sacct: error: {problem}\nsacct: fatal: Invalid unit type")
    return unit


def _listed(connection: Connection, options: Mapping[str, str], ids: Sequence[str]) -> list[Job]:
    """Return the jobs of metasched with these ids, or of the users, in the time of the options."""
    jobs_only = [word.partition(".")[0] for word in ids]  # also of a step
    for word in jobs_only:
        if not is_job_id(word):
            raise CommandError(f"sacct: fatal: Bad job/step specified: {word}")
    query: dict[str, object] = {"ended_since": _parse_time(options.get("starttime"), _midnight())}
    users: list[str] = []
    if ids:
        query = {"job": jobs_only, "skip_missing": "true"}
    elif "allusers" not in options:
        words = words_of(options.get("user", str(os.getuid()))) or [""]  # an unset variable
        users = [user_name(word) for word in words]
        for user in users if "user" in options else ():
            if user_id(user) == "nobody":
                raise CommandError(f"sacct: error: Invalid user id: {printable(user)}")
        query.update({"user": users[0]} if len(users) == 1 else {})
    unit = _unit(options)
    try:
        jobs = [Job(row, unit) for row in listed_tasks(connection, {**query, **FOLD})]
    except PermissionDenied:  # jobs of others, which the site hides: none are shown
        return []
    return [job for job in jobs if not users or job.row["user"] in users]


def _selected(
    jobs: Sequence[Job], options: Mapping[str, str], chosen: Sequence[NativeCluster] | None
) -> list[Job]:
    """Return the jobs that pass the other filters of the options."""
    codes = parse_codes(options.get("state", "all"), _UNKNOWN_STATE)
    latest = _parse_time(options.get("endtime"), time.time())
    if "endtime" in options and (begin := _parse_time(options.get("starttime"), 0.0)) > latest:
        both = f"Start time ({format_time(begin)}) requested is after end time"
        raise CommandError(f"sacct: error: {both} ({format_time(latest)}).")
    for word in words_of(options.get("state", "")) if codes & _UNACCOUNTED else ():
        if parse_codes(word, _UNKNOWN_STATE) & _UNACCOUNTED:
            raise CommandError(f"sacct: fatal: job state {word} is not supported / accounted")
    keys = {"wckeys": "wckey", "constraints": "constraint", "partition": "partition"}
    wanted = {key: words_of(options.get(option, "")) for option, key in keys.items()}
    # in any case of the letters, as slurmdbd's database compares them
    folded = {key: words_of(options.get(key, "").lower()) for key in ("name", "account", "qos")}
    node_list = options.get("nodelist", "")
    nodes = named_nodes("sacct", node_list)
    least_nodes, most_nodes = _parse_range("nnodes", options)
    least_cpus, most_cpus = _parse_range("ncpus", options)
    if chosen is not None and "all" not in words_of(options["cluster"]):
        names = [cluster.name for cluster in chosen]
        jobs = [job for job in jobs if job.cluster_among(names)]
    return [
        job
        for job in fold_waiting(jobs)
        if (not codes or job.code in codes)
        and (job.submitted or 0.0) <= latest
        and all(not words or job.row[key] in words for key, words in wanted.items())
        and all(not words or (job.row[key] or "").lower() in words for key, words in folded.items())
        and (not node_list or nodes.intersection(job.nodes))
        and least_nodes <= job.node_count <= most_nodes
        and least_cpus <= job.row["cpus"] <= most_cpus
    ]


def _parse_range(option: str, options: Mapping[str, str]) -> tuple[int, float]:
    """Return the bounds of `2-4`; without a second number the first is the only one."""
    text = options.get(option)
    if text is None:
        return 0, math.inf
    least, _, most = text.partition("-")
    if not (least.isdecimal() and (most or "0").isdecimal()):
        raise CommandError(f"sacct: error: --{option}={text} is no number; write 2 or 2-4")
    return int(least), int(most or least)


def _rows(
    jobs: Sequence[Job], ids: Sequence[str], allocations_only: bool
) -> Iterator[tuple[Job, str]]:
    """Yield each job, and after one that has started the step of its script.

    Of a job of which `ids` are steps alone, yield these: `17.batch`, not `17.0`, of which only its
    cluster knows.
    """
    steps: dict[str, set[str]] = {}
    for id, _, step in (word.partition(".") for word in ids):
        steps.setdefault(id, set()).add(step)
    for job in jobs:
        keys = (str(job.row["job"]), str(job.number), job.array_id)
        named = set[str]().union(*(steps.get(key, ()) for key in keys)) or {""}
        if "" in named or allocations_only:
            yield job, ""
        if job.has_started and not allocations_only and named & {"", "batch"}:
            yield job, "batch"


def _print_lines(
    columns: Sequence[tuple[Field, int]], lines: Sequence[list[str]], options: Mapping[str, str]
) -> None:
    headings = [field.heading for field, _ in columns]
    has_heading = "noheader" not in options
    if "parsable" in options or "parsable2" in options:
        delimiter = options.get("delimiter", "|")
        last = delimiter if "parsable" in options else ""
        for cells in ([headings] if has_heading else []) + list(lines):
            print(delimiter.join(cells) + last)
        return
    widths = [width for _, width in columns]
    if has_heading:
        cut = (heading[: abs(width)] for heading, width in zip(headings, widths))
        print(" ".join(map(_fit, cut, widths)) + " ")
        print(" ".join("-" * abs(width) for width in widths) + " ")
    for cells in lines:
        print(" ".join(map(_fit, cells, widths)) + " ")


def _fit(text: str, width: int) -> str:
    """Fit a text into a column; a text that is cut ends in `+`, as in the real command."""
    size = abs(width)
    if len(text) > size:
        text = text[: size - 1] + "+"
    return text.ljust(size) if width < 0 else text.rjust(size)


def _midnight() -> float:
    now = time.localtime()
    return time.mktime((now.tm_year, now.tm_mon, now.tm_mday, 0, 0, 0, 0, 0, -1))


def _parse_time(text: str | None, default: float) -> float:
    """Return epoch seconds of a time as the real command takes it."""
    if text is None:
        return default
    from metasched.model.units import ParseError, parse_moment

    word = text.strip().lower()
    if word.startswith("now"):
        from metasched.drop_in.slurm_time import parse_time

        if (moment := parse_time(word, time.time())) is not None:
            return moment
    if word.startswith("today"):
        return _midnight()
    try:
        return parse_moment(text, time.time(), past=True)
    except ParseError as error:
        raise CommandError(f"sacct: error: {error.problem}; {error.fix}") from None
