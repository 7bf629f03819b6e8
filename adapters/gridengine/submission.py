"""What Grid Engine is told for one task beside its script: its native specification. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from metasched.adapters.base import Submission
from metasched.adapters.errors import Refused
from metasched.adapters.gridengine.listing import ComplexAttribute, job_name
from metasched.adapters.gridengine.reservation_listing import AdvanceReservation
from metasched.model.job import Job

# What a user's own options may not say, since a task is known, found and ended by it. A script
# that verifies jobs (-jsv) stays with the DRMAA session, and would verify all later ones, too.
_FORBIDDEN_OPTIONS = {
    *("-A", "-N", "-@", "-C", "-S", "-b", "-clear", "-r", "-shell", "-sync", "-t", "-tc", "-terse"),
    *("-verify", "-w", "-now", "-help", "-ckpt", "-c", "-dl", "-notify", "-jsv"),
}
# How many values an option of qsub has, at the most. A word beyond them would be the script.
_VALUE_COUNTS = {
    **dict.fromkeys(("-V", "-cwd", "-h", "-hard", "-soft"), 0),
    **dict.fromkeys(("-M", "-P", "-R", "-a", "-ac", "-ar", "-dc", "-display", "-e"), 1),
    **dict.fromkeys(("-he", "-hold_jid", "-hold_jid_ad", "-i", "-j", "-js", "-l", "-m"), 1),
    **dict.fromkeys(("-masterq", "-o", "-ot", "-p", "-q", "-sc", "-v", "-wd"), 1),
    **dict.fromkeys(("-binding", "-pe"), 2),
}


def native_specification(
    submission: Submission,
    index: int,
    parallel_environment: str,
    memory: str | None,
    complexes: Mapping[str, ComplexAttribute],
    reservation: AdvanceReservation | None = None,
) -> str:
    """The native specification of one task, in the advance reservation `within`.

    Refused if something asked for cannot be said.
    """
    job = submission.job
    _check_options(submission.options)
    has_own_pe = "-pe" in submission.options
    if job.nodes is not None and job.nodes > 1 and not has_own_pe:
        raise Refused("a job over several nodes needs a parallel environment: --native '...:-pe'")
    if job.exclusive:
        raise Refused("Grid Engine cannot be asked for whole hosts")
    if job.qos is not None:
        raise Refused("Grid Engine has no QOS")
    name = job_name(submission.tag, index)
    options = ["-b", "n", "-S", "/bin/sh", "-A", name, "-w", "e", "-r", "y" if job.requeue else "n"]
    if job.cpus > 1 and not has_own_pe:
        options += ["-pe", parallel_environment, str(job.cpus)]
    if requests := _resource_requests(job, memory, complexes):
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
            cause = "quotes, spaces, control characters or nothing"
            raise Refused(f"native option {option!r} cannot be handed on: {cause}")
    return " ".join(options)


def _resource_requests(
    job: Job, memory: str | None, complexes: Mapping[str, ComplexAttribute]
) -> list[str]:
    """The values of -l: time limit, memory, gres, licences, features."""
    requests = []
    if job.time_limit is not None:
        requests.append(f"h_rt={math.ceil(job.time_limit)}")
    if memory is not None and (total_memory := _total_memory(job)) is not None:
        per_job = memory in complexes and complexes[memory].consumable == "JOB"
        requests.append(
            f"{memory}={total_memory if per_job else math.ceil(total_memory / job.cpus)}M"
        )
    for name, count in (*job.gres.items(), *job.licences.items()):
        if name not in complexes or complexes[name].consumable == "NO":
            raise Refused(f"the cell has no consumable {name!r}")
        try:
            requests.append(f"{name}={complexes[name].request_value(count, job.cpus)}")
        except ValueError as error:
            raise Refused(str(error)) from None
    if job.constraint is not None:
        if "|" in job.constraint:
            raise Refused(f"constraint {job.constraint!r}: Grid Engine has no `or`")
        requests += job.constraint.split("&")
    return requests


def _check_fits_reservation(
    job: Job,
    memory: str | None,
    complexes: Mapping[str, ComplexAttribute],
    reservation: AdvanceReservation,
) -> None:
    """Refused if its reservation lacks what it asks for: the qmaster says `no suitable queues`."""
    for name, count in (*job.gres.items(), *job.licences.items()):
        if name in complexes and count > (reserved := reservation.amount_of(complexes[name])):
            raise Refused(f"{count} {name} are asked for, and its reservation has {reserved:g}")
    # where nothing was reserved its hosts may count none, and give any amount
    if memory is not None and memory in reservation.per_slot and memory in complexes:
        reserved = int(reservation.amount_of(complexes[memory]) / 2**20)
        if (requested := _total_memory(job) or 0) > reserved:
            raise Refused(f"{requested} MiB are asked for, and its reservation has {reserved} MiB")


def _total_memory(job: Job) -> int | None:
    """MiB that it asks for in all."""
    return job.memory if job.memory_per_cpu is None else job.memory_per_cpu * job.cpus


def _check_options(options: tuple[str, ...]) -> None:
    """Refused if a word of the user's would take from us what we rely on, or is no option's.

    Of an option that we do not know any number of words are taken to be values.
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
