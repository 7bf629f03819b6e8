"""The daemon's side of a worker: starts the process, writes calls, reads replies, restarts it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable

import msgspec

from metasched.adapters.protocol import (
    MAX_REPLY_BYTES,
    WORKER_PROTOCOL,
    WorkerBoot,
    WorkerCall,
    WorkerReply,
)
from metasched.config.settings import ClusterSettings
from metasched.daemon.circuit_breaker import CircuitBreaker
from metasched.daemon.descriptors import restore_limit
from metasched.daemon.host import SchedulerHost
from metasched.model.listing import PolicyExclusions
from metasched.processes.child_processes import describe_exit
from metasched.processes.frames import drop_output, framed, read_frame
from metasched.times.timeouts import reply_timeout
from metasched.version import RELEASE

log = logging.getLogger("metasched")

RESTART_DELAY = 0.5  # seconds before a worker that died is restarted; doubles with each death
MAX_RESTART_DELAY = 60.0  # seconds
MAX_STARTUP_FACTOR = 4.0  # times `call_timeout`: limit for the first reply after repeated deaths
HEALTHY_AFTER = 60.0  # seconds of life after which earlier deaths of the worker are forgotten


class WorkerProcess:
    """The worker process of a cluster. It is started by the first call and after each death."""

    def __init__(
        self, host: SchedulerHost, settings: ClusterSettings, on_exit: Callable[[], None]
    ) -> None:
        self.settings = settings
        self.access = ""  # how the adapter talks to its manager, from the last reply
        self.exclusions: PolicyExclusions | None = None  # from the last reply
        self.breaker = CircuitBreaker(RESTART_DELAY, MAX_RESTART_DELAY)  # counts deaths
        self._host, self._on_exit = host, on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._started = 0.0  # monotonic seconds
        self._replied = False  # the current process has replied at least once
        self._process_tasks: set[asyncio.Task[None]] = set()
        self._reader: asyncio.Task[str] | None = None  # of the current process; ends with the cause
        # calls that the current process has not answered, by number, the oldest first
        self._expected: dict[int, asyncio.Future[WorkerReply]] = {}

    @property
    def is_paused(self) -> bool:
        """Whether there is no process now because the last worker died too recently."""
        return self.breaker.state(time.monotonic()) == "open"

    async def call(self, call: WorkerCall) -> WorkerReply:
        """Execute a call.

        A worker that dies or hangs is killed; it may have executed the call.
        """
        await self.write_call(call)
        return await self.read_reply(call)

    @property
    def _reply_timeout(self) -> float:
        """Seconds to wait for a reply; longer for the first reply, since the host may be busy."""
        if self._replied:
            return self.settings.call_timeout
        return self.settings.call_timeout * min(2.0**self.breaker.failures, MAX_STARTUP_FACTOR)

    async def write_call(self, call: WorkerCall) -> bool:
        """Write a call to the worker. Return False if there is none; `read_reply` says why."""
        process, timeout = self._process, self._reply_timeout
        try:
            if process is None and (process := await self._start_unless_paused()) is None:
                return False
            assert process.stdin is not None
            self._expect(process, call)
            process.stdin.write(framed(msgspec.json.encode(call)))
            async with reply_timeout(timeout):
                await process.stdin.drain()
        except TimeoutError:
            self._discard_current(process, f"it did not read in {timeout:g} s")
        except ConnectionError:
            cause = "" if process is None else await _exit_cause(process)
            self._discard_current(process, f"its worker died{cause}{self._skew_hint}")
        except (OSError, ValueError) as error:
            self._discard_current(process, f"its worker failed: {error}")
        return self._process is not None and self._process is process

    async def _start_unless_paused(self) -> asyncio.subprocess.Process | None:
        """Return the process that another call has just started, or start it; None in a pause."""
        async with self._starting:
            if self._process is None and not self.is_paused:
                await self._start()
            return self._process

    def _expect(self, process: asyncio.subprocess.Process, call: WorkerCall) -> None:
        """Expect the reply to a call that is about to be written."""
        if self._reader is None:
            self._reader = asyncio.create_task(self._read_replies(process))
            self._reader.add_done_callback(self._fail_expected)
        elif self._reader.done():
            raise ConnectionResetError
        self._expected[call.number] = asyncio.get_running_loop().create_future()

    async def read_reply(self, call: WorkerCall) -> WorkerReply:
        """Wait for the reply to a call that was written."""
        expected = self._expected.get(call.number)
        if expected is None:
            return WorkerReply("unreachable", self.breaker.last_error)
        process, timeout = self._process, self._reply_timeout
        try:
            async with reply_timeout(timeout):
                reply = await expected
        except TimeoutError:
            # calls that wait for the same worker may end at once: its death counts once
            self._discard_current(process, f"no answer to {call.operation} in {timeout:g} s")
            return WorkerReply("unreachable", self.breaker.last_error)
        finally:
            self._expected.pop(call.number, None)
        if reply.error == "defect":
            log.error("cluster %s: %s", self._name, reply.reason)
            return WorkerReply("unreachable", reply.reason.strip().rpartition("\n")[2])
        return reply

    async def _read_replies(self, process: asyncio.subprocess.Process) -> str:
        """Deliver the replies of a process until it ends or sends nonsense; return the cause."""
        assert process.stdout is not None
        while True:
            try:
                message = await read_frame(process.stdout, MAX_REPLY_BYTES)
            except EOFError:
                return f"its worker died{await _exit_cause(process)}{self._skew_hint}"
            except (OSError, ValueError) as error:
                return f"its worker failed: {error}{self._skew_hint}"
            try:
                reply = msgspec.json.decode(message, type=WorkerReply)
            except (msgspec.DecodeError, RecursionError) as error:
                log.error("cluster %s: invalid reply of its worker: %s", self._name, error)
                return f"its worker sent an invalid reply ({error}){self._skew_hint}"
            if reply.protocol != WORKER_PROTOCOL:
                return (
                    f"its worker has protocol {reply.protocol}, this daemon {WORKER_PROTOCOL}"
                    f"{self._skew_hint}"
                )
            self._replied, self.access = True, reply.access
            self.exclusions = reply.exclusions
            if self.breaker.failures and time.monotonic() - self._started > HEALTHY_AFTER:
                self.breaker.record_success()
            expected = self._expected.get(reply.number)
            if expected is not None and not expected.done():
                expected.set_result(reply)

    def _fail_expected(self, reader: asyncio.Task[str]) -> None:
        """Discard a worker whose replies have ended while some are expected."""
        waiting = any(not expected.done() for expected in self._expected.values())
        if reader is self._reader and not reader.cancelled() and waiting:
            self._discard(reader.result())

    @property
    def _skew_hint(self) -> str:
        """The remedy for a worker in an environment of its own that never replied."""
        if self._replied or self.settings.python is None:
            return ""
        python = self.settings.python
        return f" before its first answer; install metasched {RELEASE} for {python}"

    @property
    def _name(self) -> str:
        return self.settings.cluster.name

    async def _start(self) -> None:
        settings, host_settings = self.settings, self._host.settings
        self._started = time.monotonic()
        folder = host_settings.state_folder / self._name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if host_settings.launcher is not None:
            host_settings.state_folder.chmod(0o711)  # users pass through it to their own folders
        active_until = self._host.ledger.active_until
        process = await asyncio.create_subprocess_exec(
            settings.python or sys.executable,
            "-P",  # no imports from the daemon's working folder
            "-m",
            "metasched.adapters.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | settings.environment,
            pass_fds=() if active_until is None else (active_until.descriptor,),
        )
        restore_limit(process.pid)
        self._replied, self._reader = False, None
        self._keep(asyncio.create_task(self._report_exit(process)))
        core = self._host.core
        boot = WorkerBoot(
            adapter=settings.cluster.adapter,
            cluster=settings.cluster,
            options=settings.options,
            instance=core.instance,
            former_instances=tuple(sorted(core.instances.names - {core.instance})),
            folder=str(folder),
            launcher=str(host_settings.launcher or ""),
            protocol=WORKER_PROTOCOL,
            active_until=None if active_until is None else active_until.descriptor,
        )
        assert process.stdin is not None
        # a worker of before protocol 3 waits for the end of a line
        process.stdin.write(framed(msgspec.json.encode(boot) + b"\n"))
        self._process = process

    async def _report_exit(self, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        self._on_exit()

    def discard_if_dead(self) -> bool:
        """Discard a worker that died between calls. Return whether it had died."""
        if self._process is None or self._process.returncode is None:
            return False
        self._discard(f"its worker died{describe_exit(self._process.returncode)}")
        return True

    def _discard_current(self, process: asyncio.subprocess.Process | None, reason: str) -> None:
        """Discard `process` (None: it failed to start), unless another call has done so."""
        if self._process is process:
            self._discard(reason)

    def _discard(self, reason: str) -> WorkerReply:
        """Kill the worker, count its death and return the reply to all calls under way.

        A worker that dies again and again is restarted less often.
        """
        if self._process is not None and self._process.stdin is not None:
            # If the worker left input unread, closing its pipe fails. asyncio logs that exception
            # unless it is retrieved.
            close_waiter = asyncio.create_task(self._process.stdin.wait_closed())
            close_waiter.add_done_callback(lambda task: task.cancelled() or task.exception())
        self.kill()
        now = time.monotonic()
        if now - self._started > HEALTHY_AFTER:
            self.breaker.record_success()
        if self.breaker.failures:
            reason += f", {self.breaker.failures + 1} times in a row"
        delay = self.breaker.record_failure(reason, time.time(), now)
        log.warning("cluster %s: %s; a new worker in %g s", self._name, reason, delay)
        reply = WorkerReply("unreachable", reason)
        for expected in self._expected.values():
            if not expected.done():
                expected.set_result(reply)
        return reply

    def kill(self) -> None:
        """Kill the process, if it exists."""
        process, self._process = self._process, None
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if process is not None:
            self._keep(asyncio.create_task(drop_output(process)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Refer to a task of a process until the task ends."""
        self._process_tasks.add(task)
        task.add_done_callback(self._process_tasks.discard)

    async def stop(self) -> None:
        """Kill the process and wait for its end."""
        process = self._process
        self.kill()
        if process is not None:
            await process.wait()


async def _exit_cause(process: asyncio.subprocess.Process) -> str:
    """Describe how a worker that closed its pipe ended; "" if it has not ended within 1 s."""
    try:
        async with asyncio.timeout(1.0):
            return describe_exit(await process.wait())
    except TimeoutError:
        return ""
