"""Access to a Slurm cluster by its commands: sbatch, scancel, scontrol, squeue, sinfo, sacct."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from metasched.adapters.base import Submission
from metasched.adapters.launcher_client import LauncherClient, remaining_seconds
from metasched.adapters.slurm import (
    accounting_records,
    associations,
    foreign_use,
    job_usage,
    launch_failures,
    listing,
    reservation_listing,
    shares,
)
from metasched.adapters.slurm.access import SlurmOptions
from metasched.adapters.slurm.batch_script import array_script, task_script
from metasched.adapters.slurm.submission import (
    environment_file,
    error_message,
    parse_answer,
    sbatch_arguments,
)
from metasched.model.adapter_errors import Refused, Unreachable
from metasched.model.cluster import ManagerLicences
from metasched.model.fair_share import ShareTree
from metasched.model.job import Payload
from metasched.processes.commands import (
    CommandAborted,
    CommandResult,
    memory_file,
    run_command,
    wait_for_result,
)

# sbatch prints this, sleeps for a second (later for two, three, ...) and retries by itself.
_RETRYING = re.compile(r"retrying$", re.MULTILINE)
_RETRY_SLEEP = 1.0  # seconds
_ALREADY_ENDED = re.compile("Invalid job id specified|already completing or completed")

_PROGRAMS = {
    "submit": ("sbatch",),
    "cancel": ("scancel",),
    "hold": ("scontrol", "hold"),
    "release": ("scontrol", "release"),
}

T = TypeVar("T")


class SlurmCommands:
    """The commands of the cluster's own release, a new process for each call.

    With a `launcher`, changes to jobs are made as their owner, `user`.
    """

    name = "commands"

    def __init__(
        self,
        options: SlurmOptions,
        cluster: str,
        launcher: LauncherClient | None = None,
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

    def submit(self, submission: Submission, index: int) -> str:
        arguments = sbatch_arguments(submission, index, self._settings.tag_field)
        script = task_script(submission, index, self._cluster, self._settings.bin_dir)
        variables = environment_file(submission, index, self._cluster)
        return self._sbatch(submission, arguments, variables, script)

    def submit_array(self, submission: Submission, indices: Sequence[int]) -> str:
        arguments = sbatch_arguments(submission, None, self._settings.tag_field, indices)
        script = array_script(submission, indices, self._cluster, self._settings.bin_dir)
        variables = environment_file(submission, indices[0], self._cluster)
        return self._sbatch(submission, arguments, variables, script)

    def _sbatch(
        self, submission: Submission, arguments: list[str], variables: bytes, script: bytes
    ) -> str:
        payload = submission.payload
        with memory_file(variables) as environment_fd, memory_file(script) as script_fd:
            fd_number = environment_fd if self._launcher is None else 3
            completed = self._run_as_owner(
                "submit",
                f"--export-file={fd_number}",
                *arguments,
                files=(script_fd, environment_fd),
                payload=payload,
            )
        return parse_answer(completed)

    def jobs(
        self,
        *,
        ids: Sequence[str] = (),
        user: int | None = None,
        split_arrays: bool = False,
        known: Collection[str] = (),
    ) -> listing.QueueListing:
        # --array of 22.05 omits the last task of 0-8:2
        filters = ["--states=all", *(["--array"] if split_arrays else [])]
        job_ids = sorted({native_id.partition("_")[0] for native_id in ids})
        if 0 < len(job_ids) <= listing.IDS_PER_CALL:
            filters.append(f"--jobs={','.join(job_ids)}")
        elif user is not None:
            filters.append(f"--user={user}")
        field_names = (*listing.QUEUE_FIELDS, self._settings.tag_field)
        try:
            return self._query_listing(
                "squeue", listing.parse_queue, field_names, "--noconvert", *filters
            )
        except Unreachable as error:
            if ids and "Invalid job id" in error.reason:
                return listing.QueueListing([])
            raise

    def accounts(self, job_ids: Sequence[str]) -> dict[str, str]:
        """Return the accounts of jobs by their ids, of an array by that of the array."""
        try:
            return self._query_listing(
                "squeue",
                listing.parse_accounts,
                ("arrayjobid", "account"),
                *("--states=all", f"--jobs={','.join(job_ids)}"),
            )
        except Unreachable as error:
            if "Invalid job id" in error.reason:
                return {}
            raise

    def release_version(self) -> tuple[int, int]:
        """Return (major, minor) of the release of the cluster's commands."""
        return self._query(listing.parse_release, "sinfo", "--version")

    def nodes(self) -> list[listing.SinfoRecord]:
        return self._query_listing(
            "sinfo", listing.parse_nodes, listing.NODE_FIELDS, "--Node", "--noconvert"
        )

    def drains(self) -> dict[str, launch_failures.Drain]:
        """Return the drained nodes by name."""
        return self._query_listing(
            "sinfo", launch_failures.parse_drains, launch_failures.DRAIN_FIELDS, "--Node"
        )

    def controller(self) -> listing.ControllerInfo:
        return self._query(listing.parse_controller, "scontrol", "show", "config")

    def lists_all_jobs_to(self, user: str) -> bool:
        """Return whether the controller knows a user as an operator, whom PrivateData exempts."""
        level = self._query(
            lambda output: listing.parse_admin_level(output, user),
            *("scontrol", "show", "assoc_mgr", f"users={user}", "flags=users"),
        )
        return level in ("Operator", "Administrator")

    def is_federated(self) -> bool:
        return self._query(listing.parse_federation, "scontrol", "show", "federation")

    def licences(self) -> dict[str, ManagerLicences]:
        return self._query(listing.parse_licences, "scontrol", "--oneliner", "show", "licenses")

    def reservations(self) -> list[reservation_listing.SlurmReservation]:
        """List the reservations of all users."""
        return self._query(
            reservation_listing.parse_reservations, "scontrol", "--oneliner", "show", "reservation"
        )

    def jobs_in_reservations(self) -> list[reservation_listing.ReservedJob]:
        """List active jobs in reservations."""
        return self._query_listing(
            "squeue",
            reservation_listing.parse_reserved_jobs,
            reservation_listing.RESERVED_JOB_FIELDS,
        )

    def cores(self) -> dict[str, reservation_listing.NodeCores]:
        """Return the cores of each node."""
        return self._query_listing(
            "sinfo", reservation_listing.parse_cores, reservation_listing.CORES_FIELDS, "--Node"
        )

    def _query_listing(
        self,
        program: str,
        parse: Callable[[str, str], T],
        field_names: Sequence[str],
        *options: str,
    ) -> T:
        delimiter = _delimiter()
        fields = ",".join(f"{name}:{delimiter}" for name in field_names)
        return self._query(
            lambda output: parse(output, delimiter),
            program,
            "--noheader",
            "--all",
            *options,
            f"--Format={fields}",
        )

    def scontrol(self, *arguments: str) -> str:
        """Run scontrol as this account; return its error message, "" if it succeeded."""
        completed = self._run("scontrol", *arguments)
        return "" if completed.exit_code == 0 else error_message(completed.stderr)

    def hold(self, ids: Collection[str]) -> str:
        calls = [self._run_as_owner("hold", *arguments) for arguments in listing.job_arguments(ids)]
        return "; ".join(error_message(call.stderr) for call in calls if call.exit_code != 0)

    def release(self, ids: Collection[str]) -> None:
        for arguments in listing.job_arguments(ids):
            self._run_as_owner("release", *arguments)

    def cancel(self, ids: Collection[str]) -> None:
        for arguments in listing.job_arguments(ids):
            completed = self._run_as_owner("cancel", *arguments)
            # An ended job is no error; scancel may or may not report it. Neither message is
            # evidence of an end, which only a listing or accounting shows: Slurm finds an array by
            # its id modulo MaxJobCount, so it may call a forgotten array "already completing".
            if completed.exit_code != 0 and not _ALREADY_ENDED.search(completed.stderr):
                raise Unreachable(f"scancel: {error_message(completed.stderr)}")

    def sacct(self, *filters: str) -> list[accounting_records.SlurmRecord]:
        delimiter = _delimiter()
        options = ("--noheader", "--allocations", "--duplicates", "--parsable")
        return self._query(
            lambda output: accounting_records.parse_sacct(
                output, delimiter, self._settings.tag_field
            ),
            "sacct",
            *options,
            f"--delimiter={delimiter}",
            *filters,
            f"--format={','.join(accounting_records.SACCT_FIELDS)}",
        )

    def unsent_messages(self) -> int:
        return self._query(accounting_records.parse_unsent_messages, "sdiag")

    def purge_age(self) -> float | None:
        return self._query(
            accounting_records.parse_purge_age, "sacctmgr", "--noheader", "show", "configuration"
        )

    def associations(
        self, cluster: str, *, only_defaults: bool
    ) -> list[associations.AssociationLine]:
        return self._query(
            associations.parse_associations,
            "sacctmgr",
            *("--noheader", "--parsable2", "--readonly", "show", "associations"),
            f"cluster={cluster}",
            *(["onlydefaults"] if only_defaults else []),
            f"format={','.join(associations.ASSOCIATION_FIELDS)}",
        )

    def use_between(self, begin: int, end: int) -> foreign_use.UseRecords:
        delimiter = _delimiter()
        times = (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) for at in (begin, end))
        starttime, endtime = times
        return self._query(
            lambda output: foreign_use.parse_use(output, delimiter),
            "sacct",
            *("--noheader", "--allusers", "--allocations", "--duplicates", "--parsable"),
            *("--truncate", "--state=RUNNING"),
            *(f"--starttime={starttime}", f"--endtime={endtime}", f"--delimiter={delimiter}"),
            f"--format={','.join(foreign_use.USE_FIELDS)}",
        )

    def usage(self, ids: str) -> dict[str, job_usage.JobRecord]:
        delimiter = _delimiter()
        return self._query(
            lambda output: job_usage.parse_usage(output, delimiter),
            "sacct",
            *("--noheader", "--parsable", "--noconvert", f"--jobs={ids}"),
            f"--delimiter={delimiter}",
            f"--format={','.join(job_usage.USAGE_FIELDS)}",
        )

    def slurmdbd(self) -> foreign_use.Slurmdbd:
        return self._query(
            foreign_use.parse_slurmdbd, "sacctmgr", "--noheader", "show", "configuration"
        )

    def admin_level(self, user: str) -> str:
        return self._query(
            str.strip,
            "sacctmgr",
            *("--noheader", "--parsable2", "--readonly", "show", "user", f"user={user}"),
            "format=adminlevel",
        )

    def shares(self, cluster: str) -> ShareTree:
        return self._query(
            shares.parse_shares,
            "sacctmgr",
            *("--noheader", "--parsable2", "--readonly", "show", "associations"),
            f"cluster={cluster}",
            f"format={','.join(shares.SHARE_FIELDS)}",
        )

    def _query(self, parse: Callable[[str], T], program: str, *arguments: str) -> T:
        completed = self._run(program, *arguments)
        if completed.exit_code != 0:
            raise Unreachable(f"{program}: {error_message(completed.stderr)}")
        try:
            return parse(completed.stdout)
        except ValueError as error:
            raise Unreachable(f"{program}: unexpected output: {error}") from None

    def _run_as_owner(
        self,
        verb: str,
        *arguments: str,
        files: tuple[int, int] | None = None,
        payload: Payload | None = None,
    ) -> CommandResult:
        """Run a command that changes a job, as the job's owner.

        `files` are the descriptors of its standard input and of another file that it reads.
        """
        stdin, extra_fd = files or (None, None)
        if self._launcher is None:
            umask = -1 if payload is None else payload.umask
            pass_fds = () if extra_fd is None else (extra_fd,)
            return self._run(
                *_PROGRAMS[verb], *arguments, stdin=stdin, pass_fds=pass_fds, umask=umask
            )
        timeout = remaining_seconds(self._settings.timeout)
        process = self._launcher.start(
            self._user,
            verb,
            arguments,
            directory="/" if payload is None else payload.directory,
            umask=0o022 if payload is None else payload.umask,
            stdin=stdin,
            extra_fd=extra_fd,
        )
        program = _PROGRAMS[verb][0]
        with _full_queue_is_refused():
            return wait_for_result(process, program, timeout, _ABORT_CHECKS.get(program))

    def _run(
        self,
        program: str,
        *arguments: str,
        stdin: int | None = None,
        pass_fds: Sequence[int] = (),
        umask: int = -1,
    ) -> CommandResult:
        """Run a command of this cluster. Raises Unreachable if it does not end in time."""
        path = os.path.join(self._settings.bin_dir, program) if self._settings.bin_dir else program
        with _full_queue_is_refused():
            return run_command(
                [path, *arguments],
                self._environment,
                remaining_seconds(self._settings.timeout),
                stdin=stdin,
                pass_fds=pass_fds,
                umask=umask,
                should_abort=_ABORT_CHECKS.get(program),
            )


@contextmanager
def _full_queue_is_refused() -> Iterator[None]:
    """Raise Refused if sbatch was killed while it slept because Slurm's queue was full.

    Nothing was queued then. After a later kill CommandAborted stays: the result is uncertain.
    """
    try:
        yield
    except CommandAborted as aborted:
        if aborted.detection_delay < _RETRY_SLEEP:
            raise Refused(error_message(aborted.stderr), retryable=True) from None
        raise


def _is_retrying(stderr: str) -> bool:
    return _RETRYING.search(stderr) is not None


_ABORT_CHECKS = {"sbatch": _is_retrying}


def _delimiter() -> str:
    """Return a random delimiter of fields, which free text of other users will not contain."""
    return f"|{secrets.token_hex(4)}|"
