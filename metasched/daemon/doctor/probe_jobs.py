"""One small job for each cluster, under an account that the site names: site mode, on request.

A worker of its own submits the job as the daemon's workers do, through the launcher. The job checks
its uid, its groups and its home, and whether it reaches the daemon; its exit code is the answer, so
no file is needed. Its tag is of an instance of its own: the daemon takes it for a foreign job. It
has a time limit of a minute, and is withdrawn unless it has ended; also after Ctrl-C.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from metasched.adapters.base import Submission, Withdrawal
from metasched.adapters.protocol import (
    MAX_REPLY_BYTES,
    WORKER_PROTOCOL,
    WorkerBoot,
    WorkerCall,
    WorkerReply,
)
from metasched.config.settings import ClusterSettings, Settings
from metasched.core.transitions import FINAL
from metasched.daemon.doctor.check_runs import Check, run_side_by_side
from metasched.daemon.doctor.findings import Finding, found, passed
from metasched.model.cluster import ClusterInfo
from metasched.model.job import Job, Payload, State
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from metasched.policies.eligible import UnmappedNameError, translate_job
from metasched.processes.frames import receive_frame, send_frame

TIME_LIMIT = 60.0  # seconds; of the job at its manager
PROBE_TIME = 60.0  # most seconds until the job has ended
CLEANUP_TIME = 30.0  # most seconds until a withdrawn job is gone
POLL_INTERVAL = 1.0  # seconds
_JOB, _DISPATCH = 1, 1  # of the instance of a probe
_BASE = 32  # exit code of a job without a problem; the bits below are problems
_WRONG_UID, _WRONG_GROUPS, _NO_HOME, _NO_DAEMON = 1, 2, 4, 8


class ProbeFailed(Exception):
    """The worker did not answer."""


def run_probes(settings: Settings, account: str | None) -> list[Finding]:
    """Run a job on each cluster, side by side; none is left behind.

    `account`: None: that of [doctor]. KeyboardInterrupt is raised again after the clean-up.
    """
    refusal = account_refusal(settings, account or settings.probe_account)
    if refusal is not None:
        return [refusal]
    owner = pwd.getpwnam(account or settings.probe_account)
    stop, ended = threading.Event(), []
    checks = []
    for entry in settings.clusters:
        ended.append(threading.Event())
        probe = partial(_probe, entry, settings, owner, stop, ended[-1])
        checks.append(Check(f"probe of {entry.cluster.name}", probe))
    try:
        return run_side_by_side(checks, PROBE_TIME + CLEANUP_TIME)
    finally:
        stop.set()
        deadline = time.monotonic() + CLEANUP_TIME
        for each in ended:
            each.wait(max(0.0, deadline - time.monotonic()))


def account_refusal(settings: Settings, account: str) -> Finding | None:
    """Return why jobs of doctor may not run as an account; None if they may."""

    def refused(text: str) -> Finding:
        return found("probe-account", "probe account", text)

    if settings.site is None:
        return refused("in personal mode all jobs are the daemon's own: submit one by hand")
    if not account:
        return refused("no account is named for jobs of doctor")
    try:
        owner = pwd.getpwnam(account)
    except KeyError:
        return refused(f"there is no account {account} on this host")
    if owner.pw_uid in (0, os.geteuid()):
        return refused(f"{account} is root or the daemon's account")
    return None


def _probe(
    entry: ClusterSettings,
    settings: Settings,
    owner: pwd.struct_passwd,
    stop: threading.Event,
    ended: threading.Event,
) -> Iterator[Finding]:
    check, started = f"probe of {entry.cluster.name}", time.monotonic()
    try:
        with _worker(entry, settings) as worker:
            row = worker.run_job(owner, stop)
    except ProbeFailed as error:
        yield found("probe-failed", check, str(error), "see the findings of its manager")
        return
    finally:
        ended.set()
    seconds = time.monotonic() - started
    if row.state not in FINAL or row.state is State.CANCELLED:
        reason = f" ({row.manager_reason})" if row.manager_reason else ""
        text = f"the job of {owner.pw_name} was {row.state} for {seconds:.0f} s{reason}"
        yield found("probe-pending", check, f"{text}; it was withdrawn")
        return
    if row.exit_code is None or row.exit_code & ~15 != _BASE:
        text = f"the job of {owner.pw_name} on {row.node or 'a node'} ended as {row.state}, "
        text += f"exit code {row.exit_code}, signal {row.signal}"
        yield found("probe-failed", check, text, "see the manager's log on that node")
        return
    subject = f"on {row.node or 'its node'} the job of {owner.pw_name}"
    problems = row.exit_code - _BASE
    for bit, kind, text in (
        (_WRONG_UID, "probe-identity", "has another uid than on this host"),
        (_WRONG_GROUPS, "probe-identity", "lacks groups that it has on this host"),
        (_NO_HOME, "probe-path", f"finds no folder {owner.pw_dir}"),
        (_NO_DAEMON, "probe-daemon", "does not reach the daemon's url"),
    ):
        if problems & bit:
            yield found(kind, check, f"{subject} {text}")
    if not problems:
        yield passed(check, f"{subject} ended well after {seconds:.0f} s")


@contextmanager
def _worker(entry: ClusterSettings, settings: Settings) -> Iterator[_Worker]:
    """Yield a worker of the cluster with a folder of its own, which is removed."""
    instance = secrets.token_hex(4)
    folder = settings.state_folder / f"probe-{instance}"  # no cluster has such a name
    connection, child_end = socket.socketpair()
    try:
        with child_end:
            folder.mkdir(mode=0o711)
            process = subprocess.Popen(
                [entry.python or sys.executable, "-P", "-m", "metasched.adapters.worker"],
                env=os.environ | entry.environment,
                stdin=child_end.fileno(),
                stdout=child_end.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C must not reach it before the job is withdrawn
            )
    except OSError as error:
        connection.close()
        raise ProbeFailed(f"{error.filename}: {error.strerror}") from None
    try:
        yield _Worker(connection, entry, settings, instance, folder)
    finally:
        connection.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


class _Worker:
    """A worker process that runs a single job."""

    def __init__(
        self,
        connection: socket.socket,
        entry: ClusterSettings,
        settings: Settings,
        instance: str,
        folder: Path,
    ) -> None:
        self._connection, self._entry, self._settings = connection, entry, settings
        self._tag = tag_of(instance, _JOB, _DISPATCH)
        boot = WorkerBoot(
            adapter=entry.cluster.adapter,
            cluster=entry.cluster,
            options=entry.options,
            instance=instance,
            folder=str(folder),
            launcher=str(settings.launcher or ""),
            protocol=WORKER_PROTOCOL,
        )
        self._send(boot, time.monotonic() + entry.call_timeout)

    def run_job(self, owner: pwd.struct_passwd, stop: threading.Event) -> JobStatus:
        """Run the job to its end; after `PROBE_TIME` or `stop` withdraw it.

        Return its last status. ProbeFailed if it was refused, or if the worker does not answer.
        """
        deadline = time.monotonic() + PROBE_TIME
        _, info = self._poll(owner)
        submission = self._submission(owner, info)
        row = JobStatus(self._tag, 0, "", State.DISPATCHING)
        try:
            reply = self._call(WorkerCall("submit", submission=submission, owner=owner.pw_name))
            if reply.error == "refused":
                row.state = State.REJECTED
                raise ProbeFailed(f"the manager refused a job of {owner.pw_name}: {reply.reason}")
            if reply.error:
                raise ProbeFailed(f"the job of {owner.pw_name} was not accepted: {reply.reason}")
            while row.state not in FINAL and time.monotonic() < deadline:
                if stop.wait(POLL_INTERVAL):
                    break
                row = self._poll(owner)[0] or row
            return row
        finally:
            if row.state not in FINAL:
                self._withdraw(owner, row)

    def _withdraw(self, owner: pwd.struct_passwd, row: JobStatus) -> None:
        """Withdraw the job and wait until it is gone. ProbeFailed if that fails."""
        native_ids = {0: row.native_id or None}
        withdrawal = Withdrawal(tag=self._tag, user=owner.pw_name, native_ids=native_ids)
        call = WorkerCall("withdraw", withdrawals=(withdrawal,), owner=owner.pw_name)
        deadline = time.monotonic() + CLEANUP_TIME / 2
        while True:
            reply = self._call(call)
            seen, _ = self._poll(owner)
            if not reply.error and (seen is None or seen.state in FINAL):
                return
            if time.monotonic() > deadline:
                id_there = f", {row.native_id} there" if row.native_id else ""
                raise ProbeFailed(
                    f"the job {self._tag} of {owner.pw_name}{id_there} could not be withdrawn "
                    f"({reply.reason or 'it is still listed'}); it ends by its time limit"
                )
            time.sleep(POLL_INTERVAL)

    def _poll(self, owner: pwd.struct_passwd) -> tuple[JobStatus | None, ClusterInfo | None]:
        """Return the status of the job, if it is listed, and the state of the cluster."""
        reply = self._call(WorkerCall("poll", full=True))
        if reply.delta is None:
            raise ProbeFailed(reply.reason)
        # another account may have copied the tag
        rows = [r for r in reply.delta.rows if (r.tag, r.owner) == (self._tag, owner.pw_name)]
        return (rows[-1] if rows else None), reply.delta.info

    def _submission(self, owner: pwd.struct_passwd, info: ClusterInfo | None) -> Submission:
        job = Job(
            id=_JOB,
            submitted=time.time(),
            estimated=TIME_LIMIT,
            time_limit=TIME_LIMIT,
            user=owner.pw_name,
            name="metasched-doctor",
            requeue=False,
        )
        try:
            job = translate_job(job, self._entry.cluster, info)
        except UnmappedNameError as error:
            raise ProbeFailed(str(error)) from None
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": owner.pw_dir}
        return Submission(
            tag=self._tag,
            job=job,
            payload=Payload(script=probe_script(owner, self._url), environment=environment),
            prologue=self._entry.prologue,
            login=self._entry.login,
        )

    @property
    def _url(self) -> str:
        tcp = self._settings.tcp
        return "" if tcp is None else tcp.url or ""

    def _call(self, call: WorkerCall) -> WorkerReply:
        deadline = time.monotonic() + self._entry.call_timeout
        self._send(call, deadline)
        try:
            message = receive_frame(self._connection, deadline, MAX_REPLY_BYTES)
            return msgspec.json.decode(message, type=WorkerReply)
        except TimeoutError:
            raise ProbeFailed(f"no answer to {call.operation} of its worker") from None
        except (EOFError, OSError):
            raise ProbeFailed("its worker died") from None
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
            raise ProbeFailed(f"its worker sent an invalid reply ({error})") from None

    def _send(self, message: WorkerBoot | WorkerCall, deadline: float) -> None:
        try:
            send_frame(self._connection, msgspec.json.encode(message), deadline)
        except TimeoutError:
            raise ProbeFailed("its worker reads nothing") from None
        except OSError:
            raise ProbeFailed("its worker died") from None


def probe_script(owner: pwd.struct_passwd, url: str) -> str:
    """Return a script of sh that compares its account with that of this host."""
    groups = os.getgrouplist(owner.pw_name, owner.pw_gid)
    lines = [
        "#!/bin/sh",
        f"code={_BASE}",
        f'[ "$(id -u)" = {owner.pw_uid} ] || code=$((code | {_WRONG_UID}))',
        f"for group in {' '.join(map(str, sorted(groups)))}; do",
        # a manager may add groups of its own
        f'  case " $(id -G) " in *" $group "*) ;; *) code=$((code | {_WRONG_GROUPS}));; esac',
        "done",
    ]
    if os.path.isdir(owner.pw_dir):
        lines.append(f"[ -d {shlex.quote(owner.pw_dir)} ] || code=$((code | {_NO_HOME}))")
    lines += _daemon_lines(url)
    return "\n".join([*lines, "exit $code", ""])


def _daemon_lines(url: str) -> Sequence[str]:
    """Return lines that connect to the daemon, where the node has the programs for it."""
    parts = urlsplit(url)
    if not parts.hostname:
        return ()
    connect = f"exec 3<>/dev/tcp/{parts.hostname}/{parts.port or 443}"
    return (
        "if command -v bash >/dev/null && command -v timeout >/dev/null; then",
        f"  timeout 10 bash -c {shlex.quote(connect)} 2>/dev/null || code=$((code | {_NO_DAEMON}))",
        "fi",
    )
