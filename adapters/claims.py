"""Claims: files that decide between the start of an attempt's payload and its revocation.

Each task of a dispatch has a claim file, in a folder on a filesystem that the daemon and the
cluster's nodes share. The payload first creates the file exclusively, or exits. The daemon revokes
an attempt by creating the file before the payload does. So an attempt that may or may not have
reached its manager is either shown to have started or can never start.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from shlex import quote

from msgspec import structs

from metasched.adapters.base import Submission
from metasched.adapters.errors import Refused
from metasched.adapters.interpreter import exec_lines
from metasched.model.listing import TaskClaim

EXIT_CLAIM_TAKEN = 75  # exit code of a payload that must not start: EX_TEMPFAIL of sysexits.h
CLAIM_RETENTION = 365 * 86400.0  # seconds; no manager starts an older job
_JOBS_PER_FOLDER = 1000
_STARTED, _REVOKED = "began", "revoked"


def apply_fence(submission: Submission) -> Submission:
    """Return the submission without its fence; if it had one, the script claims the task first.

    Raises Refused, retryable, if no claim can be created in the fence.
    """
    if not submission.fence:
        return submission
    folder = _claim_folder(submission.fence, submission.tag)
    try:
        _create_folder(folder)
    except OSError as error:
        reason = f"no claim can be created in {folder}: {error.strerror}"
        raise Refused(reason, retryable=True) from None
    payload = submission.payload
    claim_path = str(folder / submission.tag)
    script = claiming_script(payload.script, claim_path, submission.job.requeue)
    return structs.replace(submission, payload=replace(payload, script=script), fence="")


def claiming_script(script: str, claim_path: str, restartable: bool) -> str:
    """Return a shell script that runs `script` only if it can create the file `claim_path`.TASK.

    With `restartable` the same attempt may start several times: the user allows its manager to
    requeue the job. Shell builtins create the claim, so the job's PATH does not matter.
    """
    already_started = (
        f'read -r _ms_word 2>/dev/null <"$_ms_claim" && [ "$_ms_word" = {_STARTED} ]'
        if restartable
        else "false"
    )
    create = f'(set -C; echo {_STARTED} >"$_ms_claim") 2>/dev/null'
    lines = [
        "#!/bin/sh",
        f'_ms_claim={quote(claim_path)}".${{METASCHED_TASK:-0}}"',
        f"if ! {create} && ! {{ {already_started}; }}; then",
        '  echo "metasched: this attempt must not start: its claim is taken, $_ms_claim" >&2',
        f"  exit {EXIT_CLAIM_TAKEN}",
        "fi",
        *exec_lines(script),
        "",
    ]
    return "\n".join(lines)


def revoke_claim(claim: TaskClaim) -> bool:
    """Take a claim for good before its payload does; return False if the payload has started.

    Idempotent. Raises OSError if the result is unknown. No folder is created here: a missing
    folder may mean that the shared filesystem is not mounted.
    """
    folder = _claim_folder(claim.fence, claim.tag)
    path = folder / f"{claim.tag}.{claim.task}"
    descriptor, draft = tempfile.mkstemp(dir=folder, prefix=".")
    try:
        with open(descriptor, "w") as file:
            file.write(f"{_REVOKED}\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)  # creates the file and its content in one step
    except FileExistsError:
        try:
            return path.read_text().startswith(_REVOKED)
        except PermissionError:
            return False  # metasched's own file would be readable
    finally:
        os.unlink(draft)
    _fsync_folder(folder)
    return True


def _claim_folder(fence: str, tag: str) -> Path:
    return Path(fence, str(int(tag.split("-")[2]) // _JOBS_PER_FOLDER))


def _create_folder(folder: Path) -> None:
    """Create a folder for claims with the mode of the fence, unless it exists.

    A new folder, every thousand jobs, is also the occasion to delete expired folders. The mode is
    set last: if it differs, the process that created the folder died.
    """
    mode = folder.parent.stat().st_mode & 0o7777
    try:
        folder.mkdir()
    except FileExistsError:
        if folder.stat().st_mode & 0o7777 == mode:
            return
    _fsync_folder(folder.parent)
    folder.chmod(mode)
    for expired in folder.parent.iterdir():
        if expired.name.isdecimal() and expired.stat().st_mtime < time.time() - CLAIM_RETENTION:
            shutil.rmtree(expired, ignore_errors=True)


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
