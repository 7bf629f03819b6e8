"""Claims: files that decide between the start of an attempt's payload and its revocation.

Each task of a dispatch has a claim file, in a folder on a filesystem that the daemon and the
cluster's nodes share. The payload first creates the file exclusively, or exits. The daemon revokes
an attempt by creating the file before the payload does. So an attempt that may or may not have
reached its manager is either shown to have started or can never start. When the payload ends, its
exit code and time are appended to the claim: evidence where the manager has forgotten the task.

    fence_dir/             mode 0711, the daemon's: no other account creates or lists anything
      jobs-17/             mode 0711, the daemon's: the dispatches of jobs 17000 to 17999
        claims-<secret>/   mode 1733, the daemon's: one dispatch
          task.<index>     of the job's owner (started) or the daemon (revoked)

Only the script of the dispatch holds the secret. No message of this module contains it.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote

from msgspec import structs

from metasched.adapters.base import Submission
from metasched.adapters.interpreter import exec_lines
from metasched.model.adapter_errors import Refused
from metasched.model.job_token import key_of
from metasched.model.listing import ClaimEnd, TaskClaim
from metasched.model.tags import is_claim_folder
from metasched.paths import JOB_TOKEN_VARIABLE

EXIT_CLAIM_TAKEN = 75  # exit code of a payload that must not start: EX_TEMPFAIL of sysexits.h
CLAIM_RETENTION = 365 * 86400.0  # seconds; no manager starts an older job
MAX_CLAIM_SIZE = 4096  # bytes that are read of a claim
_JOBS_PER_FOLDER = 1000
_CLAIM_STEM = "task"
_TOKEN_STEM = "token"
# Runs the function _ms_run, which execs the payload, in the background with the shell's own input.
# `wait` returns early when a signal arrives; only a child that has been waited for is gone.
_RECORD_END = (
    "_ms_env=--default-signal=INT,QUIT",
    '/usr/bin/env "$_ms_env" /bin/true 2>/dev/null || { _ms_env=; _ms_run "$@"; }',
    "_ms_forward() {",
    '  [ -n "${SLURM_TASK_PID:-}" ] || return 0',
    '  if [ -n "$_ms_pid" ]; then kill -"$1" "$_ms_pid" 2>/dev/null',
    '  else _ms_early="$_ms_early $1"; fi',
    "}",
    "{",
    "for _ms_word in 1 2 3 6 10 12 14 15 18 20 21 22 23 24 25 26 27 28 29 30; do",
    '  trap "_ms_forward $_ms_word" "$_ms_word"',
    "done",
    "exec 7<&0",
    '_ms_run "$@" <&7 7<&- &',
    "_ms_pid=$!",
    "exec 7<&-",
    'for _ms_word in $_ms_early; do _ms_forward "$_ms_word"; done',
    'wait "$_ms_pid"; _ms_code=$?',
    'while kill -0 "$_ms_pid" 2>/dev/null; do wait "$_ms_pid"; _ms_code=$?; done',
    'wait "$_ms_pid" 2>/dev/null; _ms_word=$?',  # bash remembers, dash says 127
    '[ -z "${_ms_token:-}" ] || /bin/rm -rf "${_ms_token%/*}"',
    '[ "$_ms_word" = 127 ] || _ms_code=$_ms_word',
    'printf "ended %s %s\\n" "$_ms_code" "$(/bin/date +%s)" >>"$_ms_claim"',
    'exit "$_ms_code"',
    "}",
)
_END = re.compile(r"\nstarted (\d{1,11})\nended (\d{1,3}) (\d{1,11})\n\Z")
_CLAIMED, _REVOKED = "claimed", "revoked"
_FENCE_MODE, _DISPATCH_MODE = 0o711, 0o1733
_GROUP = re.compile(r"jobs-\d+")
_MAPPED_ACCOUNTS = (
    "root_squash and mapped uids cannot be used: "
    "let a daemon with an account of its own serve that filesystem, or name another fence_dir"
)
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FenceError(Exception):
    """A claim can be neither created nor judged. `fix` is what an admin can do about it."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason, self.fix = reason, fix


def new_claim_folder(fence_dir: str, job_id: int) -> str:
    """Return an unguessable path for the claims of a dispatch; nothing is created."""
    group = f"jobs-{job_id // _JOBS_PER_FOLDER}"
    return str(Path(fence_dir, group, f"claims-{secrets.token_hex(16)}"))


def apply_fence(submission: Submission) -> Submission:
    """Return the submission without its fence; if it had one, the script claims the task first.

    The fence is a path from `new_claim_folder`. Raises Refused, retryable, if no claim can be
    created in it.
    """
    if not submission.fence:
        return submission
    try:
        _create_claim_folder(Path(submission.fence))
    except FenceError as error:
        raise Refused(f"no claim can be created: {error}", retryable=True) from None
    payload = submission.payload
    claim_path = str(Path(submission.fence, _CLAIM_STEM))
    token_lines = _token_lines(submission) if submission.makes_token else ()
    restartable = submission.job.requeue is not False
    script = claiming_script(payload.script, claim_path, restartable, token_lines)
    return structs.replace(
        submission, payload=replace(payload, script=script), fence="", runs_as_child=True
    )


def claiming_script(
    script: str, claim_path: str, restartable: bool, token_lines: Sequence[str] = ()
) -> str:
    """Return a shell script that runs `script` only if it can create the file `claim_path`.TASK.

    Then it first runs `token_lines`, which may name a file with a token in `_ms_token`.

    With `restartable` the same attempt may start several times: the user allows its manager to
    requeue the job. Shell builtins create the claim: the job's PATH does not matter, and no
    argument of a process holds the path. `unset` keeps it out of the environment.

    The script runs as a child, and its end is appended to the claim. Slurm may signal the batch
    process alone, so that signals are forwarded there; other managers signal the process group.
    A background process would ignore SIGINT and SIGQUIT; where env(1) cannot restore them
    (coreutils before 8.31) the script replaces the shell, and no end is recorded.
    """
    claim = f"printf '{_CLAIMED}\\nstarted %s\\n' \"$(/bin/date +%s)\""
    already_started = (
        '[ -O "$_ms_claim" ] && read -r _ms_word 2>/dev/null <"$_ms_claim" && '
        f'[ "$_ms_word" = {_CLAIMED} ] && {claim} >>"$_ms_claim"'
        if restartable
        else "false"
    )
    create = f'(umask 022; set -C; {claim} >"$_ms_claim") 2>/dev/null'
    lines = [
        "#!/bin/sh",
        "unset _ms_claim _ms_word _ms_script _ms_env _ms_pid _ms_code _ms_early _ms_token",
        f'_ms_claim={quote(claim_path)}".${{METASCHED_TASK:-0}}"',
        f"if ! {create} && ! {{ {already_started}; }}; then",
        '  echo "metasched: this attempt must not start: its claim is taken" >&2',
        f"  exit {EXIT_CLAIM_TAKEN}",
        "fi",
        *token_lines,
        "_ms_run() {",
        *exec_lines(script, ["$_ms_env"]),
        "}",
        *_RECORD_END,
        "",
    ]
    return "\n".join(lines)


def _token_lines(submission: Submission) -> list[str]:
    """Return lines of sh in which a task makes a token and registers it; see `JobToken`.

    The token is in a file of its own, on the node. Its digest is the name of a folder beside the
    claim. Another account cannot make a folder that belongs to the owner, nor link or move such a
    folder there, if its mode lets only the owner write. The token is in no argument or variable.
    """
    parts = (submission.tag, "${METASCHED_TASK:-0}", key_of(submission.fence))
    return [
        "_ms_token=$(",
        "  umask 077",
        '  _ms_word=$(/usr/bin/mktemp -d "${TMPDIR:-/tmp}/metasched.XXXXXX") || exit',
        "  _ms_early=$(/usr/bin/od -An -vtx1 -N32 /dev/urandom | /usr/bin/tr -d ' \n')",
        '  [ "${#_ms_early}" = 64 ] || exit',
        f'  printf %s "{".".join(parts)}.$_ms_early" >"$_ms_word/token" || exit',
        '  _ms_early=$(/usr/bin/sha256sum <"$_ms_word/token")',
        '  cd "${_ms_claim%/*}" &&',
        f'  /bin/mkdir "{_TOKEN_STEM}.${{METASCHED_TASK:-0}}.${{_ms_early%% *}}" &&',
        '  printf %s "$_ms_word/token" || /bin/rm -rf "$_ms_word"',
        ") 2>/dev/null",
        'if [ -n "$_ms_token" ]; then',
        f"  {JOB_TOKEN_VARIABLE}=$_ms_token; export {JOB_TOKEN_VARIABLE}",
        "fi",
    ]


def has_registered(claim: TaskClaim, digest: str) -> bool:
    """Return whether the payload of a task has registered the digest of a token.

    Raises FenceError if that is unknown.
    """
    owner = _owner_uid(claim)
    with _claim_errors(fence_dir_of(claim)), _claim_folder(claim) as folder:
        name = f"{_TOKEN_STEM}.{claim.task}.{digest}"
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
    is_private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    return is_private and status.st_uid == owner


def revoke_claim(claim: TaskClaim) -> bool:
    """Take a claim for good before its payload does; return False if the payload has started.

    Idempotent. Raises FenceError if the result is unknown. The claim of a foreign account proves
    nothing: it is neither a start nor a revocation. A missing folder may mean that the shared
    filesystem is not mounted, so it is created only for a dispatch that was never confirmed.
    """
    name, owner = _claim_name(claim), _owner_uid(claim)
    with _claim_errors(fence_dir_of(claim)), _claim_folder(claim) as folder:
        draft = f".{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(draft, flags, 0o644, dir_fd=folder)
        try:
            with open(descriptor, "w") as file:
                file.write(f"{_REVOKED}\n")
                file.flush()
                os.fsync(file.fileno())
            # creates the file and its content in one step
            os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            return _is_revoked(folder, name, claim.tag, owner)
        finally:
            os.unlink(draft, dir_fd=folder)
        os.fsync(folder)
        return True


def read_end(claim: TaskClaim) -> ClaimEnd | None:
    """Return the end that the payload recorded in its claim; None without a valid record.

    Raises FenceError if the claim does not answer.
    """
    name, owner = _claim_name(claim), _owner_uid(claim)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with _claim_errors(fence_dir_of(claim)), _claim_folder(claim) as folder:
        try:
            descriptor = os.open(name, flags, dir_fd=folder)
        except (FileNotFoundError, PermissionError):
            return None
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if status.st_uid != owner or not stat.S_ISREG(status.st_mode):
                return None
            file.seek(max(status.st_size - MAX_CLAIM_SIZE, 0))
            record = _END.search(file.read(MAX_CLAIM_SIZE).decode("ascii", "replace"))
    if record is None:
        return None
    started, exit_code, ended = map(int, record.groups())
    return ClaimEnd(float(started), float(max(ended, started)), exit_code)


def check_fence(fence_dir: str) -> None:
    """Raise FenceError if no folder for claims could be created; leave `fence_dir` as it was."""
    with _claim_errors(Path(fence_dir)):
        descriptor = _open_fence_dir(Path(fence_dir))
        try:
            probe = f"probe-{secrets.token_hex(8)}"
            os.mkdir(probe, 0o700, dir_fd=descriptor)
            try:
                _require_owner(os.stat(probe, dir_fd=descriptor, follow_symlinks=False), fence_dir)
            finally:
                os.rmdir(probe, dir_fd=descriptor)
        finally:
            os.close(descriptor)


def _claim_name(claim: TaskClaim) -> str:
    return f"{_CLAIM_STEM}.{claim.task}"


def _owner_uid(claim: TaskClaim) -> int:
    """Return the uid of the job's owner: in personal mode the daemon's own."""
    if not claim.user:
        return os.geteuid()
    try:
        return pwd.getpwnam(claim.user).pw_uid
    except KeyError:
        raise FenceError(f"claim of {claim.tag}: there is no account {claim.user}") from None


def _is_revoked(folder: int, name: str, tag: str, owner: int) -> bool:
    """Return whether an existing claim is a revocation, by its account and content."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(name, flags, dir_fd=folder), "rb") as file:
            return file.read(MAX_CLAIM_SIZE).startswith(_REVOKED.encode())
    if status.st_uid != owner:
        message = f"a claim of {tag} belongs to uid {status.st_uid}, not to the job's owner {owner}"
        raise FenceError(message, "look for root_squash or different uids on the nodes")
    return False


def fence_dir_of(claim: TaskClaim) -> Path:
    """Return the `fence_dir` of a claim; nothing is opened."""
    return Path(claim.fence).parent.parent


@contextmanager
def _claim_folder(claim: TaskClaim) -> Iterator[int]:
    """Open the folder of a claim; it and its parents must be the daemon's."""
    fence_dir, path = fence_dir_of(claim), Path(claim.fence)
    if not is_claim_folder(claim.fence):  # no payload would look for a claim there
        raise FenceError(f"{claim.fence} is not the folder of a dispatch's claims")
    if not claim.accepted:
        _create_claim_folder(path)
    descriptor = os.open(fence_dir, _OPEN_FOLDER)
    try:
        for name in (path.parent.name, path.name):
            child = os.open(name, _OPEN_FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = child
            _require_owner(os.fstat(descriptor), f"the folder of claims in {fence_dir}")
        yield descriptor
    finally:
        os.close(descriptor)


def _create_claim_folder(path: Path) -> None:
    """Create the folder of a dispatch, durably. Raises FenceError."""
    group, fence_dir = path.parent.name, path.parent.parent
    with _claim_errors(fence_dir):
        fence_dir_fd = _open_fence_dir(fence_dir)
        try:
            if stat.S_IMODE(os.fstat(fence_dir_fd).st_mode) != _FENCE_MODE:
                os.fchmod(fence_dir_fd, _FENCE_MODE)  # the site may have given it another
            _set_foreign_entry_aside(fence_dir_fd, group)
            if _make_folder(fence_dir_fd, group, _FENCE_MODE, fence_dir):
                _delete_expired_groups(fence_dir_fd)
            parent = os.open(group, _OPEN_FOLDER, dir_fd=fence_dir_fd)
        finally:
            os.close(fence_dir_fd)
        try:
            _make_folder(parent, path.name, _DISPATCH_MODE, fence_dir)
        finally:
            os.close(parent)


def _open_fence_dir(fence_dir: Path) -> int:
    """Open `fence_dir`, which must be the daemon's."""
    try:
        descriptor = os.open(fence_dir, _OPEN_FOLDER)
    except FileNotFoundError:
        fix = f"`install -d -m 711 -o {_account_name(os.geteuid())} {fence_dir}`"
        raise FenceError(f"no folder {fence_dir}", fix) from None
    try:
        _require_owner(os.fstat(descriptor), str(fence_dir))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make_folder(parent: int, name: str, mode: int, fence_dir: Path) -> bool:
    """Create a folder with this mode unless it exists; return whether it is new.

    An existing folder of another mode is left by a process that died before it set the mode.
    """
    is_new = True
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        is_new = False
    descriptor = os.open(name, _OPEN_FOLDER, dir_fd=parent)
    try:
        status = os.fstat(descriptor)
        _require_owner(status, f"a {'new' if is_new else 'foreign'} folder in {fence_dir}")
        if stat.S_IMODE(status.st_mode) != mode:
            os.fchmod(descriptor, mode)
            os.fsync(parent)
    finally:
        os.close(descriptor)
    return is_new


def _set_foreign_entry_aside(fence: int, group: str) -> None:
    """Rename what another account put in a group's place while anybody could write in the fence."""
    with suppress(FileNotFoundError):
        status = os.stat(group, dir_fd=fence, follow_symlinks=False)
        if status.st_uid != os.geteuid():
            aside = f"foreign-{secrets.token_hex(8)}"
            os.rename(group, aside, src_dir_fd=fence, dst_dir_fd=fence)


def _require_owner(status: os.stat_result, path: str) -> None:
    """Raise FenceError unless the daemon's account owns the folder."""
    if status.st_uid != os.geteuid():
        owner, daemon = _account_name(status.st_uid), _account_name(os.geteuid())
        fix = f"`chown {daemon}` it; {_MAPPED_ACCOUNTS}"
        raise FenceError(f"{path} belongs to {owner}, not to the daemon's account {daemon}", fix)


def _account_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _delete_expired_groups(fence_dir_fd: int) -> None:
    """Delete groups of claims that have expired. A new group, every thousand jobs, leads here."""
    oldest = time.time() - CLAIM_RETENTION
    for name in os.listdir(fence_dir_fd):
        if not _GROUP.fullmatch(name):
            continue
        with suppress(OSError):
            status = os.stat(name, dir_fd=fence_dir_fd, follow_symlinks=False)
            if status.st_uid == os.geteuid() and status.st_mtime < oldest:
                shutil.rmtree(name, ignore_errors=True, dir_fd=fence_dir_fd)


@contextmanager
def _claim_errors(fence_dir: Path) -> Iterator[None]:
    """Raise a FenceError without any secret path in place of an OSError."""
    try:
        yield
    except OSError as error:
        # a local filesystem denies root nothing
        is_squashed = os.geteuid() == 0 and error.errno in (errno.EACCES, errno.EPERM)
        fix = _MAPPED_ACCOUNTS if is_squashed else ""
        raise FenceError(f"the folder of claims {fence_dir}: {error.strerror}", fix) from None
