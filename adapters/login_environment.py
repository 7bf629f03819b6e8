"""Scripts that run in the environment of a login shell instead of that of the submission. Pure.

The shell reads the profiles of the host where the job runs, so modules and paths of the submit host
do not reach the job. Variables that the user has named by `--export` are set after the profiles.
"""

from __future__ import annotations

import re
from dataclasses import replace
from shlex import quote

from msgspec import structs

from metasched.adapters.base import Submission
from metasched.adapters.interpreter import exec_lines
from metasched.paths import NAMED_VARIABLES, drop_in_folder

_IDENTITY = ("HOME", "USER", "LOGNAME", "SHELL")  # a profile needs them; their owner is the same
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def with_login_environment(submission: Submission) -> Submission:
    """Return the submission with a script that a login shell runs, if its cluster asks for that."""
    if not submission.login:
        return submission
    payload = submission.payload
    variables = payload.environment
    names = [name for name in variables.get(NAMED_VARIABLES, "").split(",") if name in variables]
    identity = [name for name in _IDENTITY if name in variables]
    folder = drop_in_folder()
    in_front = submission.exports_job_id and submission.has_drop_ins
    in_front = in_front or folder in variables.get("PATH", "").split(":")
    lines = [
        "#!/bin/bash -l",
        *([f"[ ! -x {quote(folder)}/srun ] || PATH={quote(folder)}:$PATH"] if in_front else []),
        *[
            f"export {name}={quote(variables[name])}"
            for name in names
            if _SHELL_NAME.fullmatch(name)
        ],
        *exec_lines(payload.script),
        "",
    ]
    environment = {name: variables[name] for name in (*identity, *names)}
    return structs.replace(
        submission,
        payload=replace(payload, script="\n".join(lines), environment=environment),
        login=False,
    )
