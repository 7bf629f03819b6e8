"""The shell script that a DRMAA system runs for a task: a wrapper around the user's script. Pure.

It carries environment, arguments and script byte for byte. It writes the output itself: managers
expand `$`, `%` and `:` in paths, append to files, and break values of several lines. Exit codes
with a special meaning for the manager are replaced by otherwise unused signals. Exit codes 129 to
191 are replaced by the signals that they stand for in a shell.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping

from metasched.adapters.base import Submission
from metasched.adapters.interpreter import exec_lines
from metasched.adapters.slurm_dialect import batch_variables
from metasched.model.adapter_errors import Refused
from metasched.model.job import Job
from metasched.model.manager_options import EarlySignal, ManagerOptions
from metasched.model.output_paths import split_at_node

# Variables set by Grid Engine for the job; they override the values of the submit host.
# fmt: off
_MANAGER_VARIABLES = (
    "ARC", "ENVIRONMENT", "HOSTNAME", "JOB_ID", "JOB_NAME", "JOB_SCRIPT", "NHOSTS", "NQUEUES",
    "NSLOTS", "PE", "PE_HOSTFILE", "QUEUE", "REQNAME", "REQUEST", "RESTARTED", "TMP", "TMPDIR",
)
# fmt: on
# the id of the job, as its manager calls it
_NATIVE_ID = "${JOB_ID:-${PBS_JOBID:-${LSB_JOBID:-$SLURM_JOB_ID}}}"


def build_job_script(
    submission: Submission, index: int, cluster: str, exit_code_of_signal: Mapping[int, int]
) -> bytes:
    """Return the wrapper of a task, for /bin/sh.

    `exit_code_of_signal` maps signals to the exit codes that they replace. Raises Refused if a text
    holds a NUL character.
    """
    payload = submission.payload
    variables = submission.environment(index, cluster)
    batch = batch_variables(submission, cluster, submission.job.cpus)
    variables |= batch
    quote = shlex.quote
    environment = [
        *(quote(f"{name}={value}") for name, value in variables.items()),
        *(f'${{{name}+"{name}=${name}"}}' for name in _MANAGER_VARIABLES),
        f'"METASCHED_NATIVE_ID={_NATIVE_ID}"',
        *(['"SLURM_JOB_NODELIST=$(uname -n)"'] if batch else []),
    ]
    requested = submission.job.manager_options or ManagerOptions()
    write = ">>" if requested.append_output else ">"
    output = _shell_path(payload.output, submission.job, index)
    error = (
        "2>&1"
        if payload.error is None
        else f"2{write}{_shell_path(payload.error, submission.job, index)}"
    )
    timer = _timer_lines(submission, index, requested.signal)
    lines = [
        "#!/bin/sh",
        f"umask {payload.umask:04o}",
        f"exec </dev/null {write}{output} {error} || exit 1",
        f"cd {quote(payload.directory)} || exit 1",
        " ".join(["set --", *map(quote, payload.arguments)]),
        # caught, not ignored: the payload starts with default actions
        "trap : HUP INT TERM USR1 USR2 XCPU",
        *timer,
        "(",
        *exec_lines(payload.script, environment),
        ")",
        "code=$?",
        *(["kill $_ms_timer 2>/dev/null"] if timer else []),
        "trap - HUP INT TERM USR1 USR2 XCPU",
        "ulimit -c 0",
        "case $code in",
        *(f"{code}) kill -{number} $$;;" for number, code in exit_code_of_signal.items()),
        "147|148|149|150) ;;",  # signals that stop a process without ending it
        # a shell reports a signal as 128 + its number; the accounting must report the signal
        "129|1[3-8]?|19[01]) kill -$((code - 128)) $$;;",
        "esac",
        'exit "$code"',
    ]
    text = "\n".join(lines) + "\n"
    if "\0" in text:
        raise Refused("the script, a path or an argument holds a NUL character")
    # lines of the user's script that begin with #$ must not act as directives of Grid Engine
    return text.replace("\n#$", "\n''#$").encode("utf-8", "surrogateescape")


# Runs as a child of the wrapper, with its own pid as $$: a signal for all children spares it.
_TIMER = (
    "trap 'kill \"$sleep\" 2>/dev/null; exit' TERM",
    'sleep "$1" & sleep=$!; wait "$sleep"; trap - TERM',
    'grep -q "^PPid:[[:space:]]*$PPID$" /proc/$$/status || exit',  # the wrapper lives
    'children() { cat "/proc/$1/task/$1/children"; }',
)
_SIGNAL_SCRIPT = (
    "for pid in $(children $PPID); do",
    '  [ "$pid" = $$ ] || kill -"$2" $pid',
    "done",
)
_SIGNAL_CHILD_SCRIPT = (  # of the shell that waits for it
    "for shell in $(children $PPID); do",
    '  [ "$shell" = $$ ] || kill -"$2" $(children $shell)',
    "done",
)
_SIGNAL_STEPS = (
    'for file in $(grep -lszFx "METASCHED_TAG=$3" /proc/[0-9]*/environ); do',
    '  grep -qszFx "METASCHED_TASK=$4" "$file" || continue',
    '  grep -qsz "^SLURM_STEP_ID=" "$file" || continue',
    '  pid=${file#/proc/}; kill -"$2" "${pid%/environ}"',
    "done",
)


def _timer_lines(submission: Submission, index: int, early: EarlySignal | None) -> list[str]:
    """Return a command in the background that sends the signal before the time limit, if any.

    It runs on the first node of the job; steps outside Slurm run there, too (`drop_in/step`).
    """
    if early is None or submission.job.time_limit is None:
        return []
    delay = max(math.ceil(submission.job.time_limit) - early.seconds, 0)
    send: tuple[str, ...] = _SIGNAL_STEPS
    if early.batch_only:
        send = _SIGNAL_CHILD_SCRIPT if submission.runs_as_child else _SIGNAL_SCRIPT
    program = "\n".join((*_TIMER, *send))
    arguments = (str(delay), str(early.number), submission.tag, str(index))
    command = " ".join(map(shlex.quote, ("/bin/sh", "-c", program, "timer", *arguments)))
    return [f"{command} >/dev/null 2>&1 &", "_ms_timer=$!"]


def _shell_path(path: str, job: Job, index: int) -> str:
    """Quote a path for the shell, with the node's name filled in at run time."""
    parts = split_at_node(path, index, job.task_number(index))
    return '"$(uname -n | cut -d. -f1)"'.join(map(shlex.quote, parts))
