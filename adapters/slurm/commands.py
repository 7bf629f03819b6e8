"""A Slurm cluster by its commands: sbatch, scancel, scontrol, squeue, sinfo, and sacct."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from metasched.adapters.base import Order
from metasched.adapters.commands import Answer, Stopped, answer_of, memory_file, run
from metasched.adapters.errors import Refused, Unreachable
from metasched.adapters.launcher_client import Launcher
from metasched.adapters.slurm import accounting_records as records
from metasched.adapters.slurm import listing as text
from metasched.adapters.slurm import reservation_listing as windows
from metasched.adapters.slurm import submission as batch
from metasched.adapters.slurm.access import SlurmOptions
from metasched.model.cluster import Copies
from metasched.model.job import Payload

# sbatch says so, sleeps for a second (later for two, three, ...) and tries again by itself.
_RETRYING = re.compile(r"retrying$", re.MULTILINE)
_RETRY_SLEEP = 1.0

_PROGRAMS = {
    "submit": ("sbatch",),
    "cancel": ("scancel",),
    "hold": ("scontrol", "hold"),
    "release": ("scontrol", "release"),
}

T = TypeVar("T")


class Commands:
    """The commands of the cluster's own release, each started anew for every call.

    With a `launcher` what is done for a job is done as its owner, `user`.
    """

    name = "commands"

    def __init__(
        self,
        options: SlurmOptions,
        cluster: str,
        launcher: Launcher | None = None,
        user: str = "",
    ) -> None:
        self._settings, self._cluster = options, cluster
        self._launcher, self._user = launcher, user
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
        script = batch.script(order.payload.script)
        variables = batch.environment(order, index, self._cluster)
        return self._sbatch(order.payload, words, variables, script)

    def submit_array(self, order: Order, indices: Sequence[int]) -> str:
        words = batch.arguments(order, None, self._settings.tag_field, indices)
        script = batch.array_script(order, indices, self._cluster)
        variables = batch.environment(order, indices[0], self._cluster)
        return self._sbatch(order.payload, words, variables, script)

    def _sbatch(self, payload: Payload, words: list[str], variables: bytes, script: bytes) -> str:
        with memory_file(variables) as environment, memory_file(script) as body:
            number = environment if self._launcher is None else 3
            answer = self._act(
                "submit",
                f"--export-file={number}",
                *words,
                files=(body, environment),
                payload=payload,
            )
        if answer.code != 0:
            doubt = Unreachable(f"sbatch: {batch.complaint(answer.err)}")
            raise (answer.code > 0 and batch.refusal(answer.err)) or doubt
        native = answer.out.strip().partition(";")[0]
        if not native.isdecimal():
            raise Unreachable(f"sbatch answered {answer.out[:80]!r}, not a job id")
        return native

    def jobs(
        self, *, ids: Sequence[str] = (), user: int | None = None, apart: bool = False
    ) -> list[text.QueueLine]:
        # --array of 22.05 leaves the last task of 0-8:2 out
        chosen = ["--states=all", *(["--array"] if apart else [])]
        jobs = sorted({id.partition("_")[0] for id in ids})
        if 0 < len(jobs) <= text.IDS_PER_CALL:
            chosen.append(f"--jobs={','.join(jobs)}")
        elif user is not None:
            chosen.append(f"--user={user}")
        names = (*text.QUEUE_FIELDS, self._settings.tag_field)
        try:
            return self._list("squeue", text.queue, names, "--noconvert", *chosen)
        except Unreachable as error:
            if ids and "Invalid job id" in error.reason:
                return []
            raise

    def version(self) -> tuple[int, int]:
        """Major and minor number of the cluster's release, as its commands tell it."""
        return self._read(text.release, "sinfo", "--version")

    def nodes(self) -> list[text.NodeLine]:
        return self._list("sinfo", text.nodes, text.NODE_FIELDS, "--Node", "--noconvert")

    def controller(self) -> text.Controller:
        return self._read(text.controller, "scontrol", "show", "config")

    def licences(self) -> dict[str, Copies]:
        return self._read(text.licences, "scontrol", "--oneliner", "show", "licenses")

    def reservations(self) -> list[windows.Kept]:
        """Everybody's."""
        return self._read(windows.reservations, "scontrol", "--oneliner", "show", "reservation")

    def reserved_jobs(self) -> list[windows.Within]:
        """Jobs in reservations that have not ended."""
        return self._list("squeue", windows.reserved_jobs, windows.WITHIN_FIELDS)

    def cores(self) -> dict[str, windows.Cores]:
        """What each node has."""
        return self._list("sinfo", windows.cores, windows.CORES_FIELDS, "--Node")

    def _list(
        self, program: str, parse: Callable[[str, str], T], names: Sequence[str], *how: str
    ) -> T:
        delimiter = _delimiter()
        fields = ",".join(f"{name}:{delimiter}" for name in names)
        return self._read(
            lambda out: parse(out, delimiter),
            *(program, "--noheader", "--all", *how, f"--Format={fields}"),
        )

    def change(self, *words: str) -> str:
        """Have scontrol change something, as this account; what was said against it."""
        answer = self._run("scontrol", *words)
        return "" if answer.code == 0 else batch.complaint(answer.err)

    def hold(self, ids: Collection[str]) -> str:
        answers = [self._act("hold", *some) for some in text.grouped(ids)]
        return "; ".join(batch.complaint(answer.err) for answer in answers if answer.code != 0)

    def release(self, ids: Collection[str]) -> None:
        for some in text.grouped(ids):
            self._act("release", *some)

    def cancel(self, ids: Collection[str]) -> None:
        for some in text.grouped(ids):
            answer = self._act("cancel", *some)
            # It is no error that a job has ended meanwhile; scancel then says so or nothing.
            if answer.code != 0 and not re.search("Invalid job id|already", answer.err):
                raise Unreachable(f"scancel: {batch.complaint(answer.err)}")

    def sacct(self, *filters: str) -> list[records.Record]:
        delimiter = _delimiter()
        shown = ("--noheader", "--allocations", "--duplicates", "--parsable")
        return self._read(
            lambda out: records.sacct(out, delimiter, self._settings.tag_field),
            *("sacct", *shown, f"--delimiter={delimiter}", *filters),
            f"--format={','.join(records.SACCT_FIELDS)}",
        )

    def unsent(self) -> int:
        return self._read(records.unsent, "sdiag")

    def purged(self) -> float | None:
        return self._read(records.purged, "sacctmgr", "--noheader", "show", "configuration")

    def _read(self, parse: Callable[[str], T], program: str, *arguments: str) -> T:
        answer = self._run(program, *arguments)
        if answer.code != 0:
            raise Unreachable(f"{program}: {batch.complaint(answer.err)}")
        try:
            return parse(answer.out)
        except ValueError as error:
            raise Unreachable(f"{program}: the answer cannot be read: {error}") from None

    def _act(
        self,
        verb: str,
        *arguments: str,
        files: tuple[int, int] | None = None,
        payload: Payload | None = None,
    ) -> Answer:
        """The answer of a command that changes something, given as the owner of the job.

        `files` are its standard input and another one that it reads.
        """
        stdin, keep = files or (None, None)
        if self._launcher is None:
            umask = -1 if payload is None else payload.umask
            kept = () if keep is None else (keep,)
            return self._run(*_PROGRAMS[verb], *arguments, stdin=stdin, keep=kept, umask=umask)
        process = self._launcher.start(
            self._user,
            verb,
            arguments,
            directory="/" if payload is None else payload.directory,
            umask=0o022 if payload is None else payload.umask,
            stdin=stdin,
            keep=keep,
        )
        program = _PROGRAMS[verb][0]
        with _a_full_queue_refuses():
            return answer_of(process, program, self._settings.timeout, _ENOUGH.get(program))

    def _run(
        self,
        program: str,
        *arguments: str,
        stdin: int | None = None,
        keep: Sequence[int] = (),
        umask: int = -1,
    ) -> Answer:
        """The answer of one command of this cluster; Unreachable if none came in time."""
        path = os.path.join(self._settings.bin_dir, program) if self._settings.bin_dir else program
        with _a_full_queue_refuses():
            return run(
                [path, *arguments],
                self._environment,
                self._settings.timeout,
                stdin=stdin,
                keep=keep,
                umask=umask,
                enough=_ENOUGH.get(program),
            )


@contextmanager
def _a_full_queue_refuses() -> Iterator[None]:
    """Refused instead of Stopped, if sbatch was caught asleep between two tries."""
    try:
        yield
    except Stopped as stopped:
        if stopped.seconds < _RETRY_SLEEP:
            raise Refused(batch.complaint(stopped.said), again=True) from None
        raise


def _retries(said: str) -> bool:
    return _RETRYING.search(said) is not None


_ENOUGH = {"sbatch": _retries}


def _delimiter() -> str:
    """Ends each field of a listing; other people's free text cannot contain it but by chance."""
    return f"|{secrets.token_hex(4)}|"
