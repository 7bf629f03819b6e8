"""The process of the plug-ins: answers questions on its input, a line for each plug-in.

The pipes are moved away from standard input and output, so what a plug-in prints is lost and
cannot be an answer.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Any, Final

import msgspec

from metasched.adapters.child_processes import die_with_parent
from metasched.plug_ins.messages import PlugInAnswer, Question
from metasched.policies.plug_in_ratings import PlugIn, PlugInError, ask, load_all

MEMORY: Final = 2**30  # bytes of address space
NICENESS: Final = 5  # the scheduler goes first
# limits that no plug-in may raise again; a limit of processes does not bind root
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


def lower_limits() -> None:
    """Lower the limits of this process, for good. A lower limit stays as it is."""
    os.nice(NICENESS)
    for kind, limit in LIMITS.items():
        _, hard = resource.getrlimit(kind)
        lowered = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (lowered, lowered))


def forbid_processes(event: str, _: object) -> None:
    """Refuse what no plug-in needs: an audit hook of the interpreter."""
    if event in FORBIDDEN:
        raise PermissionError(f"{event} is not allowed in a plug-in")


def answer(question: Question, loaded: dict[PlugIn, Any], plug_in: PlugIn) -> PlugInAnswer:
    """Return what a plug-in says; it is loaded by the first question that names it."""
    if plug_in not in loaded:
        loaded.update(load_all([plug_in]))
    instance = loaded[plug_in]
    if isinstance(instance, PlugInError):
        return PlugInAnswer(question.id, error=str(instance))
    return PlugInAnswer(
        question.id,
        tuple(ask(plug_in, instance, job, question.clusters) for job in question.jobs),
    )


def main() -> None:
    """Answer until the input ends."""
    die_with_parent()
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.chdir("/")
    lower_limits()
    sys.addaudithook(forbid_processes)
    decoder, loaded = msgspec.json.Decoder(Question), dict[PlugIn, Any]()
    for line in questions:
        question = decoder.decode(line)
        for plug_in in question.plug_ins:
            answers.write(msgspec.json.encode(answer(question, loaded, plug_in)) + b"\n")
            answers.flush()


if __name__ == "__main__":
    main()
