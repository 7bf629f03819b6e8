"""The table of `status`: its columns, their order, and the tasks of an array on a line."""

from __future__ import annotations

from metasched.cli.job_ids import fold_array_rows
from metasched.cli.show import format_memory, format_time, print_table
from metasched.drop_in.job import Job, format_duration
from metasched.errors import UserError

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

DEFAULT_COLUMNS = "job,name,user,state,time,left,nodes,cpus,cluster_reason"
LONG_COLUMNS = "job,name,state,exit,time,cpu_time,max_memory,nodes,cpus,cluster,node_list"


class Line:
    """A task, or equal tasks of an array."""

    def __init__(self, label: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """`rows`: of `GET /jobs/details`, or of `GET /jobs`, which has fewer values."""
        self.label, self.rows = label, rows
        self.row = rows[0]

    def earliest(self, key: str) -> str | None:
        return min((row[key] for row in self.rows if row.get(key)), default=None)

    def latest(self, key: str) -> str | None:
        return max((row[key] for row in self.rows if row.get(key)), default=None)

    @property
    def cluster_reason(self) -> str:
        """The cluster, the nodes of a running task, why a job waits or did not complete."""
        cluster, reason = self.row["cluster"], self.row["reason"]
        runs = self.row["state"] in ("running", "suspended")
        nodes = self.same_for_all.get("node_list") if runs else ""
        return " ".join(filter(None, (cluster, nodes, reason and f"({reason})")))

    @property
    def time_used(self) -> float | None:
        """Seconds: the longest run; None before the start."""
        started = [row for row in self.rows if row["started"]]
        return max((Job(row).time_used for row in started), default=None)

    @property
    def time_left(self) -> float | None:
        """Seconds until the time limit; None without limit, or if no task runs."""
        limit, used = self.row.get("time_limit"), self.time_used
        if limit is None or used is None or self.row["ended"]:
            return None
        return max(float(limit) - used, 0.0)

    @property
    def node_count(self) -> int | None:
        return Job(self.row).node_count if "node_list" in self.row else None

    @property
    def cpu_seconds(self) -> float | None:
        """Processor time of all tasks on the line; None: not reported."""
        values = [row["cpu_seconds"] for row in self.rows if row.get("cpu_seconds") is not None]
        return sum(values) if values else None

    @property
    def max_memory(self) -> int | None:
        """MiB: the largest of the tasks; None: not reported."""
        values = [row["max_memory"] for row in self.rows if row.get("max_memory") is not None]
        return max(values, default=None)

    @property
    def same_for_all(self) -> Mapping[str, Any]:
        """The values that belong to a single task alone, or nothing for several."""
        return self.row if len(self.rows) == 1 else {}


class TableColumn:
    """A column: its heading, the sort key of a line, and the text of a value."""

    def __init__(
        self,
        heading: str,
        value: Callable[[Line], Any],
        text: Callable[[Any], object] = lambda value: value,
    ) -> None:
        self.heading, self.value, self.text = heading, value, text


def _of_row(key: str) -> TableColumn:
    return TableColumn(key.upper(), lambda line: line.row.get(key))


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds)


COLUMNS = {
    "job": TableColumn(
        "JOB",
        lambda line: (line.row["job"], line.row.get("task") or 0, line.label),
        lambda key: key[2],
    ),
    **{key: _of_row(key) for key in ("name", "user", "state")},
    "code": TableColumn("ST", lambda line: Job(line.row).code),
    "time": TableColumn("TIME", lambda line: line.time_used, _duration),
    "left": TableColumn("LEFT", lambda line: line.time_left, _duration),
    "nodes": TableColumn("NODES", lambda line: line.node_count),
    "cpus": _of_row("cpus"),
    "cluster_reason": TableColumn("CLUSTER (REASON)", lambda line: line.cluster_reason),
    **{key: _of_row(key) for key in ("cluster", "reason", "priority")},
    **{key: _of_row(key) for key in ("partition", "account", "qos")},
    "cpu_time": TableColumn("CPU_TIME", lambda line: line.cpu_seconds, _duration),
    "max_memory": TableColumn("MAX_MEMORY", lambda line: line.max_memory, format_memory),
    "native_id": TableColumn("NATIVE_ID", lambda line: line.same_for_all.get("native_id")),
    "node_list": TableColumn("NODE_LIST", lambda line: line.same_for_all.get("node_list")),
    "submitted": TableColumn("SUBMITTED", lambda line: line.earliest("submitted"), format_time),
    "expected_start": TableColumn(
        "EXPECTED_START", lambda line: line.earliest("expected_start"), format_time
    ),
    "started": TableColumn("STARTED", lambda line: line.earliest("started"), format_time),
    "ended": TableColumn("ENDED", lambda line: line.latest("ended"), format_time),
    "exit": TableColumn("EXIT", lambda line: line.row["exit_code"]),
}


def parse_columns(text: str, option: str) -> list[str]:
    """Return the names of columns in a list that is separated by commas; `all`: all of them.

    UserError for an unknown name.
    """
    if text == "all":
        return list(COLUMNS)
    names = [column_name.strip().lower() for column_name in text.split(",")]
    for name in names:
        if name.removeprefix("-" if option == "--sort" else "") not in COLUMNS:
            raise UserError(f"{name!r} is no column, {option}; use {', '.join(COLUMNS)}")
    return names


def print_jobs(rows: Sequence[Mapping[str, Any]], format: str | None, sort: str | None) -> None:
    """Print rows of jobs by the columns of `format`, ordered by those of `sort`."""
    names = parse_columns(format or DEFAULT_COLUMNS, "--format")
    lines = [Line(label, group) for label, group in fold_array_rows(rows, _shared_values)]
    for name in reversed(parse_columns(sort, "--sort") if sort else []):
        value = COLUMNS[name.lstrip("-")].value
        filled = [line for line in lines if value(line) is not None]
        filled.sort(key=value, reverse=name.startswith("-"))
        lines = filled + [line for line in lines if value(line) is None]
    columns = [COLUMNS[name] for name in names]
    print_table(
        [column.heading for column in columns],
        ([column.text(column.value(line)) for column in columns] for line in lines),
    )


def _shared_values(row: Mapping[str, Any]) -> object:
    """Return the values that tasks on a line share; a running task has its own line."""
    running_task = row["task"] if row["state"] in ("running", "suspended") else None
    return running_task, *(row[key] for key in ("state", "reason", "cluster", "exit_code"))
