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
from metasched.model.listing import Missing, Row

SACCT_FIELDS = (
    *("jobid", "uid", "state", "exitcode", "submit", "start", "end", "nodelist"),
    *("comment", "wckey", "jobname", "submitline"),
)
# Seconds by which the time of a submission may seem wrong: clocks are compared in whole seconds.
_ROUNDED = 2.0
_NOBODY = {*text.NOTHING, "None assigned"}
_LINE = re.compile(
    r"JobId=(?P<id>\d+) UserId=.*?\((?P<user>\d+)\) GroupId=.*? Name=(?P<name>.*)"
    r" JobState=(?P<state>[A-Z_]+) Partition=.*? StartTime=(?P<start>\S+) EndTime=(?P<end>\S+)"
    r" NodeList=(?P<nodes>\S+) .* WcKey=(?P<wckey>.*) Cluster=\S* SubmitTime=(?P<submit>\S+)"
    r" EligibleTime=\S+(?: ArrayJobId=(?P<array>\d+) ArrayTaskId=(?P<task>\d+))?"
    r" .*\bExitCode=(?P<code>\d+:\d+)"
)


@dataclass(frozen=True)
class Record:
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

    def belongs_to(self, missing: Missing, skew: float) -> bool:
        """Whether it is the record of that attempt.

        `skew` is what our clock is ahead of the controller's. Without a mark: the id, issued
        between our intent and the manager's answer (ids are issued again after a crash).
        """
        if self.mark is not None:
            return (missing.tag, missing.task) in text.read_mark(self.mark, self.id)
        if missing.native_id != self.id or missing.accepted is None:
            return False
        submit = self.submit + skew
        return missing.sent - _ROUNDED <= submit <= missing.accepted + _ROUNDED

    def row(self, missing: Missing) -> Row | None:
        """The task as it ended; None if it has not."""
        if self.end is None or not text.has_ended(self.state):
            return None
        code, signal = None, None
        if self.start is not None and self.state is not State.NODE_FAIL:
            code, signal = text.exit_status(self.status)
        return Row(
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


def sacct(said: str, delimiter: str, tag_field: str) -> list[Record]:
    """The records of `sacct --parsable` with SACCT_FIELDS, each field ending in `delimiter`.

    slurmdbd keeps comments only where it is told to, but always the words of the submission.
    """
    option = {"comment": "comment", "wckey": "wckey", "name": "jobname"}[tag_field]
    spoken = re.compile(rf" --{'job-name' if tag_field == 'name' else tag_field}=(ms-\S+)")
    found = []
    for line in text.records(said, delimiter, len(SACCT_FIELDS)):
        fields = dict(zip(SACCT_FIELDS, line, strict=True))
        words = spoken.search(fields["submitline"])
        node = _node(fields["nodelist"])
        mark = fields[option] or (words[1] if words else "")
        found.append(
            Record(
                id=fields["jobid"],
                user=fields["uid"],
                state=text.state(fields["state"].partition(" ")[0]),  # CANCELLED by 1000
                status=fields["exitcode"],
                submit=text.when(fields["submit"]) or 0.0,
                start=text.when(fields["start"]) if node else None,
                end=text.when(fields["end"]),
                node=node,
                mark=mark or ("" if fields["submitline"] else None),
            )
        )
    return found


def completion(line: str, tag_field: str) -> Record | None:
    """A line of jobcomp/filetxt, which has no comment; None if it is no such line."""
    found = _LINE.match(line)
    if found is None:
        return None
    id = found["id"] if found["array"] is None else f"{found['array']}_{found['task']}"
    node = _node(found["nodes"])
    return Record(
        id=id,
        user=found["user"],
        state=text.state(found["state"]),
        status=found["code"],
        submit=_local(found["submit"]) or 0.0,
        start=_local(found["start"]) if node else None,
        end=_local(found["end"]),
        node=node,
        mark=None if tag_field == "comment" else found[tag_field],
    )


def _node(nodes: str) -> str:
    """What is cancelled while it waits may have a start time, but never a node."""
    return "" if nodes in _NOBODY else nodes


def ended_at(line: str) -> float | None:
    """When the job of a line of jobcomp/filetxt ended; None if it is no such line."""
    found = re.search(r" EndTime=(\S+) ", line)
    return _local(found[1]) if found else None


def _local(moment: str) -> float | None:
    """The controller writes its local time, which is taken to be that of this host."""
    try:
        return time.mktime(time.strptime(moment, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def newest(
    records: Iterable[Record], missing: Iterable[Missing], skew: float
) -> dict[Missing, Record | None]:
    """The last record of each missing attempt; None of one that has none."""
    by_key: dict[object, list[Record]] = {}
    for record in records:
        marked = record.mark is not None and text.read_mark(record.mark, record.id)
        for key in marked or [record.id]:
            by_key.setdefault(key, []).append(record)
    found: dict[Missing, Record | None] = {}
    for one in missing:
        some = [*by_key.get((one.tag, one.task), ()), *by_key.get(one.native_id, ())]
        own = [record for record in some if record.belongs_to(one, skew)]
        found[one] = max(own, key=lambda r: (r.submit, r.start or 0.0), default=None)
    return found


def unsent(said: str) -> int:
    """From sdiag: how many messages to slurmdbd the controller still holds back."""
    found = re.search(r"^DBD Agent queue size:\s*(\d+)", said, re.MULTILINE)
    if found is None:
        raise ValueError("no queue of messages to slurmdbd")
    return int(found[1])


def purged(said: str) -> float | None:
    """From sacctmgr: the age in seconds at which records of jobs may be gone; None: never."""
    age = r"^PurgeJobAfter\s*=\s*(?:NONE|(\d+) *(hour|day|month)\S*)"
    found = re.search(age, said, re.MULTILINE)
    if found is None:
        raise ValueError("nothing of the age at which records of jobs are purged")
    if found[1] is None:
        return None
    return int(found[1]) * {"hour": 3600.0, "day": 86400.0, "month": 28 * 86400.0}[found[2]]
