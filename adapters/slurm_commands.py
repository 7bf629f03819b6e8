"""A Slurm cluster by its commands: sbatch, scancel, scontrol, squeue, sinfo, and sacct."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from metasched.adapters import slurm_batch as batch
from metasched.adapters import slurm_records as records
from metasched.adapters import slurm_text as text
from metasched.adapters.base import Order, Refused, Unreachable
from metasched.adapters.commands import Answer, Stopped, memory_file, run
from metasched.adapters.slurm_access import SlurmOptions

# sbatch says so, sleeps for a second (later for two, three, ...) and tries again by itself.
_RETRYING = re.compile(r"retrying$", re.MULTILINE)
_RETRY_SLEEP = 1.0

T = TypeVar("T")


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
        script = batch.script(order.payload.script)
        return self._sbatch(words, batch.environment(order, index, self._cluster), script)

    def submit_array(self, order: Order, indices: Sequence[int]) -> str:
        words = batch.arguments(order, None, self._settings.tag_field, indices)
        script = batch.array_script(order, indices, self._cluster)
        return self._sbatch(words, batch.environment(order, indices[0], self._cluster), script)

    def _sbatch(self, words: list[str], variables: bytes, script: bytes) -> str:
        with memory_file(variables) as environment, memory_file(script) as body:
            answer = self._run(
                "sbatch", f"--export-file={environment}", *words, stdin=body, keep=(environment,)
            )
        if answer.code != 0:
            doubt = Unreachable(f"sbatch: {batch.complaint(answer.err)}")
            raise (answer.code > 0 and batch.refusal(answer.err)) or doubt
        native = answer.out.strip().partition(";")[0]
        if not native.isdecimal():
            raise Unreachable(f"sbatch answered {answer.out[:80]!r}, not a job id")
        return native

    def jobs(self, *, ids: Sequence[str] = (), user: int | None = None) -> list[text.QueueLine]:
        chosen = ["--states=all"]
        jobs = sorted({id.partition("_")[0] for id in ids})
        if 0 < len(jobs) <= text.IDS_PER_CALL:
            chosen += ["--array", f"--jobs={','.join(jobs)}"]
        elif user is not None:
            chosen += ["--array", f"--user={user}"]
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
        answers = [self._run("scontrol", "hold", *some) for some in text.grouped(ids)]
        return "; ".join(batch.complaint(answer.err) for answer in answers if answer.code != 0)

    def release(self, ids: Collection[str]) -> None:
        for some in text.grouped(ids):
            self._run("scontrol", "release", *some)

    def cancel(self, ids: Collection[str]) -> None:
        for some in text.grouped(ids):
            answer = self._run("scancel", *some)
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

    def _run(
        self, program: str, *arguments: str, stdin: int | None = None, keep: Sequence[int] = ()
    ) -> Answer:
        """The answer of one command of this cluster; Unreachable if none came in time."""
        path = os.path.join(self._settings.bin_dir, program) if self._settings.bin_dir else program
        try:
            return run(
                [path, *arguments],
                self._environment,
                self._settings.timeout,
                stdin=stdin,
                keep=keep,
                enough=_retries if program == "sbatch" else None,
            )
        except Stopped as stopped:
            # A full queue is a refusal, if sbatch was caught asleep between two tries.
            if stopped.seconds < _RETRY_SLEEP:
                raise Refused(batch.complaint(stopped.said), again=True) from None
            raise


def _retries(said: str) -> bool:
    return _RETRYING.search(said) is not None


def _delimiter() -> str:
    """Ends each field of a listing; other people's free text cannot contain it but by chance."""
    return f"|{secrets.token_hex(4)}|"
