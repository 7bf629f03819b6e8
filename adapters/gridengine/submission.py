"""What Grid Engine is told for one task beside its script: its native specification. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from metasched.adapters.base import Order
from metasched.adapters.errors import Refused
from metasched.adapters.gridengine.listing import Complex, mark
from metasched.adapters.gridengine.reservation_listing import Kept
from metasched.model.job import Job

# What a user's own options may not say, since a task is known, found and ended by it. A script
# that verifies jobs (-jsv) stays with the DRMAA session, and would verify all later ones, too.
_RESERVED = {
    *("-A", "-N", "-@", "-C", "-S", "-b", "-clear", "-r", "-shell", "-sync", "-t", "-tc", "-terse"),
    *("-verify", "-w", "-now", "-help", "-ckpt", "-c", "-dl", "-notify", "-jsv"),
}
# How many values an option of qsub has, at the most. A word beyond them would be the script.
_VALUES = {
    **dict.fromkeys(("-V", "-cwd", "-h", "-hard", "-soft"), 0),
    **dict.fromkeys(("-M", "-P", "-R", "-a", "-ac", "-ar", "-dc", "-display", "-e"), 1),
    **dict.fromkeys(("-he", "-hold_jid", "-hold_jid_ad", "-i", "-j", "-js", "-l", "-m"), 1),
    **dict.fromkeys(("-masterq", "-o", "-ot", "-p", "-q", "-sc", "-v", "-wd"), 1),
    **dict.fromkeys(("-binding", "-pe"), 2),
}


def native(
    order: Order,
    index: int,
    pe: str,
    memory: str | None,
    known: Mapping[str, Complex],
    within: Kept | None = None,
) -> str:
    """The native specification of one task, in the advance reservation `within`.

    Refused if something asked for cannot be said.
    """
    job = order.job
    _check(order.options)
    own_pe = "-pe" in order.options
    if job.nodes is not None and job.nodes > 1 and not own_pe:
        raise Refused("a job over several nodes needs a parallel environment: --native '...:-pe'")
    if job.exclusive:
        raise Refused("Grid Engine cannot be asked for whole hosts")
    if job.qos is not None:
        raise Refused("Grid Engine has no QOS")
    name = mark(order.tag, index)
    words = ["-b", "n", "-S", "/bin/sh", "-A", name, "-w", "e", "-r", "y" if job.requeue else "n"]
    if job.cpus > 1 and not own_pe:
        words += ["-pe", pe, str(job.cpus)]
    if requests := _requests(job, memory, known):
        words += ["-l", ",".join(requests)]
    if job.partition is not None:
        words += ["-q", job.partition]
    if job.account is not None:
        words += ["-P", job.account]
    if within is not None:
        _check_inside(job, memory, known, within)
        if "-ar" in order.options:
            raise Refused("native option '-ar' beside --reservation; leave out one")
        words += ["-ar", within.id]
    words += order.options
    for word in words:
        if not word or re.search(r"[\s'\"\\\0-\x1f\x7f]", word):
            why = "quotes, spaces, control characters or nothing"
            raise Refused(f"native option {word!r} cannot be handed on: {why}")
    return " ".join(words)


def _requests(job: Job, memory: str | None, known: Mapping[str, Complex]) -> list[str]:
    """The values of -l: time limit, memory, gres, licences, features."""
    requests = []
    if job.time_limit is not None:
        requests.append(f"h_rt={math.ceil(job.time_limit)}")
    if memory is not None and (whole := _memory(job)) is not None:
        per_job = memory in known and known[memory].consumable == "JOB"
        requests.append(f"{memory}={whole if per_job else math.ceil(whole / job.cpus)}M")
    for name, count in (*job.gres.items(), *job.licences.items()):
        if name not in known or known[name].consumable == "NO":
            raise Refused(f"the cell has no consumable {name!r}")
        try:
            requests.append(f"{name}={known[name].each(count, job.cpus)}")
        except ValueError as error:
            raise Refused(str(error)) from None
    if job.constraint is not None:
        if "|" in job.constraint:
            raise Refused(f"constraint {job.constraint!r}: Grid Engine has no `or`")
        requests += job.constraint.split("&")
    return requests


def _check_inside(job: Job, memory: str | None, known: Mapping[str, Complex], within: Kept) -> None:
    """Refused if its reservation lacks what it asks for: the qmaster says `no suitable queues`."""
    for name, many in (*job.gres.items(), *job.licences.items()):
        if name in known and many > (held := within.has(known[name])):
            raise Refused(f"{many} {name} are asked for, and its reservation has {held:g}")
    # where nothing was reserved its hosts may count none, and give any amount
    if memory is not None and memory in within.each and memory in known:
        held = int(within.has(known[memory]) / 2**20)
        if (asked := _memory(job) or 0) > held:
            raise Refused(f"{asked} MiB are asked for, and its reservation has {held} MiB")


def _memory(job: Job) -> int | None:
    """MiB that it asks for in all."""
    return job.memory if job.memory_per_cpu is None else job.memory_per_cpu * job.cpus


def _check(options: tuple[str, ...]) -> None:
    """Refused if a word of the user's would take from us what we rely on, or is no option's.

    Of an option that we do not know any number of words are taken to be values.
    """
    may_follow = 0.0
    for word in options:
        if word in _RESERVED:
            raise Refused(f"native option {word!r} is not allowed: metasched sets it")
        if re.fullmatch(r"-\D.*", word):
            may_follow = _VALUES.get(word, math.inf)
        elif may_follow == 0:
            raise Refused(f"native option {word!r} is not an option of qsub")
        else:
            may_follow -= 1
