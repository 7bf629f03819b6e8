"""`scontrol update` of jobs of metasched: attributes of Slurm as those of `metasched modify`."""

from __future__ import annotations

import os
import time

from metasched.client.connection import ClientError, NotFound, PermissionDenied
from metasched.drop_in.command import CommandError, fail, fail_for_job, listed_tasks
from metasched.drop_in.format_language import printable
from metasched.drop_in.job import OPEN_STATES
from metasched.drop_in.job_filters import user_name
from metasched.drop_in.slurm_time import parse_time, parse_time_limit
from metasched.paths import FOLD

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metasched.client.connection import Connection

# names in Slurm, the shortest form of each, the attribute of metasched
_ATTRIBUTES = (
    ("account", 1, "account"),
    ("deadline", 3, "deadline"),
    ("eligibletime", 1, "begin"),
    ("features", 1, "constraint"),
    ("jobname", 4, "name"),
    ("name", 2, "name"),
    ("partition", 2, "partition"),
    ("priority", 2, "priority"),
    ("qos", 1, "qos"),
    ("starttime", 2, "begin"),
    ("timelimit", 5, "time_limit"),
)


def update_jobs(connection: Connection, ids: Sequence[str], words: Sequence[str]) -> int:
    """Change jobs by the words `Attribute=value` of `update`. Return the exit code.

    Nothing changes if a word is invalid, or metasched does not map it.
    """
    changes = _parse_changes(_with_absolute_limit(connection, ids, words))
    held = changes.pop("priority", None) is not None
    if not changes and not held:
        raise CommandError("No changes specified")
    code = 0
    for id in ids:
        try:
            if changes:
                body = {"choice": {"jobs": [id]}, "changes": changes}
                connection.request("POST", "/jobs/modify", FOLD, body)
            if held:
                connection.request("POST", "/jobs/hold", FOLD, {"jobs": [id]})
        except NotFound:
            code = fail_for_job(id, "Invalid job id specified")
        except PermissionDenied as error:
            problem = _refusal(connection, id)
            code = fail_for_job(id, problem) if problem else fail(f"slurm_update error: {error}")
        except ClientError as error:
            if error.exit_code == 4:  # no daemon: the other jobs would fail, too
                raise
            code = fail(f"slurm_update error: {error}")
    return code


def _refusal(connection: Connection, id: str) -> str:
    """Return in Slurm's words why a job was not changed; "": the daemon's own say it."""
    rows = list(listed_tasks(connection, {"job": [id], "skip_missing": "true", **FOLD}))
    caller = user_name(str(os.getuid()))
    if not rows or any(row["user"] != caller for row in rows):
        return "Invalid user id"
    ended = all(row["state"] not in OPEN_STATES.split(",") for row in rows)
    return "Job has already finished" if ended else ""


def find_named_jobs(connection: Connection, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the ids of the open jobs that `JobName=a` selects, and the words that change them.

    They are the caller's, or of the user of `UserId=`. CommandError if there is none.
    """
    name, user, changes = "", str(os.getuid()), []
    for word in words:
        key, _, value = word.partition("=")
        if len(key) > 3 and "jobname".startswith(key.lower()):
            name = value
        elif len(key) > 1 and "userid".startswith(key.lower()):
            user = value
        else:
            changes.append(word)
    if not name:
        raise CommandError(
            "No valid entity in update command\nInput line must include JobId or JobName; "
            "with -M also the entities of a cluster"
        )
    query = {"state": OPEN_STATES, "user": user_name(user)}
    rows = [row for row in listed_tasks(connection, {**query, **FOLD}) if row["name"] == name]
    if not rows:
        raise CommandError(f"scontrol: error: No jobs with name '{printable(name)}'")
    return list(dict.fromkeys(str(row["job"]) for row in rows)), changes


def _parse_changes(words: Sequence[str]) -> dict[str, object]:
    """Return the new values by the attributes of metasched. CommandError in Slurm's words."""
    changes: dict[str, object] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator:
            raise CommandError(f"Invalid input: {printable(word)}\nRequest aborted")
        name = key.rstrip("+-").lower()
        if name in ("job", "jobid"):
            continue
        attribute = next(
            (
                attribute
                for full, length, attribute in _ATTRIBUTES
                if len(name) >= length and full.startswith(name)
            ),
            None,
        )
        # only its zero, a hold, means the same in metasched
        if attribute is None or key[-1:] in "+-" or (attribute == "priority" and value != "0"):
            raise CommandError(
                f"Update of this parameter is not supported: {printable(word)}\nRequest aborted"
            )
        changes[attribute] = _parse_value(attribute, value)
    return changes


def _with_absolute_limit(
    connection: Connection, ids: Sequence[str], words: Sequence[str]
) -> list[str]:
    """Return the words with the time limit that `TimeLimit=+5` or `TimeLimit-=5` means.

    CommandError if it is none, or several jobs are named, as in Slurm.
    """
    absolute: list[str] = []
    names_job = False
    for word in words:
        key, separator, value = word.partition("=")
        name = (key[:-1] if key[-1:] in ("+", "-") else key).lower()
        names_job = names_job or name in ("job", "jobid")
        is_limit = len(name) >= 5 and "timelimit".startswith(name)
        signs = (key[-1:] in "+-") + (value[:1] in ("+", "-"))
        if not (separator and is_limit and signs):
            absolute.append(word)
            continue
        if signs > 1:
            raise CommandError(
                "scontrol: error: Invalid syntax, variations of +=- are not accepted."
            )
        sign = key[-1] if key[-1] in "+-" else value[0]
        text = value[1:] if value[:1] in ("+", "-") else value
        change = parse_time_limit(text) if text[:1].isdecimal() else None  # UNLIMITED is no change
        if change is None:
            raise CommandError("scontrol: error: Invalid TimeLimit value")
        if not names_job:
            raise CommandError(
                "scontrol: error: JobId must precede TimeLimit increment or decrement"
            )
        limit = _changed_limit(_time_limit(connection, ids), change, sign == "-")
        absolute.append(f"TimeLimit={limit}")
    return absolute


def _time_limit(connection: Connection, ids: Sequence[str]) -> float | None:
    """Return the time limit of the only job that is named, in seconds; None: it has none."""
    [id, *others] = ids
    if others or "[" in id:
        raise CommandError(f"scontrol: error: Invalid job ID {printable(','.join(ids))}")
    query = {"job": [id], "skip_missing": "true", **FOLD}
    row = next(listed_tasks(connection, query), None)
    if row is None:
        problem = f"Could not load state information for job {id}: Invalid job id specified"
        raise CommandError(f"scontrol: error: {problem}")
    limit: float | None = row["time_limit"]
    return limit


def _changed_limit(limit: float | None, change: int, is_decrement: bool) -> int:
    """Return a time limit in minutes after a change; `limit` and `change` are in seconds."""
    if limit is None:
        raise CommandError(
            "scontrol: error: the job has no TimeLimit to change; write it without + or -"
        )
    present, minutes = -int(-limit // 60), change // 60
    if not is_decrement:
        return present + minutes
    if minutes > present:
        sizes = f"({minutes} > {present})"
        raise CommandError(
            f"scontrol: error: TimeLimit decrement larger than current time limit {sizes}"
        )
    if minutes == present:  # 0 stands for no limit
        raise CommandError("scontrol: error: TimeLimit would be 0; cancel the job instead")
    return present - minutes


def _parse_value(attribute: str, text: str) -> object:
    if attribute == "time_limit":
        limit = parse_time_limit(text)
        if limit is None:
            raise CommandError("scontrol: error: Invalid TimeLimit value")
        return limit or None  # 0: no limit
    if attribute in ("begin", "deadline"):
        moment = parse_time(text, time.time())
        if moment is None:
            raise CommandError(f"scontrol: error: Invalid time specification {printable(text)}")
        return moment
    return text if text or attribute == "name" else None
