"""Slurm by its commands: sbatch, scancel, scontrol, squeue and sinfo of one cluster.

A task is one Slurm job; its comment (or name) carries the tag. Native arrays are not used:
Slurm 22.05 forgets tasks of an array that are cancelled while pending, at once and without a
record, and a listing could then no longer prove that a tag never arrived.

What has been found out about Slurm, and rests on its word only, is tested in tests/real.
"""

from __future__ import annotations

import errno
import math
import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from metasched.adapters import slurm_batch as batch
from metasched.adapters import slurm_text as text
from metasched.adapters.base import (
    Adapter,
    Capabilities,
    Order,
    Refused,
    Unreachable,
    Withdrawal,
)
from metasched.adapters.commands import dying_with
from metasched.model import Cluster, Facts, Job, Listing

_LOOK = 0.25  # seconds between looks at what a slow command has said so far
_IDS_PER_CALL = 500

# sbatch says so, sleeps for a second (later for two, three, ...) and tries again by itself.
_RETRYING = re.compile(rb"retrying$", re.MULTILINE)
_RETRY_SLEEP = 1.0

T = TypeVar("T")


@dataclass(frozen=True)
class SlurmOptions:
    """Keys of a Slurm cluster in metasched.toml; ValueError names the one that is wrong.

    `config` is its slurm.conf, `bin_dir` where its commands are (None: on the PATH), `timeout`
    the seconds after which a command counts as unanswered. A command of ours that was under way
    when its caller died may still arrive for `settle` seconds.
    """

    config: str
    bin_dir: str | None = None
    access: Literal["auto", "commands"] = "auto"
    tag_field: Literal["comment", "name"] = "comment"
    timeout: float = 15.0
    settle: float = 20.0

    def __post_init__(self) -> None:
        for key, path in (("config", self.config), ("bin_dir", self.bin_dir)):
            if path is not None and not os.path.isabs(path):
                raise ValueError(f"{key} is {path!r}; it must be an absolute path")
        for key, choice, choices in (
            ("access", self.access, ("auto", "commands")),
            ("tag_field", self.tag_field, ("comment", "name")),
        ):
            if choice not in choices:
                raise ValueError(f"{key} is {choice!r}; it must be one of {', '.join(choices)}")
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise ValueError(f"timeout is {self.timeout!r}; it must be a positive number")
        if not (math.isfinite(self.settle) and self.settle >= 0):
            raise ValueError(f"settle is {self.settle!r}; it must be 0 or more")


@dataclass(frozen=True)
class _Answer:
    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        return batch.complaint(self.err)


class Slurm(Adapter):
    """One Slurm cluster, driven by the commands of its own release."""

    Options: ClassVar[type[Any]] = SlurmOptions
    capabilities: ClassVar[Capabilities] = Capabilities(
        gres=True, memory=True, suspends=True, limit_granularity=60.0
    )

    def __init__(
        self, cluster: Cluster, options: SlurmOptions, instance: str, folder: Path
    ) -> None:
        super().__init__(cluster, options, instance, folder)
        self._settings = options
        self._facts: Facts | None = None  # of the last poll
        self._environment = {
            "SLURM_CONF": options.config,
            "SLURM_TIME_FORMAT": "%s",
            "SLURM_BITSTR_LEN": "0",
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
        }

    def submit(self, order: Order) -> dict[int, str]:
        """Queue each task as a job of its own, in the order of the indices.

        A refusal after some were taken is Unreachable: these are found by the tag, the others
        proved absent.
        """
        self._check_size(order.job)
        natives: dict[int, str] = {}
        for index in order.indices:
            try:
                natives[index] = self._sbatch(order, index)
            except Refused as refusal:
                if not natives:
                    raise
                taken = f"{len(natives)} of {len(order.indices)} tasks were taken"
                raise Unreachable(f"{taken}, then: {refusal.reason}") from None
        return natives

    def _check_size(self, job: Job) -> None:
        """Slurm itself takes what can never start, and lets it wait for ever."""
        partition = self._facts.partition(job.partition) if self._facts else None
        if partition is None:
            return
        most = sum(nodes.count * nodes.cpus for nodes in partition.nodes)
        if job.cpus > most:
            raise Refused(f"partition {partition.name} has {most} processors, not {job.cpus}")

    def _sbatch(self, order: Order, index: int) -> str:
        words = batch.arguments(order, index, self._settings.tag_field)
        variables = batch.environment(order, index, self.cluster.name)
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

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """End tasks, chosen by their tag in a listing of this moment, never by native id alone.

        `scancel --state=PENDING` looks and then kills, so that a job may begin in between.
        Hence for `unstarted`: hold, look again, and cancel what is pending and held, since that
        cannot begin any more.
        """
        live = self._find(withdrawal)
        if not withdrawal.unstarted:
            self._scancel(line.id for line in live)
            return
        pending = {line.id for line in live if line.state == "PENDING" and line.restarts == "0"}
        if not pending:
            return
        answers = [self._run("scontrol", "hold", ids) for ids in _joined(pending)]
        after = [line for line in self._find(withdrawal) if line.id in pending]
        held = [line.id for line in after if line.state == "PENDING" and line.priority == "0"]
        self._scancel(held)
        # Slurm "holds" what runs, too: if the user lets it requeue, it must not stay held.
        begun = [line.id for line in after if line.state != "PENDING"]
        for ids in _joined(begun):
            self._run("scontrol", "release", ids)
        if len(held) + len(begun) < len(after):
            complaints = "; ".join(a.complaint for a in answers if a.code != 0)
            raise Unreachable(f"scontrol hold: {complaints or 'not held'}")

    def _find(self, withdrawal: Withdrawal) -> list[text.QueueLine]:
        """Our jobs that carry this tag, have not ended, and are asked for."""
        wanted = {text.mark(withdrawal.tag, index) for index in withdrawal.natives}
        user = str(os.geteuid())
        ids = [native for native in withdrawal.natives.values() if native]
        known = 0 < len(ids) == len(wanted) <= _IDS_PER_CALL
        try:
            lines = self._squeue("--jobs" if known else "--user", ",".join(ids) if known else user)
        except Unreachable as error:
            if known and "Invalid job id" in error.reason:
                return []
            raise
        return [
            line for line in lines if line.tag in wanted and line.user == user and text.lives(line)
        ]

    def _scancel(self, ids: Iterable[str]) -> None:
        for some in _joined(ids):
            answer = self._run("scancel", *some.split(","))
            # It is no error that a job has ended meanwhile; scancel then says so or nothing.
            if answer.code != 0 and not re.search("Invalid job id|already", answer.err):
                raise Unreachable(f"scancel: {answer.complaint}")

    def poll(self) -> Listing:
        """Three calls, whatever the number of jobs.

        The boot time is read after the listing: were the controller restarted in between, the
        listing would prove less than it does, never more.
        """
        taken = time.time()
        jobs = self._squeue("--states=all")
        listed = time.time()
        delimiter = _delimiter()
        fields = ",".join(f"{field}:{delimiter}" for field in text.NODE_FIELDS)
        places = self._read(
            lambda out: text.nodes(out, delimiter),
            *("sinfo", "--noheader", "--all", "--Node", "--noconvert", f"--Format={fields}"),
        )
        config = self._read(text.controller, "scontrol", "show", "config")
        since = config.remembers_since(time.time(), listed)
        try:
            rows = text.rows(jobs, self.instance, os.geteuid())
            facts = text.facts(jobs, places, taken, {row.native_id for row in rows})
        except ValueError as error:
            raise Unreachable(f"the listing cannot be read: {error}") from None
        self._facts = facts
        return Listing(
            taken=taken,
            since=since,
            until=taken - self._settings.settle,
            rows=tuple(rows),
            facts=facts,
        )

    def _squeue(self, *filters: str) -> list[text.QueueLine]:
        delimiter = _delimiter()
        names = (*text.QUEUE_FIELDS, self._settings.tag_field)
        fields = ",".join(f"{name}:{delimiter}" for name in names)
        return self._read(
            lambda out: text.queue(out, delimiter),
            *("squeue", "--noheader", "--all", "--noconvert", *filters, f"--Format={fields}"),
        )

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


def _joined(ids: Iterable[str]) -> Iterator[str]:
    """The ids as comma-separated lists, none too long for a command line."""
    some = list(ids)
    for start in range(0, len(some), _IDS_PER_CALL):
        yield ",".join(some[start : start + _IDS_PER_CALL])


def _delimiter() -> str:
    """Ends each field of a listing; other people's free text cannot contain it but by chance."""
    return f"|{secrets.token_hex(4)}|"
