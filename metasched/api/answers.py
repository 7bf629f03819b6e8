"""Rows of jobs from stored rows, and JSON.

Routes return answers encoded: FastAPI would check and encode each row anew, in the event loop.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi.responses import Response

from metasched.client.job_answers import JobDetails, JobRow
from metasched.core.transitions import QUEUED_OR_HELD
from metasched.model.arrays import format_run
from metasched.model.job import Job, Payload
from metasched.model.manager_options import ManagerOptions
from metasched.model.units import iso
from metasched.policies.eligible import choose_gres

_NO_OPTIONS = ManagerOptions()  # checked once, not for each row
# native options that Slurm shows everybody in listings; others may hold secrets of the owner
_PUBLIC_OPTION = re.compile(
    r"--(?:contiguous|reboot|oversubscribe|exclusive(?:=(?:user|mcs|topo))?|(?:tmp|mincpus"
    r"|extra-node-info|sockets-per-node|cores-per-socket|threads-per-core)"
    r"=[0-9:*-]{1,32}[KMGTkmgt]?)"
)
# parts of native options in which a space ends no word; listings read too many for `shlex`
_QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.""", re.DOTALL)


def job_details(
    row: JobRow, stored: Mapping[str, Any], job: Job, payload: Payload, *, is_readable: bool
) -> JobDetails:
    """Return the details of a task from its row of `status` and its stored data.

    Unless `is_readable`, they are those that Slurm shows everybody.
    """
    options = job.manager_options or _NO_OPTIONS
    if row["state"] not in QUEUED_OR_HELD:
        job = choose_gres(job, stored["gres_choice"]).with_licences(stored["licence_choice"])
    folded = stored.get("folded")
    return JobDetails(
        **row,
        number=job.task_number(stored["task_index"]),
        clusters=job.clusters,
        cpus=job.cpus,
        tasks=job.tasks,
        nodes=job.nodes,
        memory=job.memory,
        memory_per_cpu=job.memory_per_cpu,
        gres=job.gres,
        gres_alternatives=job.gres_alternatives,
        exclusive=job.exclusive,
        time_limit=job.time_limit,
        begin=iso(job.begin),
        deadline=iso(job.deadline),
        account=job.account,
        partition=job.partition,
        qos=job.qos,
        constraint=job.constraint,
        comment=job.comment,
        wckey=options.wckey,
        nice=options.nice,
        nodelist=options.nodelist,
        exclude=options.exclude,
        native=job.native if is_readable else public_options(job.native),
        licences=job.licences,
        licence_choices=job.licence_choices,
        dependency=job.dependency,
        requeue=bool(job.requeue),
        reservation=job.reservation,
        directory=payload.directory,
        output=payload.output,
        error=payload.error,
        user_class=job.user_class,
        attempt_state=stored["attempt_state"],
        signal=stored["signal"],
        node_list=stored["node"] or "",
        elapsed=_elapsed(stored),
        cpu_seconds=stored["cpu_seconds"],
        max_memory=stored["max_memory"],
        restarts=stored["restarts"] or 0,
        folded=None if folded is None else format_run(folded),
    )


def public_options(native: Mapping[str, str]) -> dict[str, str]:
    """Return the native options, by cluster, that every account may see; O(n) in their length."""
    public = {
        cluster: " ".join(filter(_PUBLIC_OPTION.fullmatch, re.split(r"[ \t\r\n]+", words)))
        for cluster, words in ((name, _QUOTED.sub("''", text)) for name, text in native.items())
    }
    return {cluster: text for cluster, text in public.items() if text}


def _elapsed(stored: Mapping[str, Any]) -> float | None:
    started, ended = stored["started"], stored["ended"]
    return None if started is None else max((ended or time.time()) - started, 0.0)


def encoded(answer: object) -> Response:
    """Encode an answer as JSON."""
    return Response(msgspec.json.encode(answer), media_type="application/json")
