"""The process of a local policy of another package: answers passes on its socket.

It says first what kind of policy it has. Messages are frames of MessagePack.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from metasched.policies.local.exclusion import read_starts
from metasched.policies.local.queueing import (
    FreeResources,
    JobStart,
    LocalPolicy,
    RunningJob,
    WaitingJob,
)
from metasched.policies.local.registry import make_policy
from metasched.processes.confinement import confine
from metasched.processes.frames import read_frames, write_frame

MAX_ERROR: Final = 200  # characters of the reason of an exclusion
ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=dict)  # of mappings that are no dict


class PolicyTraits(msgspec.Struct, frozen=True):
    """What a local policy says of itself, see `LocalPolicy`; those of FCFS with an `error`."""

    keeps_windows: bool = True
    in_order: bool = True
    plans: bool = False  # it has `planned_starts`
    error: str = ""  # why it cannot be loaded: FCFS decides


class PassQuestion(msgspec.Struct, frozen=True, array_like=True):
    """The arguments of `LocalPolicy.choose_starts`."""

    now: float  # epoch seconds
    queue: list[WaitingJob]
    running: list[RunningJob]
    free: FreeResources


class PassAnswer(msgspec.Struct, frozen=True):
    """What the policy chooses, or why it is excluded from this pass."""

    starts: list[JobStart] = []
    planned_starts: dict[int, float] = {}  # epoch seconds, by id
    error: str = ""


def load(name: str) -> tuple[LocalPolicy | None, PolicyTraits]:
    """Create a policy; what it raises is the error of its traits."""
    try:
        policy = make_policy(name)
        return policy, PolicyTraits(
            keeps_windows=bool(getattr(policy, "keeps_windows", False)),
            in_order=bool(getattr(policy, "in_order", False)),
            plans=hasattr(policy, "planned_starts"),
        )
    except BaseException as error:  # such as SystemExit
        return None, PolicyTraits(error=_line_of(error))


def decide(policy: LocalPolicy, question: PassQuestion) -> bytes:
    """Return the encoded `PassAnswer`. All code of the policy runs here, also its iterators."""
    try:
        chosen = policy.choose_starts(question.now, question.queue, question.running, question.free)
        starts = read_starts(chosen, question.queue)
        return ENCODER.encode(PassAnswer(starts, _planned_starts(policy)))
    except BaseException as error:  # such as SystemExit
        return ENCODER.encode(PassAnswer(error=_line_of(error)))


def _planned_starts(policy: LocalPolicy) -> dict[int, float]:
    planned: Mapping[Any, Any] = getattr(policy, "planned_starts", dict)()
    starts = {int(id): float(start) for id, start in planned.items()}
    return {id: start for id, start in starts.items() if math.isfinite(start)}


def _line_of(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= MAX_ERROR else text[: MAX_ERROR - 3] + "..."


def main() -> None:
    """Answer until the worker closes the socket, or kills this process."""
    questions, answers = confine()
    policy, traits = load(sys.argv[1])
    write_frame(answers, ENCODER.encode(traits))
    decoder = msgspec.msgpack.Decoder(PassQuestion)
    if policy is None:
        return
    for message in read_frames(questions):
        write_frame(answers, decide(policy, decoder.decode(message)))


if __name__ == "__main__":
    main()
