"""A Slurm cluster by its commands: sbatch, scancel, scontrol, squeue and sinfo."""

from __future__ import annotations

import errno
import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from metasched.adapters import slurm_batch as batch
from metasched.adapters import slurm_text as text
from metasched.adapters.base import Order, Refused, Unreachable
from metasched.adapters.commands import dying_with
from metasched.adapters.slurm_access import SlurmOptions

_LOOK = 0.25  # seconds between looks at what a slow command has said so far
_IDS_PER_CALL = 500

# sbatch says so, sleeps for a second (later for two, three, ...) and tries again by itself.
_RETRYING = re.compile(rb"retrying$", re.MULTILINE)
_RETRY_SLEEP = 1.0

T = TypeVar("T")


@dataclass(frozen=True)
class _Answer:
    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        return batch.complaint(self.err)


class Commands:
    """The commands of the cluster's own release, each started anew for every call."""

    name = "commands"

    def __init__(self, options: SlurmOptions, cluster: str) -> None:
        self._settings, self._cluster = options, cluster
        self._environment = {
            "SLURM_CONF": options.config,
            "SLURM_TIME_FORMAT": "%s",
            "SLURM_BITSTR_LEN": "0",
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
        }

    def submit(self, order: Order, index: int) -> str:
        words = batch.arguments(order, index, self._settings.tag_field)
        variables = batch.environment(order, index, self._cluster)
        script = batch.script(order.payload.script)
        with _memory_file(variables) as environment, _memory_file(script) as body:
            answer = self._run(
                "sbatch", f"--export-file={environment}", *words, stdin=body, keep=(environment,)
            )
        if answer.code != 0:
            doubt = Unreachable(f"sbatch: {answer.complaint}")
            raise (answer.code > 0 and batch.refusal(answer.err)) or doubt
        native = answer.out.strip().partition(";")[0]
        if not native.isdecimal():
            raise Unreachable(f"sbatch answered {answer.out[:80]!r}, not a job id")
        return native

    def jobs(self, *, ids: Sequence[str] = (), user: int | None = None) -> list[text.QueueLine]:
        chosen = ["--states=all"]
        if 0 < len(ids) <= _IDS_PER_CALL:
            chosen.append(f"--jobs={','.join(ids)}")
        elif user is not None:
            chosen.append(f"--user={user}")
        delimiter = _delimiter()
        names = (*text.QUEUE_FIELDS, self._settings.tag_field)
        fields = ",".join(f"{name}:{delimiter}" for name in names)
        try:
            return self._read(
                lambda out: text.queue(out, delimiter),
                *("squeue", "--noheader", "--all", "--noconvert", *chosen, f"--Format={fields}"),
            )
        except Unreachable as error:
            if ids and "Invalid job id" in error.reason:
                return []
            raise

    def version(self) -> tuple[int, int]:
        """Major and minor number of the cluster's release, as its commands tell it."""
        return self._read(text.release, "sinfo", "--version")

    def nodes(self) -> list[text.NodeLine]:
        delimiter = _delimiter()
        fields = ",".join(f"{field}:{delimiter}" for field in text.NODE_FIELDS)
        return self._read(
            lambda out: text.nodes(out, delimiter),
            *("sinfo", "--noheader", "--all", "--Node", "--noconvert", f"--Format={fields}"),
        )

    def controller(self) -> text.Controller:
        return self._read(text.controller, "scontrol", "show", "config")

    def hold(self, ids: Collection[str]) -> str:
        answers = [self._run("scontrol", "hold", some) for some in _joined(ids)]
        return "; ".join(answer.complaint for answer in answers if answer.code != 0)

    def release(self, ids: Collection[str]) -> None:
        for some in _joined(ids):
            self._run("scontrol", "release", some)

    def cancel(self, ids: Collection[str]) -> None:
        for some in _joined(ids):
            answer = self._run("scancel", *some.split(","))
            # It is no error that a job has ended meanwhile; scancel then says so or nothing.
            if answer.code != 0 and not re.search("Invalid job id|already", answer.err):
                raise Unreachable(f"scancel: {answer.complaint}")

    def _read(self, parse: Callable[[str], T], program: str, *arguments: str) -> T:
        answer = self._run(program, *arguments)
        if answer.code != 0:
            raise Unreachable(f"{program}: {answer.complaint}")
        try:
            return parse(answer.out)
        except ValueError as error:
            raise Unreachable(f"{program}: the answer cannot be read: {error}") from None

    def _run(
        self, program: str, *arguments: str, stdin: int | None = None, keep: tuple[int, ...] = ()
    ) -> _Answer:
        """The answer of one command of this cluster; Unreachable if none came in time."""
        path = os.path.join(self._settings.bin_dir, program) if self._settings.bin_dir else program
        try:
            process = subprocess.Popen(
                [path, *arguments],
                env=self._environment,
                cwd="/",
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=keep,
                preexec_fn=dying_with(os.getpid()),
            )
        except OSError as error:
            if error.errno == errno.E2BIG:
                raise Refused("the arguments are too long") from None
            raise Unreachable(f"{path}: {error.strerror}") from None
        except UnicodeEncodeError:
            raise Refused("an option, a path or an argument is no text") from None
        with process:
            try:
                out, err = self._await(program, process)
            finally:
                process.kill()
        if process.returncode < 0:
            raise Unreachable(f"{program} was ended by signal {-process.returncode}")
        return _Answer(process.returncode, _text(out), _text(err))

    def _await(self, program: str, process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
        """Its output. A full queue is a refusal, if sbatch is caught asleep between two tries."""
        end = time.monotonic() + self._settings.timeout
        silent = time.monotonic()  # at this moment it had not yet said that it would try again
        while True:
            looked = time.monotonic()
            try:
                return process.communicate(timeout=max(0.0, min(_LOOK, end - looked)))
            except subprocess.TimeoutExpired as waiting:
                said = waiting.stderr or b""
            if _RETRYING.search(said):
                process.kill()
                process.wait()
                if time.monotonic() - silent < _RETRY_SLEEP:
                    raise Refused(batch.complaint(_text(said)), again=True)
                raise Unreachable(f"{program}: {batch.complaint(_text(said))}")
            if time.monotonic() >= end:
                raise Unreachable(f"{program}: no answer within {self._settings.timeout:g} s")
            silent = looked


@contextmanager
def _memory_file(content: bytes) -> Iterator[int]:
    """The descriptor of an open nameless file with this content, to be read from its start."""
    with open(os.memfd_create("metasched"), "wb") as file:
        file.write(content)
        file.flush()
        file.seek(0)
        yield file.fileno()


def _text(said: bytes) -> str:
    return said.decode(errors="replace")


def _joined(ids: Collection[str]) -> Iterator[str]:
    """The ids as comma-separated lists, none too long for a command line."""
    some = list(ids)
    for start in range(0, len(some), _IDS_PER_CALL):
        yield ",".join(some[start : start + _IDS_PER_CALL])


def _delimiter() -> str:
    """Ends each field of a listing; other people's free text cannot contain it but by chance."""
    return f"|{secrets.token_hex(4)}|"
