"""The site's lines of sh before the scripts of a cluster, such as those that load modules. Pure."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from metasched.adapters.base import Submission
from metasched.adapters.interpreter import exec_lines


def with_prologue(submission: Submission) -> Submission:
    """Return the submission with a script that runs its prologue, then the user's script.

    The prologue sees the arguments of the script. Its output goes to the job's output; its `exit`
    ends the job.
    """
    if not submission.prologue:
        return submission
    payload = submission.payload
    lines = ["#!/bin/sh", submission.prologue, *exec_lines(payload.script), ""]
    return structs.replace(
        submission, payload=replace(payload, script="\n".join(lines)), prologue=""
    )
