"""The native specification (qsub options) of a task. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from metasched.adapters.base import Submission
from metasched.adapters.gridengine.listing import ComplexAttribute, job_name
from metasched.adapters.gridengine.reservation_listing import AdvanceReservation
from metasched.model.adapter_errors import AdapterError, Refused, Unreachable
from metasched.model.host_lists import expand_hosts
from metasched.model.job import Job
from metasched.model.manager_options import ManagerOptions
from metasched.model.refusal_scope import RefusalScope
from metasched.processes.commands import CommandResult

# Options that a user must not give: metasched identifies, finds and ends tasks by them. A job
# verifier (-jsv) would stay with the DRMAA session and verify all later jobs too.
# fmt: off
_FORBIDDEN_OPTIONS = {
    "-A", "-N", "-@", "-C", "-S", "-b", "-clear", "-r", "-shell", "-sync", "-t", "-tc", "-terse",
    "-verify", "-w", "-now", "-help", "-ckpt", "-c", "-dl", "-notify", "-jsv",
}
_NO_VALUE = ("-V", "-cwd", "-h", "-hard", "-soft")
_ONE_VALUE = (
    "-M", "-P", "-R", "-a", "-ac", "-ar", "-dc", "-display", "-e", "-he", "-hold_jid",
    "-hold_jid_ad", "-i", "-j", "-js", "-l", "-m", "-masterq", "-o", "-ot", "-p", "-q", "-sc", "-v",
    "-wd",
)
_TWO_VALUES = ("-binding", "-pe")
# fmt: on

# How many values each option of qsub takes at most. A further word would be taken as the script.
_VALUE_COUNTS = {
    **dict.fromkeys(_NO_VALUE, 0),
    **dict.fromkeys(_ONE_VALUE, 1),
    **dict.fromkeys(_TWO_VALUES, 2),
}

MAX_DELAY = 1023  # of -p: the lowest priority of a job is -1023

# Rejections that pass, with the limits of sge_conf(5) that cause them: max_u_jobs, max_jobs
_PASSING_REJECTIONS: tuple[tuple[re.Pattern[str], RefusalScope], ...] = (
    (re.compile(r"only \d+ jobs? (is|are) allowed per user"), "user"),
    (re.compile(r"only \d+ jobs? (is|are) allowed per cluster"), "cluster"),
)


# Answers of the qmaster alone, which has the job then not.
_REJECTION = re.compile(
    r"(?:^|Unable to run job: |code \d+: )"
    r'(job rejected: |Job was rejected because |("job" )?denied: |unknown resource '
    r'|error: no suitable queues|attribute ".*" is not a|the advance reservation id .* is invalid'
    r"|can't resolve hostname )"
)
_SUBMITTED = re.compile(r"^Your job (\d+) ", re.MULTILINE)
# Exit codes of qsub for what the qmaster has rejected: for good, and as long as a limit is reached
_REJECTED_EXIT_CODES = (1, 25)
_NOT_SENT_EXIT_CODES = (2, 7)  # of qsub, for options that it cannot parse
# What the client's library says of a connection that failed
_NO_CONNECTION = re.compile(
    r"commlib error|unable to (send message|contact)|got (send|select|read|syncron) |time.?out"
    r"|unreachable|communication|reading answer|gdi request"
)
# Exit codes of timeout(1), and of a shell whose command was killed by a signal
_KILLED = frozenset({124, *range(129, 193)})


def parse_rejection(message: str) -> Refused:
    """Return the refusal in a message of the qmaster that it did not accept a job."""
    for pattern, scope in _PASSING_REJECTIONS:
        if pattern.search(message):
            return Refused(message, retryable=True, scope=scope)
    return Refused(message)


def is_rejection(message: str) -> bool:
    """Return whether the qmaster alone can have said this, which has nothing queued then."""
    return _REJECTION.search(message) is not None


def judge_denial(message: str) -> AdapterError:
    """Return what a message means that denies a submission: a refusal, if the qmaster's own."""
    if is_rejection(message):
        return parse_rejection(message)
    return unproved_answer(message)


def unproved_answer(message: str) -> Unreachable:
    """Return the meaning of a message that proves nothing: the refusal if the job is absent."""
    return Unreachable(message, "" if _NO_CONNECTION.search(message) else message)


def parse_answer(answer: CommandResult) -> str:
    """Return the job id that qsub has printed, whatever its exit code.

    Raises Refused if its end proves that nothing was queued, else Unreachable.
    """
    ids = set(_SUBMITTED.findall(answer.stdout))
    if len(ids) == 1:
        return str(ids.pop())
    lines, code = answer.stderr.strip().splitlines(), answer.exit_code
    if not ids and code in _REJECTED_EXIT_CODES and any(map(is_rejection, lines)):
        raise parse_rejection(answer.error_message)
    if not ids and code in _NOT_SENT_EXIT_CODES and lines and lines[-1].startswith("qsub: "):
        raise Refused(answer.error_message)
    unproved = unproved_answer(f"qsub: exit code {code}: {answer.error_message}")
    raise Unreachable(unproved.reason) if code in _KILLED else unproved


def native_specification(
    submission: Submission,
    index: int,
    parallel_environment: str,
    memory: str | None,
    complexes: Mapping[str, ComplexAttribute],
    reservation: AdvanceReservation | None = None,
    find_node: Callable[[str], str | None] = str,
) -> str:
    """Return the native specification of a task, in an advance reservation if given.

    `memory` is the consumable that counts memory, if any. `find_node` returns the cell's name of a
    host. Raises Refused if the cell cannot provide a requested resource.
    """
    job = submission.job
    requested = job.manager_options or ManagerOptions()
    _check_options(submission.options)
    has_own_pe = "-pe" in submission.options
    if job.nodes is not None and job.nodes > 1 and not has_own_pe:
        raise Refused("a job over several nodes needs a parallel environment: --native '...:-pe'")
    if job.exclusive:
        raise Refused("Grid Engine cannot allocate whole hosts")
    if job.qos is not None:
        raise Refused("Grid Engine has no QOS")
    name = job_name(submission.tag, index)
    # -r n even with --requeue: a cell may start a rescheduled job beside its former run
    options = ["-b", "n", "-S", "/bin/sh", "-A", name, "-w", "e", "-r", "n"]
    if job.cpus > 1 and not has_own_pe:
        options += ["-pe", parallel_environment, str(job.cpus)]
    if requested.nice > 0:
        options += ["-p", str(-min(requested.nice, MAX_DELAY))]
    requests = [
        *_resource_requests(job, memory, complexes),
        *_option_requests(requested, find_node),
    ]
    if requests:
        options += ["-l", ",".join(requests)]
    if job.partition is not None:
        options += ["-q", job.partition]
    if job.account is not None:
        options += ["-P", job.account]
    if reservation is not None:
        _check_fits_reservation(job, memory, complexes, reservation)
        if "-ar" in submission.options:
            raise Refused("native option '-ar' beside --reservation; leave out one")
        options += ["-ar", reservation.id]
    options += submission.options
    for option in options:
        if not option or re.search(r"[\s'\"\\\0-\x1f\x7f]", option):
            problem = "quotes, spaces, control characters or nothing"
            raise Refused(f"native option {option!r} cannot be passed on: {problem}")
    return " ".join(options)


def _resource_requests(
    job: Job, memory: str | None, complexes: Mapping[str, ComplexAttribute]
) -> list[str]:
    """Return the values of -l: time limit, memory, gres, licences, features."""
    requests = []
    if job.time_limit is not None:
        requests.append(f"h_rt={math.ceil(job.time_limit)}")
    if memory is not None and (total_memory := _total_memory(job)) is not None:
        per_job = memory in complexes and complexes[memory].consumable == "JOB"
        amount = total_memory if per_job else math.ceil(total_memory / job.cpus)
        requests.append(f"{memory}={amount}M")
    for name, count in (*job.gres.items(), *job.licences.items()):
        if name not in complexes or complexes[name].consumable == "NO":
            raise Refused(f"the cell has no consumable {name!r}")
        try:
            requests.append(f"{name}={complexes[name].request_value(count, job.cpus)}")
        except ValueError as error:
            raise Refused(str(error)) from None
    if job.constraint is not None:
        # Grid Engine has no `or`: the first alternative is the preferred one that fits
        requests += job.constraint.partition("|")[0].split("&")
    return requests


def _option_requests(
    requested: ManagerOptions, find_node: Callable[[str], str | None]
) -> list[str]:
    """Return the values of -l for options of the job that not every manager has."""
    requests = ["h_rt=INFINITY"] if requested.unlimited else []
    hosts = [node for name in expand_hosts(requested.nodelist) if (node := find_node(name))]
    excluded = [node for name in expand_hosts(requested.exclude) if (node := find_node(name))]
    conditions = [*hosts, *(f"!{host}" for host in excluded)]
    return [*requests, f"hostname={'&'.join(conditions)}"] if conditions else requests


def _check_fits_reservation(
    job: Job,
    memory: str | None,
    complexes: Mapping[str, ComplexAttribute],
    reservation: AdvanceReservation,
) -> None:
    """Raise Refused for requests beyond the reservation: the qmaster would accept no queue."""
    for name, count in (*job.gres.items(), *job.licences.items()):
        if name in complexes and count > (reserved := reservation.amount_of(complexes[name])):
            raise Refused(f"{count} {name} requested, but its reservation has {reserved:g}")
    # without reserved memory its hosts may not count memory, and give any amount
    if memory is not None and memory in reservation.per_slot and memory in complexes:
        reserved = int(reservation.amount_of(complexes[memory]) / 2**20)
        if (requested := _total_memory(job) or 0) > reserved:
            raise Refused(f"{requested} MiB requested, but its reservation has {reserved} MiB")


def _total_memory(job: Job) -> int | None:
    """Return the requested memory of the whole job in MiB."""
    return job.memory if job.memory_per_cpu is None else job.memory_per_cpu * job.cpus


def _check_options(options: tuple[str, ...]) -> None:
    """Raise Refused for an option that metasched sets itself, and for a word that is not an option.

    An option unknown here may have any number of values.
    """
    values_allowed = 0.0
    for option in options:
        if option in _FORBIDDEN_OPTIONS:
            raise Refused(f"native option {option!r} is not allowed: metasched sets it")
        if re.fullmatch(r"-\D.*", option):
            values_allowed = _VALUE_COUNTS.get(option, math.inf)
        elif values_allowed == 0:
            raise Refused(f"native option {option!r} is not an option of qsub")
        else:
            values_allowed -= 1
