"""Limits of a process that runs code of other packages, which is trusted not to attack.

But it may hang, raise, take all memory, print, fork or end its process: its caller kills it then.
"""

from __future__ import annotations

import os
import resource
import select
import sys
from typing import BinaryIO, Final

from metasched.processes.child_processes import die_with_parent

LOAD_SECONDS: Final = 20.0  # for the start of the process and the import of such code
CALL_SECONDS: Final = 2.0  # for an answer
FIRST_SUSPENSION: Final = 5.0  # seconds; doubled by each failure
MAX_SUSPENSION: Final = 600.0  # seconds; a suspension that ended as long ago is forgotten
MAX_ANSWER: Final = 2**24  # bytes
MEMORY: Final = 2**30  # bytes of address space
# limits that such code cannot raise again; a limit of processes does not bind root
LIMITS: Final = {
    resource.RLIMIT_AS: MEMORY,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_NPROC: 0,
}
# audited by the interpreter; root would be allowed
FORBIDDEN: Final = frozenset(
    {
        *("os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.posix_spawn"),
        *("os.system", "socket.bind", "socket.connect", "subprocess.Popen"),
    }
)
ENVIRONMENT: Final = {"LC_ALL": "C", "TZ": "UTC", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


def confined_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module, which calls `confine`."""
    # nothing of the current folder is imported, and nothing is written beside it
    return [sys.executable, "-P", "-B", "-m", module, *arguments]


def confined_environment() -> dict[str, str]:
    """Return the environment of the process: fixed, but for the search path of modules."""
    module_path = os.environ.get("PYTHONPATH")
    return ENVIRONMENT if module_path is None else {**ENVIRONMENT, "PYTHONPATH": module_path}


def confine() -> tuple[BinaryIO, BinaryIO]:
    """Give up for good all rights that code of other packages does not need; call before imports.

    Return the pipes from and to the parent. Output of that code is lost. The process ends with its
    parent. Raises SystemExit if the parent has ended.
    """
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    die_with_parent()
    parent = select.poll()
    parent.register(0, select.POLLIN)
    if any(event & select.POLLHUP for _, event in parent.poll(0)):  # while modules were imported
        sys.exit(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    os.chdir("/")
    for kind, limit in LIMITS.items():
        _, hard = resource.getrlimit(kind)
        lowered = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (lowered, lowered))
    sys.addaudithook(_forbid)
    return questions, answers


def _forbid(event: str, _: object) -> None:
    """Refuse what such code does not need: an audit hook of the interpreter."""
    if event in FORBIDDEN:
        raise PermissionError(f"{event} is not allowed in a plug-in")
