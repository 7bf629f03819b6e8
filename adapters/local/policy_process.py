"""The process of a local policy of another package: answers passes on its socket.

It says first what kind of policy it has. Messages are MessagePack, each after its length.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import sys
import time
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

MAX_ERROR: Final = 200  # characters of the reason of an exclusion
_LENGTH: Final = struct.Struct("!I")  # precedes each message
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


def send(connection: socket.socket, message: bytes, deadline: float | None = None) -> None:
    """Send a message by a monotonic time. Raises OSError, as TimeoutError."""
    connection.settimeout(None if deadline is None else _left(deadline))
    connection.sendall(_LENGTH.pack(len(message)) + message)


def receive(
    connection: socket.socket, deadline: float | None = None, limit: int | None = None
) -> bytes:
    """Return the next message, by a monotonic time.

    Raises EOFError if there is none, ValueError above a limit of bytes, OSError as TimeoutError.
    """
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size, deadline))
    if limit is not None and length > limit:
        raise ValueError(f"an answer of more than {limit >> 20} MiB")
    return _receive_exactly(connection, length, deadline)


def _receive_exactly(connection: socket.socket, size: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        connection.settimeout(None if deadline is None else _left(deadline))
        part = connection.recv(min(size - len(parts), 2**20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _left(deadline: float) -> float:
    """Return the seconds until a monotonic time. TimeoutError after it."""
    if (left := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return left


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
    connection = socket.socket(fileno=os.dup(0))
    confine()
    policy, traits = load(sys.argv[1])
    send(connection, ENCODER.encode(traits))
    decoder = msgspec.msgpack.Decoder(PassQuestion)
    while policy is not None:
        try:
            message = receive(connection)
        except EOFError:
            return
        send(connection, decide(policy, decoder.decode(message)))


if __name__ == "__main__":
    main()
