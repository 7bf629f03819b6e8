"""A task of metasched in Slurm's words: state, reason, times, counts."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

# Slurm's states, in the order of its messages: name -> code, and the state in which metasched
# lists a job that Slurm has in it
SLURM_STATES = {
    "PENDING": ("PD", "pending"),
    "RUNNING": ("R", "running"),
    "SUSPENDED": ("S", "suspended"),
    "COMPLETED": ("CD", "completed"),
    "CANCELLED": ("CA", "cancelled"),
    "FAILED": ("F", "failed"),
    "TIMEOUT": ("TO", "timeout"),
    "NODE_FAIL": ("NF", "node_fail"),
    "PREEMPTED": ("PR", "preempted"),
    "BOOT_FAIL": ("BF", "node_fail"),
    "DEADLINE": ("DL", "timeout"),
    "OUT_OF_MEMORY": ("OOM", "out_of_memory"),
    "COMPLETING": ("CG", "running"),
    "CONFIGURING": ("CF", "pending"),
    "RESIZING": ("RS", "running"),
    "RESV_DEL_HOLD": ("RD", "pending"),
    "REQUEUED": ("RQ", "pending"),
    "REQUEUE_FED": ("RF", "pending"),
    "REQUEUE_HOLD": ("RH", "pending"),
    "REVOKED": ("RV", "unknown"),
    "SIGNALING": ("SI", "running"),
    "SPECIAL_EXIT": ("SE", "pending"),
    "STAGE_OUT": ("SO", "running"),
    "STOPPED": ("ST", "suspended"),
}
NAMES_BY_CODE = {code: name for name, (code, _) in SLURM_STATES.items()}
# State of a task -> state of Slurm. `unknown` is not here: a client that sees it would take the
# job for lost, so the last known state stands.
STATES = {
    "queued": "PENDING",
    "held": "PENDING",
    "dispatching": "PENDING",
    "pending": "PENDING",
    "running": "RUNNING",
    "suspended": "SUSPENDED",
    "completed": "COMPLETED",
    "failed": "FAILED",
    "rejected": "FAILED",
    "timeout": "TIMEOUT",
    "cancelled": "CANCELLED",
}
# state of the last attempt of a failed task
ATTEMPT_STATES = {
    "node_fail": "NODE_FAIL",
    "preempted": "PREEMPTED",
    "out_of_memory": "OUT_OF_MEMORY",
}
OPEN_STATES = "queued,held,dispatching,pending,running,suspended,unknown"

# Reason of a waiting task -> reason of Slurm
REASONS = {
    "held": "JobHeldUser",
    "dependency": "Dependency",
    "begin_time": "BeginTime",
    "limit_user": "AssocMaxJobsLimit",
    "limit_class": "AssocGrpJobsLimit",
    "limit_manager": "AssocMaxJobsLimit",
    "refused": "ReqNodeNotAvail",
    "refused_thrice": "ReqNodeNotAvail",
    "limit_array": "JobArrayTaskLimit",
    "no_cluster_fits": "ReqNodeNotAvail",
    "cluster_down": "PartitionDown",
    "cluster_drained": "PartitionInactive",
    "no_mapping": "PartitionConfig",
    "filesystem": "ReqNodeNotAvail",
    "licence_unknown": "Licenses",
    "licence_busy": "Licenses",
    "reservation_wait": "Reservation",
    "reservation_near": "Resources",
    "recalled": "Resources",
    "priority": "Priority",
}
ENDED_REASONS = {
    "FAILED": "NonZeroExitCode",
    "TIMEOUT": "TimeLimit",
    "OUT_OF_MEMORY": "OutOfMemory",
    "NODE_FAIL": "NodeDown",
}
_UNITS = "KMGTP"
NO_INDEX = 2**32 - 2  # index of a job that is no single task of an array, in Slurm's paths
_MANAGER = "manager:"  # prefix of a manager's own reason
UNSET = "(null)"  # of a text that was not given
_GEOMETRY = ("sockets-per-node", "cores-per-socket", "threads-per-core")


class Job:
    """A row of `GET /jobs/details`."""

    def __init__(self, row: Mapping[str, Any], unit: str = "") -> None:
        """`unit` is that of its sizes, a letter; "": that in which each is short, as in Slurm."""
        self.row = row
        self.unit = unit
        self.state = _slurm_state(row)
        self.code = SLURM_STATES[self.state][0]
        task = row["task"]
        self.tasks = None if task is None else str(task)  # its index, or those of a folded line
        self.is_folded = False

    @property
    def indices(self) -> range:
        """The indices of the tasks of an array for which the row stands."""
        from metasched.model.arrays import listed_indices

        return listed_indices(self.row["task"], self.row.get("folded"))

    def fold(self, tasks: Sequence[Job], has_limit: bool = True) -> None:
        """Stand for waiting tasks of an array, in the order of their indices.

        `has_limit`: with the number that may run at once.
        """
        from metasched.model.arrays import FoldedIndices

        folded = FoldedIndices()
        for job in tasks:
            folded.add(job.indices)
        indices = str(folded)
        limit = self.row["array"].partition("%")[2] if has_limit else ""
        self.tasks, self.is_folded = indices + (f"%{limit}" if limit else ""), True

    def text_of(self, key: str) -> str | None:
        """Return a value of the row as a filter names it; None if it is empty."""
        value = self.row[key]
        return None if value in (None, "") else str(value)

    def cluster_among(self, names: Sequence[str]) -> str | None:
        """Return which of the clusters has the job; None if it is on another.

        A job that waits, or ended before a cluster had it, is on the first where it may run.
        """
        if self.row["cluster"] is not None:
            return self.row["cluster"] if self.row["cluster"] in names else None
        eligible = self.row["clusters"]
        return next((name for name in names if not eligible or name in eligible), None)

    @property
    def array_id(self) -> str:
        """The id as squeue lists it: `17`, `17_3` for a task, `17_[4-9]` for a folded line."""
        tasks = f"[{self.tasks}]" if self.is_folded else self.tasks
        return str(self.row["job"]) if tasks is None else f"{self.row['job']}_{tasks}"

    @property
    def number(self) -> int:
        """The number that only this task has; of a folded line that of the array."""
        number: int = self.row["job" if self.is_folded else "number"]
        return number

    @property
    def submitted(self) -> float | None:
        """Epoch seconds."""
        return parse_time(self.row["submitted"])

    @property
    def started(self) -> float | None:
        """Epoch seconds."""
        return parse_time(self.row["started"])

    @property
    def ended(self) -> float | None:
        """Epoch seconds."""
        return parse_time(self.row["ended"])

    @property
    def admin_comment(self) -> str:
        """The sentence of the manager that rejected it, or that has it held."""
        reason: str = self.row["reason"]
        is_held = self.row["state"] == "held" and reason.startswith(_MANAGER)
        is_refused = self.row["state"] == "rejected" or is_held
        return reason.removeprefix(_MANAGER) if is_refused else ""

    @property
    def has_started(self) -> bool:
        return self.row["started"] is not None

    @property
    def waits(self) -> bool:
        return self.state == "PENDING"

    @property
    def reason(self) -> str:
        """Why it waits or failed, by a word of Slurm; `None` for other states."""
        reason: str = self.row["reason"]
        if not self.waits:
            return ENDED_REASONS.get(self.state, "None")
        if self.row["state"] == "held":
            return REASONS["held"]
        if reason.startswith(_MANAGER):
            word = reason[len(_MANAGER) :]
            # words of Slurm are capitalised; those of other managers say nothing to Slurm's tools
            return word if word[:1].isupper() else "Priority"
        return REASONS.get(reason, "None")

    @property
    def time_used(self) -> float:
        """Seconds for which it has run."""
        started, ended = self.started, self.ended
        if started is None:
            return 0.0
        return max((time.time() if ended is None else ended) - started, 0.0)

    @property
    def start(self) -> float | None:
        """Epoch seconds of its start, or of the expected start."""
        started = self.started
        return started if started is not None else parse_time(self.row["expected_start"])

    @property
    def end(self) -> float | None:
        """Epoch seconds of its end, or of that of its time limit while it runs."""
        ended, started = self.ended, self.started
        if ended is None and started is not None and self.row["time_limit"] is not None:
            return started + float(self.row["time_limit"])
        return ended

    @property
    def nodes(self) -> list[str]:
        """Its nodes, in the manager's order; a text that is no list is one name."""
        from metasched.model.host_lists import expand_hosts

        text = self.row["node_list"] or ""
        try:
            return list(expand_hosts(text))
        except ValueError:
            return [text]

    @property
    def node_count(self) -> int:
        from metasched.model.host_lists import count_nodes

        return count_nodes(self.row["node_list"] or "") or self.row["nodes"] or 1

    @property
    def memory(self) -> str:
        """Requested memory, as Slurm writes it: `1.50G`; "0": none."""
        return format_memory(self.row["memory"] or self.row["memory_per_cpu"] or 0, self.unit)

    @property
    def min_cpus(self) -> int:
        """Processors that a node must have: those of a task, or more by `--mincpus`."""
        least = self.slurm_options.get("mincpus", "")
        cpus: int = self.row["cpus"] // self.row["tasks"]
        return max(cpus, int(least) if least.isdecimal() and len(least) < 10 else 0)

    @property
    def min_disk(self) -> str:
        """Disk space per node, as Slurm writes it: `5G`; "0": none was asked for."""
        from metasched.model.units import ParseError, parse_memory  # few jobs have such options

        text = self.slurm_options.get("tmp")
        try:
            return format_memory(parse_memory(text), self.unit) if text else "0"
        except ParseError:  # Slurm has refused it
            return "0"

    @property
    def geometry(self) -> list[str]:
        """Sockets of a node, cores of these, threads of these; "*": any number."""
        options = self.slurm_options
        counts = options.get("extra-node-info", "").split(":")
        counts += ["*"] * (len(_GEOMETRY) - len(counts))
        return [options.get(name) or count or "*" for name, count in zip(_GEOMETRY, counts)]

    @property
    def sharing(self) -> str:
        """Whether others may share its processors: NO, YES, OK, USER or MCS, by its own options."""
        options = self.slurm_options
        if self.row["exclusive"] or "reboot" in options:
            return options.get("exclusive", "").upper() or "NO"
        return "YES" if "oversubscribe" in options else "OK"

    @property
    def slurm_options(self) -> dict[str, str]:
        """What `sbatch` passed on to Slurm, as {"tmp": "5G", "contiguous": ""}."""
        native = self.row["native"]
        if not native:
            return {}
        import shlex  # few jobs have such options

        text = native.get(self.row["cluster"]) or next(iter(native.values()))
        pairs = (word[2:].partition("=") for word in shlex.split(text) if word[:2] == "--")
        return {name: value for name, _, value in pairs}

    @property
    def gres(self) -> str:
        """Generic resources per node, as in `gres:gpu:a100:2`; "": none."""
        return ",".join(f"gres:{name}:{count}" for name, count in self.row["gres"].items())

    @property
    def licences(self) -> str:
        """Licences, as in `matlab:2`; "": none."""
        return ",".join(f"{name}:{count}" for name, count in self.row["licences"].items())

    @property
    def priority(self) -> int:
        """Its priority, 1 to 10; as in Slurm 0 if its owner holds it."""
        return 0 if self.waits and self.reason == "JobHeldUser" else self.row["priority"] or 0

    @property
    def tres(self) -> str:
        """What it asks for, as in `cpu=2,mem=1.50G,node=1`. Only its cluster knows `billing`."""
        nodes = self.node_count
        memory = (self.row["memory"] or 0) * nodes
        memory = memory or (self.row["memory_per_cpu"] or 0) * self.row["cpus"]
        parts = [
            f"cpu={self.row['cpus']}",
            f"mem={format_memory(memory, self.unit)}",
            f"node={nodes}",
        ]
        gres = [f"gres/{name}={count * nodes}" for name, count in self.row["gres"].items()]
        return ",".join(parts + gres if memory else [parts[0], parts[2], *gres])

    @property
    def eligible(self) -> float | None:
        """Epoch seconds from which nothing of the user's keeps it waiting; None: not known."""
        if self.waits and self.reason in ("Dependency", "JobHeldUser"):
            return None
        return max(filter(None, (self.submitted, parse_time(self.row["begin"]))), default=None)

    @property
    def output_path(self) -> str:
        return self._expand(str(self.row["output"]))

    @property
    def error_path(self) -> str:
        return self._expand(str(self.row["error"] or self.row["output"]))

    def _expand(self, path: str) -> str:
        """Return the path of the task's file, of a folded line as Slurm's for an array's record."""
        if "%" not in path:
            return path
        from metasched.model.output_paths import expand_task_fields, first_node

        index = NO_INDEX if self.is_folded else self.row["task"]
        node = first_node(self.row["node_list"] or "") or "%N"
        return expand_task_fields(path, index or 0, self.number, node)

    @property
    def wait_status(self) -> tuple[int, int]:
        """Exit code and signal."""
        code, signal = self.row["exit_code"] or 0, self.row["signal"] or 0
        return (0 if signal else code), signal


def _slurm_state(row: Mapping[str, Any]) -> str:
    state = row["state"]
    if state == "unknown":
        return STATES["running" if row["started"] else "pending"]
    if state == "failed" and row.get("attempt_state") in ATTEMPT_STATES:
        return ATTEMPT_STATES[row["attempt_state"]]
    return STATES[state]


def slurm_state(word: str) -> str | None:
    """Return the state of Slurm that a word names, by its name or code; None: no state."""
    name = word.upper()
    name = NAMES_BY_CODE.get(name, name)
    return name if name in SLURM_STATES else None


def own_states(word: str) -> list[str]:
    """Return the states of metasched that a word selects: its own `pending`, Slurm's R or PENDING.

    A word that is no state stays. A state in lower case is metasched's, if it has one of this name.
    Empty for a state, as CG, that metasched does not tell from others: see `wider_state`.
    """
    name = slurm_state(word)
    if name is None or word in STATES or word in ATTEMPT_STATES:
        return [word.lower()]
    return [state for table in (STATES, ATTEMPT_STATES) for state in table if table[state] == name]


def wider_state(word: str) -> str:
    """Return the state in which metasched lists jobs that Slurm has in a state of this name."""
    return SLURM_STATES[slurm_state(word) or word][1]


def parse_time(text: str | None) -> float | None:
    """Return epoch seconds of a time of the API, `2026-11-22T14:00:00Z` with any zone."""
    if text is None:
        return None
    from datetime import datetime

    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def format_time(moment: float | None, unset: str = "N/A") -> str:
    """Format epoch seconds as Slurm does: local, without zone; SLURM_TIME_FORMAT counts."""
    if moment is None:
        return unset
    pattern = os.environ.get("SLURM_TIME_FORMAT", "standard")
    if "%" not in pattern:  # also `relative`, which depends on the day
        pattern = "%Y-%m-%dT%H:%M:%S"
    return time.strftime(pattern, time.localtime(moment))


def format_duration(seconds: float | None) -> str:
    """Format a duration as squeue does: `1-02:03:04`, `2:03:04`, `3:04`."""
    if seconds is None:
        return "UNLIMITED"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def format_clock(seconds: float) -> str:
    """Format a duration as sacct and `scontrol show job` do: `1-02:03:04`, `02:03:04`."""
    days, rest = divmod(int(seconds), 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def format_memory(mebibytes: int, unit: str = "") -> str:
    """Format MiB as Slurm does: `477M`, `4G`, `1.50G`, `1500M`; 0 without a unit.

    `unit` is one of KMGTP. Without it, the largest in which the size has no more than a half.
    """
    if not mebibytes:
        return "0"
    size, position = float(mebibytes), _UNITS.index("M")
    if unit:
        size, position = mebibytes / 1024 ** (_UNITS.index(unit) - position), _UNITS.index(unit)
    else:
        while size >= 1024 and not int(size) % 512 and position < len(_UNITS) - 1:
            size, position = size / 1024, position + 1
    return f"{size:.0f}{_UNITS[position]}" if size.is_integer() else f"{size:.2f}{_UNITS[position]}"


def user_id(user: str) -> str:
    """Return the number of a user; `nobody` without an account on this host."""
    import pwd

    try:
        return str(pwd.getpwnam(user).pw_uid)
    except KeyError:
        return "nobody"


def user_group(user: str) -> tuple[str, str]:
    """Return name and number of a user's group; `nobody` without an account on this host."""
    import grp
    import pwd

    try:
        number = pwd.getpwnam(user).pw_gid
    except KeyError:
        return "nobody", "nobody"
    try:
        return grp.getgrgid(number).gr_name, str(number)
    except KeyError:
        return str(number), str(number)
