"""What Slurm's accounting says of jobs that it lists no more, read into the model: pure.

Two kinds: `sacct`, which asks slurmdbd, and the file of `JobCompType=jobcomp/filetxt`, to which the
controller appends a line when a job ends.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

from metasched.adapters.slurm import listing as text
from metasched.model.job import State
from metasched.model.listing import JobStatus, MissingTask

SACCT_FIELDS = (
    *("jobid", "uid", "state", "exitcode", "submit", "start", "end", "nodelist"),
    *("comment", "wckey", "jobname", "submitline"),
)
# Seconds by which the time of a submission may seem wrong: clocks are compared in whole seconds.
_CLOCK_TOLERANCE = 2.0
_NO_NODE = {*text.EMPTY_VALUES, "None assigned"}
_COMPLETION_LINE = re.compile(
    r"JobId=(?P<id>\d+) UserId=.*?\((?P<user>\d+)\) GroupId=.*? Name=(?P<name>.*)"
    r" JobState=(?P<state>[A-Z_]+) Partition=.*? StartTime=(?P<start>\S+) EndTime=(?P<end>\S+)"
    r" NodeList=(?P<nodes>\S+) .* WcKey=(?P<wckey>.*) Cluster=\S* SubmitTime=(?P<submit>\S+)"
    r" EligibleTime=\S+(?: ArrayJobId=(?P<array>\d+) ArrayTaskId=(?P<task>\d+))?"
    r" .*\bExitCode=(?P<code>\d+:\d+)"
)


@dataclass(frozen=True)
class SlurmRecord:
    """One job of accounting; times in the controller's clock, `end` None: it has not ended.

    `mark` is the mark that it carries, None where this accounting keeps none.
    """

    id: str
    user: str
    state: State
    status: str
    submit: float
    start: float | None
    end: float | None
    node: str
    mark: str | None

    def belongs_to(self, missing: MissingTask, clock_skew: float) -> bool:
        """Whether it is the record of that attempt.

        `skew` is what our clock is ahead of the controller's. Without a mark: the id, issued
        between our intent and the manager's answer (ids are issued again after a crash).
        """
        if self.mark is not None:
            return (missing.tag, missing.task) in text.parse_mark(self.mark, self.id)
        if missing.native_id != self.id or missing.accepted is None:
            return False
        submit = self.submit + clock_skew
        return (
            missing.dispatched - _CLOCK_TOLERANCE <= submit <= missing.accepted + _CLOCK_TOLERANCE
        )

    def job_status(self, missing: MissingTask) -> JobStatus | None:
        """The task as it ended; None if it has not."""
        if self.end is None or not text.has_ended(self.state):
            return None
        code, signal = None, None
        if self.start is not None and self.state is not State.NODE_FAIL:
            code, signal = text.parse_exit_status(self.status)
        return JobStatus(
            tag=missing.tag,
            task=missing.task,
            native_id=self.id,
            state=self.state,
            started=self.start,
            ended=self.end,
            exit_code=code,
            signal=signal,
            node=self.node,
        )


def parse_sacct(output: str, delimiter: str, tag_field: str) -> list[SlurmRecord]:
    """The records of `sacct --parsable` with SACCT_FIELDS, each field ending in `delimiter`.

    slurmdbd keeps comments only where it is told to, but always the words of the submission.
    """
    tag_column = {"comment": "comment", "wckey": "wckey", "name": "jobname"}[tag_field]
    submit_option = re.compile(rf" --{'job-name' if tag_field == 'name' else tag_field}=(ms-\S+)")
    parsed = []
    for line in text.split_records(output, delimiter, len(SACCT_FIELDS)):
        fields = dict(zip(SACCT_FIELDS, line, strict=True))
        match = submit_option.search(fields["submitline"])
        node = _allocated_node(fields["nodelist"])
        mark = fields[tag_column] or (match[1] if match else "")
        parsed.append(
            SlurmRecord(
                id=fields["jobid"],
                user=fields["uid"],
                state=text.parse_state(fields["state"].partition(" ")[0]),  # CANCELLED by 1000
                status=fields["exitcode"],
                submit=text.parse_time(fields["submit"]) or 0.0,
                start=text.parse_time(fields["start"]) if node else None,
                end=text.parse_time(fields["end"]),
                node=node,
                mark=mark or ("" if fields["submitline"] else None),
            )
        )
    return parsed


def parse_completion(line: str, tag_field: str) -> SlurmRecord | None:
    """A line of jobcomp/filetxt, which has no comment; None if it is no such line."""
    match = _COMPLETION_LINE.match(line)
    if match is None:
        return None
    native_id = match["id"] if match["array"] is None else f"{match['array']}_{match['task']}"
    node = _allocated_node(match["nodes"])
    return SlurmRecord(
        id=native_id,
        user=match["user"],
        state=text.parse_state(match["state"]),
        status=match["code"],
        submit=_parse_local_time(match["submit"]) or 0.0,
        start=_parse_local_time(match["start"]) if node else None,
        end=_parse_local_time(match["end"]),
        node=node,
        mark=None if tag_field == "comment" else match[tag_field],
    )


def _allocated_node(nodes: str) -> str:
    """What is cancelled while it waits may have a start time, but never a node."""
    return "" if nodes in _NO_NODE else nodes


def end_time(line: str) -> float | None:
    """When the job of a line of jobcomp/filetxt ended; None if it is no such line."""
    match = re.search(r" EndTime=(\S+) ", line)
    return _parse_local_time(match[1]) if match else None


def _parse_local_time(timestamp: str) -> float | None:
    """The controller writes its local time, which is taken to be that of this host."""
    try:
        return time.mktime(time.strptime(timestamp, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def latest_records(
    records: Iterable[SlurmRecord], missing: Iterable[MissingTask], clock_skew: float
) -> dict[MissingTask, SlurmRecord | None]:
    """The last record of each missing attempt; None of one that has none."""
    by_key: dict[object, list[SlurmRecord]] = {}
    for record in records:
        keys = record.mark is not None and text.parse_mark(record.mark, record.id)
        for key in keys or [record.id]:
            by_key.setdefault(key, []).append(record)
    latest: dict[MissingTask, SlurmRecord | None] = {}
    for task in missing:
        candidates = [*by_key.get((task.tag, task.task), ()), *by_key.get(task.native_id, ())]
        matching = [record for record in candidates if record.belongs_to(task, clock_skew)]
        latest[task] = max(matching, key=lambda r: (r.submit, r.start or 0.0), default=None)
    return latest


def parse_unsent_messages(output: str) -> int:
    """From sdiag: how many messages to slurmdbd the controller still holds back."""
    match = re.search(r"^DBD Agent queue size:\s*(\d+)", output, re.MULTILINE)
    if match is None:
        raise ValueError("no queue of messages to slurmdbd")
    return int(match[1])


def parse_purge_age(output: str) -> float | None:
    """From sacctmgr: the age in seconds at which records of jobs may be gone; None: never."""
    pattern = r"^PurgeJobAfter\s*=\s*(?:NONE|(\d+) *(hour|day|month)\S*)"
    match = re.search(pattern, output, re.MULTILINE)
    if match is None:
        raise ValueError("nothing of the age at which records of jobs are purged")
    if match[1] is None:
        return None
    return int(match[1]) * {"hour": 3600.0, "day": 86400.0, "month": 28 * 86400.0}[match[2]]
