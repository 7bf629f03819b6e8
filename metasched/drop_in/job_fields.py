"""The fields of `squeue --format` (letters) and `--Format` (names)."""

from __future__ import annotations

import time

from metasched.drop_in.format_language import Field, FormatLanguage
from metasched.drop_in.job import (
    UNSET,
    Job,
    format_duration,
    format_time,
    parse_time,
    user_group,
    user_id,
)

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_FORMAT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG_FORMAT = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
START_FORMAT = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"


def _reason_or_nodes(job: Job) -> str:
    if job.waits or job.state in ("FAILED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE"):
        return f"({job.reason})"
    return job.row["node_list"] or ""


def _time_left(job: Job) -> str:
    limit = job.row["time_limit"]
    if limit is None:
        return "UNLIMITED"
    left = limit - job.time_used
    return format_duration(left) if left >= 0 else "INVALID"


def _time_pending(job: Job) -> str:
    """Seconds from its submission to its start, or until now."""
    end = next((t for t in (job.started, job.ended) if t is not None), time.time())
    return str(max(int(end - (job.submitted or end)), 0))


def _cpus_per_task(job: Job) -> str:
    return str(job.row["cpus"] // job.row["tasks"])


def _is_given(option: str) -> Callable[[Job], str]:
    """Return "1" for a job with this option of sbatch, which Slurm alone reads, else "0"."""
    return lambda job: str(int(option in job.slurm_options))


def _value(key: str, unset: str = UNSET) -> Callable[[Job], str]:
    """Return the text of a row's value, or `unset`."""

    def text(job: Job) -> str:
        value = job.row[key]
        return unset if value is None or value == "" else str(value)

    return text


def _always(text: str) -> Callable[[Job], str]:
    return lambda job: text


FIELDS = (
    Field("i", "jobarrayid", "JOBID", lambda job: job.array_id),
    Field("A", "jobid", "JOBID", lambda job: str(job.number)),
    Field("F", "arrayjobid", "ARRAY_JOB_ID", _value("job")),
    Field("K", "arraytaskid", "ARRAY_TASK_ID", lambda job: job.tasks or "N/A"),
    Field("t", "statecompact", "ST", lambda job: job.code),
    Field("T", "state", "STATE", lambda job: job.state),
    Field("j", "name", "NAME", _value("name")),
    Field("u", "username", "USER", _value("user")),
    Field("P", "partition", "PARTITION", _value("partition")),
    Field("r", "reason", "REASON", lambda job: job.reason),
    Field("R", "reasonlist", "NODELIST(REASON)", _reason_or_nodes),
    Field("N", "nodelist", "NODELIST", _value("node_list", "")),
    Field("B", "batchhost", "EXEC_HOST", lambda job: next(iter(job.nodes), "n/a")),
    Field("D", "numnodes", "NODES", lambda job: str(job.node_count)),
    Field("C", "numcpus", "CPUS", _value("cpus")),
    Field("", "numtasks", "TASKS", _value("tasks")),
    Field("c", "mincpus", "MIN_CPUS", lambda job: str(job.min_cpus)),
    Field("m", "minmemory", "MIN_MEMORY", lambda job: job.memory),
    Field("b", "tres-per-node", "TRES_PER_NODE", lambda job: job.gres or "N/A"),
    Field("", "gres", "TRES_PER_NODE", lambda job: job.gres or "N/A"),
    Field("l", "timelimit", "TIME_LIMIT", lambda job: format_duration(job.row["time_limit"])),
    Field("L", "timeleft", "TIME_LEFT", _time_left),
    Field("M", "timeused", "TIME", lambda job: format_duration(job.time_used)),
    Field("S", "starttime", "START_TIME", lambda job: format_time(job.start)),
    Field("e", "endtime", "END_TIME", lambda job: format_time(job.end)),
    Field("V", "submittime", "SUBMIT_TIME", lambda job: format_time(job.submitted)),
    Field("Z", "workdir", "WORK_DIR", _value("directory")),
    Field("a", "account", "ACCOUNT", _value("account")),
    Field("q", "qos", "QOS", _value("qos")),
    Field("Q", "prioritylong", "PRIORITY", lambda job: str(job.priority)),
    Field("p", "priority", "PRIORITY", lambda job: str(job.priority)),
    Field("E", "dependency", "DEPENDENCY", _value("dependency")),
    Field("f", "feature", "FEATURES", _value("constraint")),
    Field("W", "licenses", "LICENSES", lambda job: job.licences or UNSET),
    Field("v", "reservation", "RESERVATION", _value("reservation")),
    Field("k", "comment", "COMMENT", _value("comment")),
    Field("o", "command", "COMMAND", _always(UNSET)),
    Field("w", "wckey", "WCKEY", _value("wckey")),
    Field("Y", "schednodes", "SCHEDNODES", _always(UNSET)),
    Field("h", "oversubscribe", "OVER_SUBSCRIBE", lambda job: job.sharing),
    Field("n", "reqnodes", "REQ_NODES", lambda job: job.row["nodelist"]),
    Field("x", "excnodes exc_nodes", "EXC_NODES", lambda job: job.row["exclude"]),
    Field("y", "nice", "NICE", lambda job: str(job.row["nice"])),
    Field("z", "sct", "S:C:T", lambda job: ":".join(job.geometry)),
    Field("d", "mintmpdisk", "MIN_TMP_DISK", lambda job: job.min_disk),
    Field("O", "contiguous", "CONTIGUOUS", _is_given("contiguous")),
    Field("", "cluster", "CLUSTER", _value("cluster", "")),
    Field("", "stdin", "STDIN", _always("/dev/null")),
    Field("", "stdout", "STDOUT", lambda job: job.output_path),
    Field("", "stderr", "STDERR", lambda job: job.error_path),
    Field("", "exit_code", "EXIT_CODE", lambda job: "{}:{}".format(*job.wait_status)),
    Field("", "restartcnt", "RESTART_COUNT", _value("restarts")),
    Field("U", "userid", "UID", lambda job: user_id(job.row["user"])),
    Field("g", "groupname", "GROUP", lambda job: user_group(job.row["user"])[0]),
    Field("G", "groupid", "GROUP", lambda job: user_group(job.row["user"])[1]),
    Field("H", "sockets", "SOCKETS_PER_NODE", lambda job: job.geometry[0]),
    Field("I", "cores", "CORES_PER_SOCKET", lambda job: job.geometry[1]),
    Field("J", "threads", "THREADS_PER_CORE", lambda job: job.geometry[2]),
    Field("X", "corespec", "CORE_SPEC", _always("N/A")),
    Field("", "cpus-per-task", "CPUS_PER_TASK", _cpus_per_task),
    Field("", "tres-alloc", "TRES_ALLOC", lambda job: job.tres),
    *(
        Field("", f"tres-per-{part}", f"TRES_PER_{part.upper()}", _always("N/A"))
        for part in ("job", "socket", "task")
    ),
    Field("", "maxcpus", "MAX_CPUS", _value("cpus")),
    Field("", "maxnodes", "MAX_NODES", lambda job: str(job.node_count)),
    Field("", "eligibletime", "ELIGIBLE_TIME", lambda job: format_time(job.eligible)),
    Field("", "deadline", "DEADLINE", lambda job: format_time(parse_time(job.row["deadline"]))),
    Field("", "pendingtime", "PENDING_TIME", _time_pending),
    Field("", "batchflag", "BATCH_FLAG", _always("1")),
    Field("", "requeue", "REQUEUE", lambda job: str(int(job.row["requeue"]))),
    Field("", "reboot", "REBOOT", _is_given("reboot")),
    Field("", "admin_comment", "ADMIN_COMMENT", lambda job: job.admin_comment or UNSET),
    Field("", "system_comment", "SYSTEM_COMMENT", _always(UNSET)),
)
_ERROR = "squeue: error: Invalid job format specification: "
JOB_FORMATS = FormatLanguage(FIELDS, _ERROR, _ERROR)
