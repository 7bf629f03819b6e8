"""Claims: what an attempt's payload takes before it begins, or its scheduler in its stead.

A claim is a file of its own for each task of a sending, in a folder on a filesystem that the
daemon and the cluster's nodes share. The payload's first act is to create it, exclusively, or to
exit; the daemon revokes it by creating it first. Whoever comes first wins, so that an attempt of
which nobody knows whether it ever reached its manager either is shown to have begun or never can.
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

EXIT_CLAIM_TAKEN = 75  # exit code of a payload that may not begin: EX_TEMPFAIL of sysexits.h
CLAIM_RETENTION = (
    365 * 86400.0
)  # seconds for which claims are kept; no manager brings back what is older
_JOBS_PER_FOLDER = 1000  # jobs
_STARTED, _REVOKED = "began", "revoked"


def apply_fence(submission: Submission) -> Submission:
    """The order without a fence, its script wrapped in the claim if there was one.

    Refused, for now, if no claim could be made there.
    """
    if not submission.fence:
        return submission
    folder = _claim_folder(submission.fence, submission.tag)
    try:
        _create_folder(folder)
    except OSError as error:
        raise Refused(
            f"no claim can be made in {folder}: {error.strerror}", retryable=True
        ) from None
    script = claiming_script(
        submission.payload.script, str(folder / submission.tag), submission.job.requeue
    )
    return structs.replace(submission, payload=replace(submission.payload, script=script), fence="")


def claiming_script(script: str, claim_path: str, restartable: bool) -> str:
    """The script as a shell's that begins it only if it makes the file `claim`.TASK.

    `again`: the same attempt may begin several times, since the user lets its manager rerun it.
    The claim is made by what the shell has built in, whatever PATH the job is given.
    """
    already_started = (
        f'read -r _ms_word 2>/dev/null <"$_ms_claim" && [ "$_ms_word" = {_STARTED} ]'
        if restartable
        else "false"
    )
    lines = [
        "#!/bin/sh",
        f'_ms_claim={quote(claim_path)}".${{METASCHED_TASK:-0}}"',
        f'if ! (set -C; echo {_STARTED} >"$_ms_claim") 2>/dev/null && ! {{ {already_started}; }}; then',
        '  echo "metasched: this attempt may not begin: its claim is taken, $_ms_claim" >&2',
        f"  exit {EXIT_CLAIM_TAKEN}",
        "fi",
        *exec_lines(script),
        "",
    ]
    return "\n".join(lines)


def revoke_claim(claim: TaskClaim) -> bool:
    """Take a claim in its payload's stead, for ever: True. False: the payload has begun.

    Idempotent. OSError: not known, and perhaps done. No folder is made here: that it is missing may
    mean that the shared filesystem is not mounted.
    """
    folder = _claim_folder(claim.fence, claim.tag)
    path = folder / f"{claim.tag}.{claim.task}"
    descriptor, draft = tempfile.mkstemp(dir=folder, prefix=".")
    try:
        with open(descriptor, "w") as file:
            file.write(f"{_REVOKED}\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)  # at once with what it says
    except FileExistsError:
        try:
            return path.read_text().startswith(_REVOKED)
        except PermissionError:
            return False  # ours could be read
    finally:
        os.unlink(draft)
    _fsync_folder(folder)
    return True


def _claim_folder(fence: str, tag: str) -> Path:
    return Path(fence, str(int(tag.split("-")[2]) // _JOBS_PER_FOLDER))


def _create_folder(folder: Path) -> None:
    """Make a folder for claims, with the mode of the fence, unless it is there.

    A new one, every thousand jobs, is also the time to drop those of long ago. The mode is what is
    set last: a folder without it is one whose maker died.
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
