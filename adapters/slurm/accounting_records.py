"""Records of Slurm's accounting, parsed. Pure.

There are two sources: `sacct`, which queries slurmdbd, and the file of
`JobCompType=jobcomp/filetxt`, where the controller appends a line when a job ends.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

from metasched.adapters.slurm import listing
from metasched.adapters.slurm.records import EMPTY_VALUES, parse_int, split_records
from metasched.model.job import State
from metasched.model.listing import JobStatus, MissingTask
from metasched.model.tags import parse_number

SACCT_FIELDS = (
    *("jobid", "uid", "state", "exitcode", "submit", "start", "end", "nodelist"),
    *("comment", "wckey", "jobname", "submitline"),
)
_CLOCK_TOLERANCE = 2.0  # seconds; clocks are compared in whole seconds
_NO_NODE = {*EMPTY_VALUES, "None assigned"}
_COMPLETION_LINE = re.compile(
    r"JobId=(?P<id>\d+) UserId=.*?\((?P<user>\d+)\) GroupId=.*? Name=(?P<name>.*)"
    r" JobState=(?P<state>[A-Z_]+) Partition=.*? StartTime=(?P<start>\S+) EndTime=(?P<end>\S+)"
    r" NodeList=(?P<nodes>\S+) .* WcKey=(?P<wckey>.*) Cluster=\S* SubmitTime=(?P<submit>\S+)"
    r" EligibleTime=\S+(?: ArrayJobId=(?P<array>\d+) ArrayTaskId=(?P<task>\d+))?"
    r" .*\bExitCode=(?P<code>\d{1,9}:\d{1,9})\b"
)
_COMPLETION_HEAD = re.compile(r"JobId=(?P<id>\d+) UserId=.*?\((?P<user>\d+)\)")


@dataclass(frozen=True)
class SlurmRecord:
    """The accounting record of a job. Times are epoch seconds of the controller's clock."""

    id: str  # job id, with `_TASK` for a task of an array
    user: str  # user id
    state: State
    status: str  # exit status, such as 9:0
    submit: float
    start: float | None
    end: float | None  # None: not ended
    node: str  # "" if it never started
    mark: str | None  # see `format_mark`; None if this accounting stores no marks
    is_readable: bool = True  # if not, it may be any job of `user`; "": of anybody

    def belongs_to(self, missing: MissingTask, clock_skew: float) -> bool:
        """Return whether this is a record of the missing task's attempt.

        `clock_skew` is the local time minus the controller's, in seconds. Without the task's mark
        the id decides, if it was issued between the dispatch and its acceptance, or when the job
        was listed: Slurm may issue an id again after a crash. A mark on another id than the listed
        one is a copy.
        """
        if not self.is_readable and self.mark is None:
            return self.id in ("", missing.native_id)  # it may be of a later run than the others
        marked = self.mark is not None and (
            (missing.tag, missing.task) in listing.parse_mark(self.mark, self.id)
        )
        if missing.native_id != self.id:
            return marked and missing.submitted is None
        if marked or self.submit == missing.submitted:
            return True
        if missing.accepted is None:
            return False
        earliest = missing.dispatched - _CLOCK_TOLERANCE
        return earliest <= self.submit + clock_skew <= missing.accepted + _CLOCK_TOLERANCE

    def job_status(self, missing: MissingTask) -> JobStatus | None:
        """Return the final status of the task; None if it has not ended."""
        if not self.is_readable or self.end is None or not listing.has_ended(self.state):
            return None
        code, signal = None, None
        if self.start is not None and self.state is not State.NODE_FAIL:
            code, signal = listing.parse_exit_status(self.status)
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
    """Parse the output of `sacct --parsable` with SACCT_FIELDS, each ending in `delimiter`.

    slurmdbd stores comments only if it is configured to, but always the submission's command line.
    A record that cannot be read keeps its place, so that its job is not taken as absent.
    """
    tag_column = {"comment": "comment", "wckey": "wckey", "name": "jobname"}[tag_field]
    submit_option = re.compile(rf" --{'job-name' if tag_field == 'name' else tag_field}=(ms-\S+)")
    lines, unreadable = split_records(output, delimiter, len(SACCT_FIELDS))
    parsed = [_unreadable_record("", "", None)] if unreadable else []
    for line in lines:
        fields = dict(zip(SACCT_FIELDS, line, strict=True))
        match = submit_option.search(fields["submitline"])
        node = _allocated_node(fields["nodelist"])
        mark = fields[tag_column] or (match[1] if match else "")
        stored_mark = mark or ("" if fields["submitline"] else None)
        user = fields["uid"] if parse_number(fields["uid"]) is not None else ""
        try:
            listing.parse_exit_status(fields["exitcode"])
            record = SlurmRecord(
                id=fields["jobid"],
                user=user,
                state=listing.parse_state(fields["state"].partition(" ")[0]),  # CANCELLED by 1000
                status=fields["exitcode"],
                submit=listing.parse_epoch_time(fields["submit"]) or 0.0,
                start=listing.parse_epoch_time(fields["start"]) if node else None,
                end=listing.parse_epoch_time(fields["end"]),
                node=node,
                mark=stored_mark,
                is_readable=user != "",
            )
        except ValueError:
            record = _unreadable_record(fields["jobid"], user, stored_mark)
        parsed.append(record)
    return parsed


def _unreadable_record(native_id: str, user: str, mark: str | None) -> SlurmRecord:
    return SlurmRecord(native_id, user, State.UNKNOWN, "", 0.0, None, None, "", mark, False)


def parse_completion(line: str, tag_field: str) -> SlurmRecord | None:
    """Parse a line of jobcomp/filetxt, which has no comment; return None for another line."""
    match = _COMPLETION_LINE.match(line)
    if match is None:
        head = _COMPLETION_HEAD.match(line)
        return head and _unreadable_record(head["id"], head["user"], None)
    native_id = match["id"] if match["array"] is None else f"{match['array']}_{match['task']}"
    node = _allocated_node(match["nodes"])
    return SlurmRecord(
        id=native_id,
        user=match["user"],
        state=listing.parse_state(match["state"]),
        status=match["code"],
        submit=_parse_local_time(match["submit"]) or 0.0,
        start=_parse_local_time(match["start"]) if node else None,
        end=_parse_local_time(match["end"]),
        node=node,
        mark=None if tag_field == "comment" else match[tag_field],
    )


def _allocated_node(nodes: str) -> str:
    """Return the nodes, "" for none; a job cancelled while pending has a start, but no node."""
    return "" if nodes in _NO_NODE else nodes


def end_time(line: str) -> float | None:
    """Return the end in a line of jobcomp/filetxt, in epoch seconds; None for another line."""
    match = re.search(r" EndTime=(\S+) ", line)
    return _parse_local_time(match[1]) if match else None


def _parse_local_time(timestamp: str) -> float | None:
    """Return epoch seconds. The controller's local time is assumed to be this host's."""
    try:
        return time.mktime(time.strptime(timestamp, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def latest_records(
    records: Iterable[SlurmRecord], missing: Iterable[MissingTask], clock_skew: float
) -> dict[MissingTask, SlurmRecord | None]:
    """Return, for each missing attempt, its latest record, or None if accounting has none."""
    by_key: dict[object, list[SlurmRecord]] = {}
    for record in records:
        marks = () if record.mark is None else listing.parse_mark(record.mark, record.id)
        for key in (*marks, record.id):
            by_key.setdefault(key, []).append(record)
    latest: dict[MissingTask, SlurmRecord | None] = {}
    for task in missing:
        keys_of_task = ((task.tag, task.task), task.native_id, "")
        candidates = [record for key in keys_of_task for record in by_key.get(key, ())]
        matching = [record for record in candidates if record.belongs_to(task, clock_skew)]
        # a mark on another id than the stored one is a copy, if the stored one has a record
        if any(record.id == task.native_id for record in matching):
            matching = [record for record in matching if record.id in (task.native_id, "")]
        latest[task] = max(
            matching, key=lambda r: (not r.is_readable, r.submit, r.start or 0.0), default=None
        )
    return latest


def parse_unsent_messages(output: str) -> int:
    """Parse the output of sdiag: the number of messages to slurmdbd that the controller queues."""
    match = re.search(r"^DBD Agent queue size:\s*(\d+)", output, re.MULTILINE)
    if match is None:
        raise ValueError("no size of the DBD agent queue")
    return parse_int(match[1])


def parse_purge_age(output: str) -> float | None:
    """Parse the output of sacctmgr: the age in seconds at which job records are purged, or None."""
    pattern = r"^PurgeJobAfter\s*=\s*(?:NONE|(\d+) *(hour|day|month)\S*)"
    match = re.search(pattern, output, re.MULTILINE)
    if match is None:
        raise ValueError("no PurgeJobAfter")
    if match[1] is None:
        return None
    return parse_int(match[1]) * {"hour": 3600.0, "day": 86400.0, "month": 28 * 86400.0}[match[2]]
