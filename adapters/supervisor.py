"""One small process per job of a `local` cluster: runs the job, enforces limits, records its end.

It imports the standard library only. `python -I -S supervisor.py` is a fork server. It forks a
supervisor for each job folder named on its standard input (NUL-terminated paths). It replies with
a line "pid start" on its standard output. An interpreter per job instead of a fork would take ten
times the start-up time and four times the memory. Supervisors outlive the fork server and its
parent. The fork server runs as the owner of its jobs, so it also serves requests that need this
account. `cancel FOLDER` signals the folder's supervisor, `sweep FOLDER` kills the processes that
a dead supervisor left. The reply to both is "0 0".

The adapter writes the file `spec` of a job's folder: NUL-separated `key=value` fields (`argument`,
`environment`, `directory`, `output`, `error`, `umask`, `limit` and `kill_wait` in seconds,
`memory` in MiB, `devices`, `append`, `early_signal`: a signal, the seconds before the limit at
which it is sent, and its target), two NULs, the script. A supervisor writes

1. `claim`, by link(2), so that exactly one of several processes succeeds; the others exit without
   a trace. It is on disk before the payload starts: a task without a claim never started.
2. `script`, executed directly.
3. `ended`, on disk before the supervisor exits: a task with a claim and without `ended` either has
   a live supervisor (same boot, pid and start time) or has lost it.

A supervisor is a child subreaper, so no process of the payload escapes it. SIGUSR1 cancels the
job.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MEMORY_INTERVAL = 0.5  # seconds between checks of the memory of a job with a memory limit
KILL_INTERVAL = 0.05, 1.0  # seconds between rounds of SIGKILL: first, maximum
SWEEP_SECONDS = 5.0  # the longest time for killing processes that a dead supervisor left
WRITE_INTERVAL = 1.0  # seconds until the record of the end is retried on a full disk
CANNOT_BEGIN = 126  # exit codes of a payload that cannot be executed, as in a shell
NOT_FOUND = 127
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")  # bytes

CANCEL_SIGNAL = signal.SIGUSR1
STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
HANDLED_SIGNALS = frozenset({signal.SIGCHLD, CANCEL_SIGNAL}) | STOP_SIGNALS

_libc = ctypes.CDLL(None, use_errno=True)


def start_time(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot.

    With the pid it identifies a process until the next boot. Raises ProcessLookupError if the
    process has ended or is a zombie.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(pid) from None
    if fields[0] in (b"Z", b"X"):
        raise ProcessLookupError(pid)
    return int(fields[19])


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def claim(folder: str, record: str) -> bool:
    """Store `record` durably as the folder's claim.

    Return False if the folder is claimed already or does not exist. The adapter claims tasks in
    the same way to withdraw them before their start.
    """
    # an unpredictable name: the job's owner may write in the folder
    draft = os.path.join(folder, f"claim.{os.urandom(8).hex()}")
    try:
        return _write_durably(folder, draft, "claim", record, os.link)
    except (FileExistsError, FileNotFoundError):
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)


def _write_durably(
    folder: str, draft: str, name: str, text: str, move: Callable[[str, str], None]
) -> bool:
    """Write `text` to a file, rename it atomically, and sync both to disk.

    The file is synced only after the move: a disk takes milliseconds for each sync. A reader must
    therefore recognise a record that a loss of power has truncated.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)
    # Never through a link: in site mode the job's owner may write in the folder.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(draft, flags, 0o644)
    with open(descriptor, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
        file.flush()
        move(draft, os.path.join(folder, name))
        os.fsync(file.fileno())
    for path in (folder, os.path.dirname(folder)):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return True


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended: its children are now children of this subreaper
    return children


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process."""
    processes: list[int] = []
    generation = _children(pid)
    while generation:
        processes += generation
        generation = [child for parent in generation for child in _children(parent)]
    return processes


def _signal_tree(*signals: int) -> None:
    for pid in descendants(os.getpid()):
        for signal_number in signals:
            try:
                os.kill(pid, signal_number)
            except (ProcessLookupError, PermissionError):
                break  # it has ended, or runs as another user and cannot be signalled


def _tree_memory() -> int:
    """Return the resident memory of all descendants in bytes; shared pages count repeatedly."""
    pages = 0
    for pid in descendants(os.getpid()):
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                pages += int(file.read().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return pages * PAGE_SIZE


class TaskSpec:
    """A job's `spec` file, parsed."""

    def __init__(self, data: bytes) -> None:
        header, self.script = data.split(b"\0\0", 1)
        self.arguments: list[bytes] = []
        self.environment: dict[bytes, bytes] = {}
        fields: dict[bytes, bytes] = {}
        for field in header.split(b"\0"):
            key, _, value = field.partition(b"=")
            if key == b"argument":
                self.arguments.append(value)
            elif key == b"environment":
                name, _, value = value.partition(b"=")
                self.environment[name] = value
            else:
                fields[key] = value
        self.devices = fields.get(b"devices", b"{}")  # JSON, read by the adapter alone
        self.directory, self.output = fields[b"directory"], fields[b"output"]
        self.error = fields.get(b"error", self.output)
        self.kill_wait = float(fields[b"kill_wait"])
        self.limit = float(fields[b"limit"]) if b"limit" in fields else None
        self.memory = int(fields[b"memory"]) * 2**20 if b"memory" in fields else None
        self.appends = b"append" in fields
        self.early_signal, self.early_seconds, self.early_target = 0, 0, b""
        if b"early_signal" in fields:
            number, seconds, self.early_target = fields[b"early_signal"].split(b" ")
            self.early_signal, self.early_seconds = int(number), int(seconds)
        self.umask = int(fields[b"umask"]) if b"umask" in fields else None


class Supervisor:
    """Runs a claimed job, from its first process to its last."""

    def __init__(self, folder: str, spec: TaskSpec, started: float) -> None:
        self.folder, self.spec, self.started = folder, spec, started
        self.main_pid = 0
        self.wait_status: int | None = None  # of the main process, once it has ended
        self.childless = False  # no descendant remains
        self.imposed_state = ""  # final state of a job that the supervisor has ended
        self.message = ""
        self.cpu_seconds = 0.0
        self.max_memory = 0  # bytes

    def run(self) -> None:
        failure_read, failure_write = os.pipe()
        script = os.path.join(self.folder, "script")
        with open(os.open(script, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700), "wb") as file:
            file.write(self.spec.script)
        parent = os.getpid()
        self.main_pid = os.fork()
        if self.main_pid == 0:
            self._exec_payload(script, failure_write, parent)
        os.close(failure_write)
        self._wait_for_end()
        with open(failure_read, "rb") as reader:
            self.message = reader.read().decode(errors="replace").replace("\n", " ") or self.message
        self._write_end_record()

    def _exec_payload(self, script: str, failure_write: int, parent: int) -> None:
        """Execute the payload; never return. Write errors before that to `failure_write`."""
        exit_code, target = CANNOT_BEGIN, ""
        try:
            os.setsid()
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(exit_code)
            if self.spec.umask is not None:
                os.umask(self.spec.umask)
            target = os.fsdecode(self.spec.directory)
            os.chdir(self.spec.directory)
            flags = os.O_WRONLY | os.O_CREAT
            flags |= os.O_APPEND if self.spec.appends else os.O_TRUNC
            target = os.fsdecode(self.spec.output)
            os.dup2(os.open(self.spec.output, flags, 0o666), 1)
            if self.spec.error == self.spec.output:
                os.dup2(1, 2)
            else:
                target = os.fsdecode(self.spec.error)
                os.dup2(os.open(self.spec.error, flags, 0o666), 2)
            for signal_number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(signal_number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            target = "the script"
            path = os.fsencode(script)
            os.execve(path, [path, *self.spec.arguments], self.spec.environment)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                exit_code = NOT_FOUND
            os.write(failure_write, os.fsencode(f"{target}: {error.strerror}"))
        finally:
            os._exit(exit_code)

    def _wait_for_end(self) -> None:
        """Enforce limits and handle signals until no process of the job remains.

        A job that the supervisor ends gets SIGTERM, and SIGKILL after `kill_wait` seconds. When a
        job ends by itself, its remaining processes are killed at once.
        """
        now = time.monotonic()
        expiry = None if self.spec.limit is None else now + self.spec.limit
        signal_at: float | None = None
        if expiry is not None and self.spec.early_signal:
            signal_at = max(expiry - self.spec.early_seconds, now)
        kill_at: float | None = None
        memory_check_at = None if self.spec.memory is None else now + MEMORY_INTERVAL
        pause = KILL_INTERVAL[0]
        while True:
            self._reap()
            if self.childless:
                return
            now = time.monotonic()
            if self.wait_status is not None and kill_at is None:
                kill_at = now
            if signal_at is not None and now >= signal_at and kill_at is None:
                signal_at = None
                self._send_early_signal()
            if expiry is not None and now >= expiry and kill_at is None:
                kill_at = self._terminate("timeout", "over its time limit")
            if memory_check_at is not None and now >= memory_check_at and kill_at is None:
                in_use = _tree_memory()
                self.max_memory = max(self.max_memory, in_use)
                if self.spec.memory is not None and in_use > self.spec.memory:
                    self.imposed_state = "out_of_memory"
                    self.message = f"{-(-in_use // 2**20)} MiB in use"
                    kill_at = now
                memory_check_at = now + MEMORY_INTERVAL
            if kill_at is not None and now >= kill_at:
                _signal_tree(signal.SIGKILL)
                kill_at = now + pause
                pause = min(2 * pause, KILL_INTERVAL[1])
            deadlines = (
                [kill_at]
                if kill_at is not None
                else [t for t in (expiry, memory_check_at, signal_at) if t]
            )
            received = _wait_for_signal(min(deadlines) - time.monotonic() if deadlines else None)
            if kill_at is None and received == CANCEL_SIGNAL:
                kill_at = self._terminate("cancelled", "")
            elif kill_at is None and received in STOP_SIGNALS:
                kill_at = self._terminate(
                    "node_fail", f"its supervisor got {signal.Signals(received).name}"
                )

    def _send_early_signal(self) -> None:
        """Send the signal before the limit to the script alone, or to the tasks of steps alone.

        A script that is the only child of the main process (`child`) was begun by a shell that
        waits for it. Steps are known by a variable that the drop-in srun sets.
        """
        if self.spec.early_target == b"script":
            targets = [self.main_pid]
        elif self.spec.early_target == b"child":
            targets = _children(self.main_pid)
        else:
            targets = [pid for pid in descendants(os.getpid()) if _is_in_step(pid)]
        for pid in targets:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, self.spec.early_signal)

    def _terminate(self, state: str, message: str) -> float:
        self.imposed_state, self.message = state, message
        _signal_tree(signal.SIGTERM, signal.SIGCONT)
        return time.monotonic() + self.spec.kill_wait

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            self.cpu_seconds += usage.ru_utime + usage.ru_stime
            self.max_memory = max(self.max_memory, usage.ru_maxrss * 1024)
            if pid == self.main_pid:
                self.wait_status = status

    def _write_end_record(self) -> None:
        status = self.wait_status or 0
        signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        lines = [
            f"state={self.imposed_state or ('failed' if status else 'completed')}",
            f"time={max(time.time(), self.started)!r}",
            f"signal={signal_number}" if signal_number else f"exit_code={os.WEXITSTATUS(status)}",
            f"cpu_seconds={self.cpu_seconds:.6f}",
            f"max_memory={-(-self.max_memory // 2**20)}",
            f"reason={self.message}",
        ]
        draft = os.path.join(self.folder, "ended.draft")
        while True:
            try:
                _write_durably(self.folder, draft, "ended", "\n".join(lines) + "\n", os.rename)
                return
            except FileNotFoundError:
                return  # the folder of the cluster was removed
            except OSError:
                time.sleep(WRITE_INTERVAL)


def _wait_for_signal(seconds: float | None) -> int:
    """Return the next handled signal; 0 if none arrives in time."""
    if seconds is None:
        return signal.sigwaitinfo(HANDLED_SIGNALS).si_signo
    received = signal.sigtimedwait(HANDLED_SIGNALS, max(seconds, 0.0))
    return received.si_signo if received else 0


def supervise(folder: str) -> None:
    """Run the job of `folder`, unless it is claimed already."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Blocked signals stay pending until `_wait_for_signal`: none is lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    try:
        with open(os.path.join(folder, "spec"), "rb") as file:
            spec = TaskSpec(file.read())
    except FileNotFoundError:
        return  # withdrawn meanwhile
    started, pid = time.time(), os.getpid()
    record = f"pid={pid}\nstart={start_time(pid)}\nboot={boot_id()}\ntime={started!r}\n"
    if claim(folder, record):
        Supervisor(folder, spec, started).run()


def open_pidfd(pid: int, start: int) -> int | None:
    """Return a pidfd of the process of that pid and start time; None if it has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        if start_time(pid) == start:
            return descriptor
    except ProcessLookupError:
        pass
    os.close(descriptor)
    return None


def cancel(folder: str) -> None:
    """Signal the supervisor that claimed this folder, if it is alive."""
    with open(os.path.join(folder, "claim"), encoding="utf-8") as file:
        claim_record = dict(line.rstrip("\n").split("=", 1) for line in file)
    if claim_record["boot"] != boot_id():
        return
    descriptor = open_pidfd(int(claim_record["pid"]), int(claim_record["start"]))
    if descriptor is None:
        return
    try:
        signal.pidfd_send_signal(descriptor, CANCEL_SIGNAL)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def sweep(folder: str) -> None:
    """Kill every process with the environment of the folder's task, and its descendants.

    A process that cleared its environment and lost its parent cannot be recognised; only the
    supervisor, now dead, could have tracked it.
    """
    with open(os.path.join(folder, "spec"), "rb") as file:
        environment = TaskSpec(file.read()).environment
    names = (b"METASCHED_TAG", b"METASCHED_TASK")
    markers = {name + b"=" + environment[name] for name in names}
    deadline = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < deadline:
        pids = [
            pid
            for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
            if markers <= _environment_of(pid)
        ]
        if not pids:
            return
        for pid in pids:
            for descendant in [*descendants(pid), pid]:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(descendant, signal.SIGKILL)
        time.sleep(0.01)


def _is_in_step(pid: int) -> bool:
    return any(entry.startswith(b"SLURM_STEP_ID=") for entry in _environment_of(pid))


def _environment_of(pid: int) -> set[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(file.read().split(b"\0"))
    except OSError:
        return set()  # it has ended, or belongs to another account


def _handle_request(request: bytes) -> str:
    """Serve a request; return the pid and start time of a new supervisor, or "0 0"."""
    verb, _, folder = os.fsdecode(request).partition(" /")
    if verb in ("cancel", "sweep"):
        try:
            (cancel if verb == "cancel" else sweep)("/" + folder)
        except (OSError, ValueError, KeyError) as error:
            print(f"{os.fsdecode(request)}: {error}", file=sys.stderr, flush=True)
        return "0 0"
    pid = os.fork()
    if pid == 0:
        _run_supervisor(os.fsdecode(request))
    try:
        return f"{pid} {start_time(pid)}"
    except ProcessLookupError:
        return f"{pid} 0"


def run_fork_server() -> None:
    """Serve requests on standard input (see the module's docstring) until it is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are reaped by the kernel
    gc.disable()
    gc.freeze()
    partial = b""
    while True:
        block = os.read(0, 65536)
        if not block:
            return
        *requests, partial = (partial + block).split(b"\0")
        for request in requests:
            try:
                os.write(1, f"{_handle_request(request)}\n".encode())
            except BrokenPipeError:
                return  # the adapter has died; the next adapter finds supervisors by their claims


def _run_supervisor(folder: str) -> None:
    """Run the supervisor of `folder` and exit; write unexpected errors to standard error."""
    exit_code = 1
    try:
        null_fd = os.open(os.devnull, os.O_RDWR)
        os.dup2(null_fd, 0)
        os.dup2(null_fd, 1)
        os.chdir("/")
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        supervise(folder)
        exit_code = 0
    except BaseException as error:
        os.write(2, f"supervisor of {folder}: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(exit_code)


if __name__ == "__main__":
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    run_fork_server()
    sys.exit(0)
