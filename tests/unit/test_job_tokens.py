"""Tokens of jobs: made by the script, registered beside its claim."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from metasched.adapters.base import Submission
from metasched.adapters.claims import apply_fence, has_registered, new_claim_folder
from metasched.api import job_tokens
from metasched.model.job import Job, Payload
from metasched.model.job_token import JobToken, is_job_token, key_of, parse_job_token
from metasched.model.listing import TaskClaim
from metasched.model.tags import tag_of

TAG = tag_of("cafe", 17, 1)
SHOW = '#!/bin/sh\nprintf "%s\\n" "$METASCHED_JOB_TOKEN_FILE"; cat "$METASCHED_JOB_TOKEN_FILE"\n'


@pytest.fixture
def fence(tmp_path: Path) -> str:
    return new_claim_folder(str(tmp_path), 17)


def run(fence: str, tmp: Path, script: str = SHOW, shell: str = "/bin/sh", **other: str) -> str:
    """Run a task that makes a token; return its output and errors."""
    submission = Submission(
        tag=TAG,
        job=Job(id=17, submitted=0.0, estimated=1.0, requeue=True),
        payload=Payload(script=script),
        fence=fence,
        makes_token=True,
    )
    sent = apply_fence(submission)
    environment = {"METASCHED_TASK": "3", "TMPDIR": str(tmp), "PATH": "/usr/bin:/bin", **other}
    done = subprocess.run(
        [shell, "-c", sent.payload.script],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout


def token_of(output: str) -> tuple[Path, JobToken]:
    path, text = output.split("\n")
    token = parse_job_token(text)
    assert token is not None
    return Path(path), token


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_a_task_makes_a_token_and_registers_its_digest(
    fence: str, tmp_path: Path, shell: str
) -> None:
    path, token = token_of(run(fence, tmp_path, shell=shell))
    assert (token.tag, token.task, token.key) == (TAG, 3, key_of(fence))
    assert path.is_relative_to(tmp_path)
    assert not path.parent.exists()  # removed with the end of the task
    claim = TaskClaim(fence, TAG, 3)
    assert has_registered(claim, token.digest)
    assert not has_registered(claim, "0" * 64)
    assert not has_registered(TaskClaim(fence, TAG, 4), token.digest)


def test_only_the_owner_can_read_the_token(fence: str, tmp_path: Path) -> None:
    modes = run(
        fence, tmp_path, '#!/bin/sh\nstat -c %a "$METASCHED_JOB_TOKEN_FILE" "${TMPDIR}"/*.*\n'
    )
    assert modes.split() == ["600", "700"]
    [folder] = Path(fence).glob("token.*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_token_is_in_no_argument_and_no_variable(fence: str, tmp_path: Path) -> None:
    script = (
        '#!/bin/sh\nenv; tr "\\0" "\\n" </proc/$PPID/cmdline; cat "$METASCHED_JOB_TOKEN_FILE"\n'
    )
    shown, token = run(fence, tmp_path, script).rsplit("\n", 1)
    assert parse_job_token(token) is not None
    assert token.rpartition(".")[2] not in shown


def test_a_restarted_task_has_a_token_of_its_own(fence: str, tmp_path: Path) -> None:
    tokens = [token_of(run(fence, tmp_path))[1] for _ in range(2)]
    assert tokens[0].digest != tokens[1].digest
    assert all(has_registered(TaskClaim(fence, TAG, 3), token.digest) for token in tokens)


def test_no_registration_counts_that_others_could_have_made(fence: str, tmp_path: Path) -> None:
    """Others who know the folder may link files of the owner, or move open folders there."""
    run(fence, tmp_path)
    claim = TaskClaim(fence, TAG, 3)
    names = [f"token.3.{digit * 64}" for digit in "abc"]
    (Path(fence) / names[0]).write_text("")
    (Path(fence) / names[1]).mkdir(mode=0o700)
    os.chmod(Path(fence) / names[1], 0o770)
    (Path(fence) / names[2]).symlink_to(tmp_path)
    assert not any(has_registered(claim, name.rpartition(".")[2]) for name in names)
    (Path(fence) / names[1]).chmod(0o700)
    assert has_registered(claim, "b" * 64)


@pytest.mark.parametrize(
    "text",
    [
        "ms-",
        f"{TAG}.3.{'a' * 32}.{'b' * 63}",
        f"{TAG}.03.{'a' * 32}.{'b' * 64}",
        f"{TAG}.3.{'A' * 32}.{'b' * 64}",
        f"{TAG}.{'9' * 30}.{'a' * 32}.{'b' * 64}",
        f"{TAG}.3.{'a' * 32}.{'b' * 64}\n",
        f"ms-{'x' * 200}.3.{'a' * 32}.{'b' * 64}",
    ],
)
def test_other_texts_are_no_tokens(text: str) -> None:
    assert is_job_token(text)
    assert parse_job_token(text) is None


def test_a_token_does_not_show_its_key() -> None:
    token = parse_job_token(f"{TAG}.3.{'a' * 32}.{'b' * 64}")
    assert "a" * 32 not in repr(token)
    assert key_of("/shared/claims") == ""


def test_a_filesystem_that_hangs_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    is_back = threading.Event()

    def look(claim: TaskClaim, digest: str) -> bool:
        return not claim.fence.startswith("/dead") or is_back.wait()

    monkeypatch.setattr(job_tokens, "has_registered", look)
    dead = TaskClaim(new_claim_folder("/dead", 17), TAG, 3)
    live = TaskClaim(new_claim_folder("/live", 17), TAG, 3)

    async def ask() -> None:
        threads = job_tokens.ClaimThreads()
        asked = [asyncio.create_task(threads.has_registered(dead, "")) for _ in range(20)]
        async with asyncio.timeout(30):
            assert await threads.has_registered(live, "")
        asked[0].cancel()
        is_back.set()
        async with asyncio.timeout(30):
            assert await asyncio.gather(*asked[1:]) == [True] * 19

    asyncio.run(ask())


def test_a_filesystem_that_hangs_does_not_keep_the_daemon_from_ending() -> None:
    program = """
        import asyncio, contextlib, threading
        from metasched.api import job_tokens
        from metasched.model.listing import TaskClaim

        job_tokens.has_registered = lambda claim, digest: threading.Event().wait()

        async def ask():
            async with asyncio.timeout(0.1):
                await job_tokens.ClaimThreads().has_registered(TaskClaim("/dead", "", 0), "")

        with contextlib.suppress(TimeoutError):
            asyncio.run(ask())
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
