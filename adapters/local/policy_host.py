"""The worker's side of a local policy of another package, which runs in a process of its own.

The cluster's tasks wait for a pass at most `CALL_SECONDS`. A process that has not answered then is
killed, with what the policy knew of earlier passes, and so is one that ends or answers nonsense.
Its policy is not asked before a suspension ends, which doubles. What the policy raises excludes it
from that pass alone. The caller lets FCFS decide.

A process may take `LOAD_SECONDS` to start and to import the policy. Tasks wait for the first start,
and for no other: after a failure FCFS decides until the next process has answered. No call of the
adapter waits for any.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from typing import Final, TypeVar

import msgspec

from metasched.adapters.local.policy_process import (
    ENCODER,
    PassAnswer,
    PassQuestion,
    PolicyTraits,
)
from metasched.policies.local.queueing import (
    FreeResources,
    JobStart,
    RunningJob,
    WaitingJob,
)
from metasched.policies.local.registry import POLICIES, keeps_order, keeps_windows
from metasched.processes.confinement import (
    CALL_SECONDS,
    FIRST_SUSPENSION,
    LOAD_SECONDS,
    MAX_ANSWER,
    MAX_SUSPENSION,
    confined_command,
    confined_environment,
)
from metasched.processes.frames import receive_frame, send_frame

_TRAITS: Final = msgspec.msgpack.Decoder(PolicyTraits)
_ANSWER: Final = msgspec.msgpack.Decoder(PassAnswer)

Message = TypeVar("Message")

log = logging.getLogger(__name__)


class PolicyExcluded(Exception):
    """The policy does not decide this pass; the message says why."""


class _ProcessFailed(Exception):
    """The process has not answered, and is of no use any more; the message says why."""


class _Process:
    """A process that has a policy. After a `_ProcessFailed` it must be closed."""

    def __init__(self, name: str, seconds: float) -> None:
        """Start it; it has these seconds until its first message. Raises OSError."""
        self._seconds, self.deadline = seconds, time.monotonic() + seconds
        self._connection, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    confined_command("metasched.adapters.local.policy_process", name),
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    env=confined_environment(),
                    start_new_session=True,
                )
            except BaseException:
                self._connection.close()
                raise

    def fileno(self) -> int:
        """Return the descriptor that is readable once the process has answered, or ended."""
        return self._connection.fileno()

    def is_starting(self) -> bool:
        """Whether its first message may still come."""
        answer = select.poll()
        answer.register(self.fileno(), select.POLLIN)
        return not answer.poll(0) and time.monotonic() < self.deadline

    def receive_traits(self) -> PolicyTraits:
        """Wait for its first message, until the deadline. Raises _ProcessFailed if there is none.

        So it does if the policy could not be created.
        """
        traits = self._receive(_TRAITS, self.deadline, self._seconds)
        if traits.error:
            raise _ProcessFailed(traits.error)
        return traits

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, question: PassQuestion, seconds: float) -> PassAnswer:
        """Return the answer. Raises _ProcessFailed if there is none within seconds."""
        deadline = time.monotonic() + seconds
        with suppress(ConnectionError, TimeoutError):  # noticed by the missing answer
            send_frame(self._connection, ENCODER.encode(question), deadline)
        return self._receive(_ANSWER, deadline, seconds)

    def _receive(
        self, decoder: msgspec.msgpack.Decoder[Message], deadline: float, seconds: float
    ) -> Message:
        try:
            return decoder.decode(receive_frame(self._connection, deadline, MAX_ANSWER))
        except TimeoutError:
            raise _ProcessFailed(f"no answer within {seconds:g} s") from None
        except (EOFError, ConnectionError):
            raise _ProcessFailed("its process ended") from None
        except (msgspec.MsgspecError, RecursionError) as error:
            raise _ProcessFailed(f"an answer that is none: {error}") from None
        except ValueError as error:
            raise _ProcessFailed(str(error)) from None

    def close(self) -> None:
        """Kill the process with all that it has started in its session's group."""
        self._connection.close()
        if self._process.poll() is None:  # else another group may have its number by now
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


_loaded: dict[str, PolicyTraits] = {}  # of policies of other packages, as last loaded


def traits_of(name: str) -> PolicyTraits:
    """Return the traits of a policy; one of another package is loaded in a process, once."""
    if name in POLICIES:
        return PolicyTraits(keeps_windows(name), keeps_order(name))
    if name not in _loaded:
        try:
            with closing(_Process(name, LOAD_SECONDS)) as process:
                _loaded[name] = process.receive_traits()
        except (OSError, _ProcessFailed) as error:
            _loaded[name] = PolicyTraits(error=str(error))
            log.warning("policy %s cannot be loaded, FCFS decides: %s", name, error)
    return _loaded[name]


class PolicyHost:
    """A local policy of another package. Only a single thread may use it."""

    period, incremental = 0.0, False  # it is asked after every event, about the whole queue

    def __init__(
        self,
        name: str,
        pass_seconds: float = CALL_SECONDS,
        load_seconds: float = LOAD_SECONDS,
        first_suspension: float = FIRST_SUSPENSION,
    ) -> None:
        self._name = name
        self._pass_seconds, self._load_seconds = pass_seconds, load_seconds
        self._process: _Process | None = None
        self._starting: _Process | None = None  # has not answered yet
        self._first_suspension = first_suspension  # seconds
        self._delay = first_suspension  # seconds, of the next suspension
        self._suspended_until = 0.0  # monotonic seconds; 0: no process has failed
        self._reason = ""  # of the suspension
        self._planned_starts: dict[int, float] = {}  # of the last answer
        self._traits = PolicyTraits()  # of FCFS, which decides until it has been loaded
        if name in _loaded:
            self._note_traits(_loaded[name])

    @property
    def keeps_windows(self) -> bool:
        return self._traits.keeps_windows

    @property
    def in_order(self) -> bool:
        """Whether no job overtakes another; so under FCFS, until the policy has been loaded."""
        return self._traits.in_order

    @property
    def pid(self) -> int | None:
        """The id of its process; None: there is none now."""
        return None if self._process is None else self._process.pid

    @property
    def is_first_start(self) -> bool:
        """Whether its first process is starting: tasks wait for that, so that it decides all."""
        return self._process is None and not self._suspended_until

    @property
    def due(self) -> float | None:
        """Monotonic seconds, perhaps past, at which to call `prepare`; None: only after events."""
        if self._process is not None:
            return None
        return self._suspended_until if self._starting is None else self._starting.deadline

    def prepare(self) -> int | None:
        """Start its process, unless there is one or it is suspended; take its first message.

        Of a process that was started the descriptor is returned: call `prepare` again once it is
        readable.
        """
        if self._process is not None:
            return None
        try:
            if self._starting is None:
                if self._suspended_until > time.monotonic():
                    return None
                self._starting = _Process(self._name, self._load_seconds)
                return self._starting.fileno()
            if self._starting.is_starting():
                return None
            self._note_traits(self._starting.receive_traits())
        except Exception as error:  # whatever it is: the thread of the cluster goes on
            self._suspend(str(error))
        else:
            self._process, self._starting = self._starting, None
        return None

    def choose_starts(
        self,
        now: float,
        queue: Collection[WaitingJob],
        running: Collection[RunningJob],
        free: FreeResources,
    ) -> list[JobStart]:
        """Return what the policy chooses; nobody has checked it. Raises PolicyExcluded.

        So it does without a process: call `prepare` before, and wait for the first start.
        """
        self._planned_starts = {}
        if (left := self._suspended_until - time.monotonic()) > 0:
            raise PolicyExcluded(f"{self._reason}; it is asked again in {left:.0f} s")
        if self._process is None:
            raise PolicyExcluded(f"its process starts again, after: {self._reason}")
        if free.windows and not self.keeps_windows:
            raise PolicyExcluded("it keeps no reserved windows, and there are some")
        try:
            question = PassQuestion(now, list(queue), list(running), free)
            answer = self._process.ask(question, self._pass_seconds)
        except (OSError, _ProcessFailed) as error:
            self._suspend(str(error))
            raise PolicyExcluded(str(error)) from error
        if self._delay > self._first_suspension and -left > MAX_SUSPENSION:
            self._delay = self._first_suspension
        if answer.error:
            raise PolicyExcluded(answer.error)
        self._planned_starts = answer.planned_starts
        return answer.starts

    def close(self) -> None:
        """Kill its process; `prepare` starts another."""
        for process in (self._process, self._starting):
            if process is not None:
                process.close()
        self._process = self._starting = None

    def _note_traits(self, traits: PolicyTraits) -> None:
        self._traits = _loaded[self._name] = traits
        if traits.plans:  # others are not asked while nothing is free
            self.planned_starts: Callable[[], dict[int, float]] = lambda: self._planned_starts

    def _suspend(self, reason: str) -> None:
        self.close()
        self._reason = reason
        self._suspended_until = time.monotonic() + self._delay
        self._delay = min(self._delay * 2, MAX_SUSPENSION)
