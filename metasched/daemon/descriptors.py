"""File descriptors of the daemon: their number, and the share of connections."""

from __future__ import annotations

import contextlib
import logging
import os
import resource

from metasched.client.site_answers import DescriptorsRow

log = logging.getLogger("metasched")

RESERVED = 256  # descriptors for the database, launcher calls, programs and libraries
RESERVED_PER_WORKER = 8  # pipes of a worker or a licence query, and of its successor
MIN_CONNECTIONS = 16  # of a listener, whatever is left

_INHERITED_LIMITS = resource.getrlimit(resource.RLIMIT_NOFILE)


def connection_limit(configured: int, listeners: int, workers: int) -> int:
    """Raise the soft limit as far as necessary; return how many connections a listener may have."""
    reserved = RESERVED + RESERVED_PER_WORKER * workers
    soft, hard = _INHERITED_LIMITS
    if soft == resource.RLIM_INFINITY:
        return configured
    needed = reserved + listeners * configured
    if needed > soft:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    possible = max((soft - reserved) // listeners, MIN_CONNECTIONS)
    if possible < configured:
        log.warning(
            "connections = %d needs %d file descriptors, the limit is %d: a listener has %d "
            "connections; raise LimitNOFILE",
            *(configured, needed, soft, possible),
        )
    return min(configured, possible)


def descriptor_use() -> DescriptorsRow:
    """Return the number of open descriptors and the soft limit (None: unlimited)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = None if soft == resource.RLIM_INFINITY else soft
    try:
        return {"open": len(os.listdir("/proc/self/fd")), "limit": limit}
    except OSError:  # none is left to look
        return {"open": soft, "limit": limit}


def restore_limit(pid: int) -> None:
    """Give a process the limit that the daemon itself was started with; its jobs inherit it.

    It keeps the daemon's own limit if that was lowered since, by prlimit.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, _INHERITED_LIMITS)
