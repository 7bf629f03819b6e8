"""The script that a DRMAA system runs for one task: a wrapper around the user's, in plain sh. Pure.

It carries the environment, the arguments and the script byte for byte, and writes the output
itself: managers fill in `$`, `%` and `:` in paths, append to files, and break values of several
lines. And it hides exit codes to which a manager gives a meaning of its own behind signals that
nothing else uses. An exit code of 129 to 191 is told as the signal that a shell means by it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from metasched.adapters.base import Submission
from metasched.adapters.errors import Refused
from metasched.adapters.interpreter import exec_lines
from metasched.model.output_paths import split_at_node

# Variables that Grid Engine makes for the job: its own values, not those of the submit host.
_MANAGER_VARIABLES = (
    *("ARC", "ENVIRONMENT", "HOSTNAME", "JOB_ID", "JOB_NAME", "JOB_SCRIPT", "NHOSTS", "NQUEUES"),
    *("NSLOTS", "PE", "PE_HOSTFILE", "QUEUE", "REQNAME", "REQUEST", "RESTARTED", "TMP", "TMPDIR"),
)


def build_job_script(
    submission: Submission, index: int, cluster: str, exit_code_of_signal: Mapping[int, int]
) -> bytes:
    """The wrapper of one task, for /bin/sh. `hidden`: signals that stand for exit codes."""
    payload = submission.payload
    variables = submission.environment(index, cluster)
    quote = shlex.quote
    environment = [
        *(quote(f"{name}={value}") for name, value in variables.items()),
        *(f'${{{name}+"{name}=${name}"}}' for name in _MANAGER_VARIABLES),
    ]
    output = _shell_path(payload.output, index)
    error = "2>&1" if payload.error is None else f"2>{_shell_path(payload.error, index)}"
    lines = [
        "#!/bin/sh",
        f"umask {payload.umask:04o}",
        f"exec </dev/null >{output} {error} || exit 1",
        f"cd {quote(payload.directory)} || exit 1",
        " ".join(["set --", *map(quote, payload.arguments)]),
        # Caught, not ignored: the payload starts with their defaults and may act on them.
        "trap : HUP INT TERM USR1 USR2 XCPU",
        "(",
        *exec_lines(payload.script, environment),
        ")",
        "code=$?",
        "trap - HUP INT TERM USR1 USR2 XCPU",
        "ulimit -c 0",
        "case $code in",
        *(f"{code}) kill -{number} $$;;" for number, code in exit_code_of_signal.items()),
        "147|148|149|150) ;;",  # signals that stop, and end nothing
        # A shell tells a signal as 128 + its number; the accounting must tell the signal.
        "129|1[3-8]?|19[01]) kill -$((code - 128)) $$;;",
        "esac",
        'exit "$code"',
    ]
    text = "\n".join(lines) + "\n"
    if "\0" in text:
        raise Refused("the script, a path or an argument holds a NUL character")
    # Lines of the user's that begin with #$ are no directives for Grid Engine.
    return text.replace("\n#$", "\n''#$").encode("utf-8", "surrogateescape")


def _shell_path(path: str, index: int) -> str:
    """A path as a word of the shell."""
    return '"$(uname -n | cut -d. -f1)"'.join(map(shlex.quote, split_at_node(path, index)))
