"""Options and environment of sbatch for a submission, and its error messages. Pure."""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from metasched.adapters.base import Submission
from metasched.adapters.slurm.error_texts import CONTROLLER_ERRORS, TRANSPORT_ERRORS
from metasched.adapters.slurm.listing import format_mark
from metasched.model.adapter_errors import Refused, Unreachable
from metasched.model.arrays import format_indices
from metasched.model.job import Job
from metasched.model.manager_options import ManagerOptions
from metasched.model.output_paths import has_task_number, split_at_node
from metasched.model.refusal_scope import RefusalScope
from metasched.processes.commands import CommandResult

_MAX_NAME_LENGTH = 256  # characters; Slurm takes 1024 bytes, UTF-8 needs up to 4 for a character

# Options that users must not set: metasched relies on its own values.
_RESERVED_LONG = (
    *("array", "chdir", "clusters", "cluster", "error", "export", "export-file", "get-user-env"),
    *("gid", "help", "input", "output", "parsable", "quiet", "requeue", "test-only", "uid"),
    *("usage", "version", "wait", "wrap"),
)
_RESERVED_SHORT = "aDeihMoQVW"
_TAG_OPTIONS = {"comment": "comment", "wckey": "wckey", "name": "job-name"}  # by tag_field
_SHORT_FLAGS = "HkOsv"  # short options without a value

# Errors of the controller that pass. The first pattern that matches decides for whom they hold.
# Names of limits are those of squeue(1).
_RETRYABLE: tuple[tuple[re.Pattern[str], RefusalScope], ...] = (
    (re.compile("QOSGrpSubmitJob"), "qos"),
    (re.compile("QOSMaxSubmitJobPerUser"), "user+qos"),
    (re.compile("QOSMaxSubmitJob.*PerAccount|MaxSubmitJobsPerAccount"), "account+qos"),
    (re.compile("AssocGrpSubmitJob"), "account"),
    (re.compile("AssocMaxSubmitJob"), "user+account"),
    (re.compile("SubmitJob"), "user"),
    (re.compile("usage threshold"), "user+qos"),
    (re.compile("reservation not usable now"), "job"),
    (re.compile("Partition in DOWN state|submissions disabled"), "partition"),
    (
        re.compile(
            "Required (node|partition) not available|configuration not available now|nodes are busy"
        ),
        "partition",
    ),
    (re.compile("try again"), "cluster"),
)
# Numbers of errors that are the cluster's fault, not the job's, so they pass, too: MaxJobCount,
# files, credentials, standby, changed settings, disabled, ports, internal; deferred, power.
_FAULTS_OF_CLUSTER = frozenset(
    {2007, 2019, 2026, 2027, 2030, 2032, 2033, 2034, 2037, 2043, 2049, 2059, 2090, 2091, 2097}
    | {2125, 2131, 2177}
)
_POLICY_LIMIT = re.compile("violates accounting/QOS policy")
_POLICY_DETAIL = re.compile(r"(Assoc|QOS)\w+")
_FAILED = re.compile(r"(?:/.*/)?\w+: error: Batch job submission failed: (.*)")
_NUMBERS = {text: number for number, text in CONTROLLER_ERRORS}
# Errors of the C library by which a connection fails. Others are also said otherwise: a plug-in
# of the controller that returns 1 refuses with "Operation not permitted".
_NETWORK_ERRORS = frozenset(
    {errno.EINTR, errno.EIO, errno.EBADF, errno.EAGAIN, errno.ENFILE, errno.EMFILE, errno.EPIPE}
    | {errno.EPROTO, errno.ENOBUFS, errno.ENOMEM, errno.EADDRINUSE, errno.EADDRNOTAVAIL}
    | {errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH}
    | {errno.ECONNABORTED, errno.ECONNRESET, errno.ECONNREFUSED, errno.EISCONN, errno.ENOTCONN}
    | {errno.ESHUTDOWN, errno.ETIMEDOUT, errno.EALREADY, errno.EINPROGRESS, errno.ENOTSOCK}
)
# Texts of a connection that failed. Beside Slurm's own these are the C library's.
_TRANSPORT_TEXTS = {text for _, text in TRANSPORT_ERRORS} | set(map(os.strerror, _NETWORK_ERRORS))
_NO_CONNECTION = re.compile(
    r"(Could not establish|Unable to establish) a? ?configuration source.*"
    r"|Munge encode failed: .*|resolve_ctls_from_dns_srv: .*|.*Unable to contact slurm controller.*"
)
# Errors of sbatch before it contacts the controller, in full. A plug-in that runs later has words
# of its own.
_NOT_SENT = re.compile(
    r"(unrecognized|invalid) option (-- )?'.*'"
    r"|option requires an argument -- '.'"
    r"|option '.*' (requires an argument|is ambiguous.*|doesn't allow an argument)"
    r"|Invalid (--[\w-]+|-W umask=) (specification|argument)(: .*)?"
    r'|Invalid numeric value ".*" for --[\w-]+\.'
    r"|Invalid directive found in batch script: .*"
    r"|Invalid generic resource \(gres\) specification"
    r'|unrecognized --[\w-]+ argument ".*"(, see --[\w-]+=help)?'
    r'|".*" is not a valid node count|invalid --profile=.* option|--propagate=.* is not valid\.'
    r"|Priority must be (>=|<) \d+|--.* (are mutually exclusive|is mutually exclusive with --.*)\.?"
    r"|Script arguments not permitted with --wrap option"
    r"|Batch script (is empty!|contains only whitespace!)"
    r"|For instance: #!/bin/sh|contain a NULL character '\\0'\."
    r"|instead of expected UNIX line breaks \(\\n\)\."
)
_NOT_SENT_EXIT_CODES = (1, 255)
# Exit codes of timeout(1), and of a shell whose command was killed by a signal.
_KILLED = frozenset({124, *range(129, 193)})
_JOB_ID = re.compile(r"([1-9]\d{0,9})(;[\w.-]*)?")


def sbatch_arguments(
    submission: Submission, index: int | None, tag_field: str, array: Sequence[int] = ()
) -> list[str]:
    """Return the arguments after `sbatch --export-file=...`; it reads the script from its input.

    They submit the task `index` or, with None, an array of the tasks `array`. Each option shares
    an argument with its value, so no value can become an option. Raises Refused if Slurm cannot
    express the request.
    """
    job, payload = submission.job, submission.payload
    requested = job.manager_options or ManagerOptions()
    label = format_mark(submission.tag, index)
    options: dict[str, str | None] = {  # None: the option has no value
        # first: accounting is searched for its first occurrence in the command line
        _TAG_OPTIONS[tag_field]: label,
        "export": "ALL",  # of --export-file, which alone exports nothing from 26.05 on
        "parsable": None,
        "ignore-pbs": None,
        "chdir": payload.directory,
        "input": "/dev/null",
        "output": output_path(payload.output, job, index),
        "open-mode": "append" if requested.append_output else "truncate",
        "ntasks": str(job.tasks),
        "cpus-per-task": str(job.cpus_per_task),
        **_resource_options(job),
        **_manager_options(requested),
    }
    if requested.wckey and tag_field != "wckey":
        options["wckey"] = requested.wckey
    if job.requeue is not None:
        options["requeue" if job.requeue else "no-requeue"] = None
    if tag_field != "name":
        options["job-name"] = job_name(job.name) or submission.tag
    if tag_field != "comment":
        options["comment"] = job_name(job.comment or job.name)
    if array:
        options["array"] = format_indices(array)
    if submission.reservation:
        options["reservation"] = submission.reservation
    if payload.error is not None:
        options["error"] = output_path(payload.error, job, index)
    if (limit := time_limit_minutes(job)) is not None:
        options["time"] = str(limit)
    for option in ("account", "partition", "qos", "constraint"):
        value = getattr(job, option)
        if value is not None:
            options[option] = value
    command = [
        f"--{key}" if value is None else f"--{key}={value}" for key, value in options.items()
    ]
    command += [*_native_options(submission.options, tag_field), "/dev/stdin", *payload.arguments]
    if any("\0" in argument for argument in command):
        raise Refused("an option, a path or an argument contains a NUL character")
    return command


def _resource_options(job: Job) -> dict[str, str | None]:
    options: dict[str, str | None] = {}
    if job.nodes is not None:
        options["nodes"] = str(job.nodes)
    if job.tasks_per_node is not None:
        options["ntasks-per-node"] = str(job.tasks_per_node)
    if job.memory is not None:
        options["mem"] = f"{job.memory}M"
    if job.memory_per_cpu is not None:
        options["mem-per-cpu"] = f"{job.memory_per_cpu}M"
    if job.licences:
        options["licenses"] = ",".join(f"{name}:{count}" for name, count in job.licences.items())
    if job.gres:
        options["gres"] = ",".join(f"{gres_name}:{count}" for gres_name, count in job.gres.items())
    if job.exclusive:
        options["exclusive"] = None
    return options


def _manager_options(requested: ManagerOptions) -> dict[str, str | None]:
    options: dict[str, str | None] = {}
    if (signal := requested.signal) is not None:
        target = f"{'R' * signal.may_overlap}{'B' * signal.batch_only}"
        options["signal"] = f"{target and f'{target}:'}{signal.number}@{signal.seconds}"
    if requested.nice:
        options["nice"] = str(requested.nice)
    if requested.nodelist:
        options["nodelist"] = requested.nodelist
    if requested.exclude:
        options["exclude"] = requested.exclude
    if requested.unlimited:
        options["time"] = "0"
    return options


def time_limit_minutes(job: Job) -> int | None:
    """Return the job's time limit in minutes, rounded up; None if it has none."""
    return None if job.time_limit is None else max(1, math.ceil(job.time_limit / 60))


def job_name(requested: str) -> str:
    """Return the name as Slurm can store it: a line, not too long, no broken characters."""
    clean = "".join(c if c.isprintable() else " " for c in requested[:_MAX_NAME_LENGTH])
    return clean.encode("utf-8", "replace").decode().strip()


def output_path(pattern: str, job: Job, index: int | None) -> str:
    """Return a path that sbatch expands: %N, and %a for an array (`index` None).

    Raises Refused for %N with a backslash: sbatch then expands nothing.
    """
    if index is None:
        return re.sub(r"%(\d{0,2}a|N|%)?", lambda match: "%" + (match[1] or "%"), pattern)
    parts = split_at_node(pattern, index, job.task_number(index))
    if "\\" not in pattern:
        return "%N".join(part.replace("%", "%%") for part in parts)
    if len(parts) > 1:
        raise Refused("Slurm expands no %N in a path with a backslash")
    return parts[0].replace("\\", "\\\\")


def _native_options(options: tuple[str, ...], tag_field: str) -> list[str]:
    """Return the user's options, each as a single argument with its value.

    So no value can become the script. Raises Refused for options that metasched sets itself, and
    for arguments that are no options.
    """
    merged: list[str] = []
    tag_option, tag_flag = _TAG_OPTIONS[tag_field], "J" if tag_field == "name" else ""
    value_may_follow = False
    for argument in options:
        if argument in ("--", ":", "-") or not (argument.startswith("-") or value_may_follow):
            raise Refused(f"native option {argument!r} is not an option of sbatch")
        if argument.startswith("--"):
            option_name = argument[2:].partition("=")[0]
            # sbatch accepts any unique abbreviation
            if any(name.startswith(option_name) for name in (*_RESERVED_LONG, tag_option)):
                raise Refused(
                    f"native option {argument!r} is not allowed: metasched sets --{option_name}"
                )
            value_may_follow = "=" not in argument
            merged.append(argument)
        elif argument.startswith("-"):
            flags = argument[1:].lstrip(_SHORT_FLAGS)
            if flags[:1] and flags[0] in _RESERVED_SHORT + tag_flag:
                raise Refused(f"native option {argument!r} is not allowed: metasched sets it")
            value_may_follow = len(flags) == 1
            merged.append(argument)
        else:
            merged[-1] += argument if not merged[-1].startswith("--") else f"={argument}"
            value_may_follow = False
    return merged


def task_environment(submission: Submission, index: int, cluster: str) -> dict[str, str]:
    """Return the environment of a task, with the variables that sbatch would set."""
    return submission.environment(index, cluster) | {
        "SLURM_JOB_NAME": submission.job.name,
        "SLURM_SUBMIT_DIR": submission.payload.directory,
    }


def environment_file(submission: Submission, index: int, cluster: str) -> bytes:
    """Return the environment of a task for --export-file: NAME=value, each ended by a NUL."""
    values = task_environment(submission, index, cluster)
    return "".join(f"{name}={value}\0" for name, value in values.items()).encode(
        "utf-8", "surrogateescape"
    )


def can_be_array(submission: Submission) -> bool:
    """Return whether paths and script of the submission permit an array."""
    payload = submission.payload
    paths = f"{payload.output}{payload.error}"
    return (
        payload.script.startswith("#!")
        and not re.search(r"[\0\r]", payload.script)
        and ("\\" not in paths)
        and not has_task_number(paths)
    )


def parse_answer(completed: CommandResult) -> str:
    """Return the job id that sbatch has printed.

    Raises Refused if its end proves that nothing was queued, else Unreachable.
    """
    exit_code, stdout, stderr = completed.exit_code, completed.stdout, completed.stderr
    # an id is an answer whatever follows: a plug-in may end sbatch after it
    job_ids = parse_job_ids(stdout)
    if len(job_ids) == 1:
        return job_ids.pop()
    refusal = None if job_ids else parse_refusal(exit_code, stderr)
    raise refusal or unproved_answer(exit_code, stdout, stderr)


def parse_job_ids(stdout: str) -> set[str]:
    """Return the job ids in the output of `sbatch --parsable`; plug-ins may print other lines."""
    matches = (_JOB_ID.fullmatch(line.strip()) for line in stdout.splitlines())
    return {match[1] for match in matches if match}


def parse_refusal(exit_code: int, stderr: str) -> Refused | None:
    """Return the refusal that sbatch's end proves; None if the job may have been queued.

    Proofs are a text that the controller alone sends, and an error from before the connection.
    """
    messages = list(_messages(stderr))
    if not messages:
        return None
    failed = _FAILED.fullmatch(stderr.rstrip().splitlines()[-1].strip())
    if failed is None:
        is_proved = exit_code in _NOT_SENT_EXIT_CODES and _NOT_SENT.fullmatch(messages[-1])
        return Refused(_one_line(messages)) if is_proved else None
    number = _NUMBERS.get(failed[1]) if exit_code == 1 else None
    return None if number is None else refusal_by_controller(number, messages)


def refusal_by_controller(number: int, messages: Sequence[str]) -> Refused:
    """Return the refusal by an error of the controller, with all messages that came with it."""
    reason = _one_line(messages)
    for pattern, scope in _RETRYABLE:
        if any(pattern.search(text) for text in messages):
            return Refused(reason, retryable=True, scope=scope)
    if number in _FAULTS_OF_CLUSTER:
        return Refused(reason, retryable=True)
    if _POLICY_LIMIT.search(messages[-1]):
        # Without a detail it may be a limit on the size or on the number of jobs, which passes.
        detailed = any(_POLICY_DETAIL.fullmatch(text) for text in messages)
        return Refused(reason, retryable=not detailed, scope="user")
    return Refused(reason)


def is_by_controller(message: str) -> bool:
    """Return whether a command's last message ends with a text that the controller alone sends."""
    return message.rpartition(": ")[2] in _NUMBERS


def is_about_connection(message: str) -> bool:
    """Return whether a command's last message ends with a text about the connection."""
    return message.rpartition(": ")[2] in _TRANSPORT_TEXTS


def is_transport_error(number: int) -> bool:
    """Return whether an error number of Slurm's library is about the connection."""
    return number in _NETWORK_ERRORS or 1000 <= number < 2000 or 5000 <= number < 7000


def unproved_answer(exit_code: int, stdout: str, stderr: str) -> Unreachable:
    """Return what sbatch's end means if it proves nothing.

    The sentence is a refusal if the job turns out not to be queued. A connection that failed, and a
    kill, are none.
    """
    messages = list(_messages(stderr))
    last = messages[-1] if messages else ""
    reason = f"sbatch: {_one_line(messages) or f'exit code {exit_code}, without an explanation'}"
    if exit_code == 0:
        reason = f"sbatch answered {stdout[:80]!r}, not a job id"
    is_connection = is_about_connection(last) or any(map(_NO_CONNECTION.fullmatch, messages))
    return Unreachable(reason, "" if is_connection or exit_code in _KILLED else reason)


def _messages(stderr: str) -> Iterator[str]:
    for line in stderr.splitlines():
        text = re.sub(r"^(/.*/)?\w+: (error: |fatal: )?", "", line).strip()
        if text and not text.startswith('Try "'):
            yield text


def error_message(stderr: str) -> str:
    """Return a command's error messages as a line, without the command's name."""
    return _one_line(_messages(stderr)) or "no explanation"


def _one_line(messages: Iterable[str]) -> str:
    return "; ".join(messages)[:500]
