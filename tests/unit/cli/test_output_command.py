"""The command `output`: bytes of the file, missing files, following."""

from __future__ import annotations

import os
from pathlib import Path

from tests.unit.cli.fake_daemon import FakeDaemon, Run, answer_paths, row, started


def test_output_prints_the_bytes_of_the_file(daemon: FakeDaemon, home: Path) -> None:
    content = bytes(range(256)) * 1000
    (home / "out").write_bytes(content)
    (home / "err").write_bytes(b"oops")
    answer_paths(daemon, home / "out")
    assert started("output", "17").communicate() == (content, b"")
    assert started("output", "17", "--error").communicate() == (content, b"")
    answer_paths(daemon, home / "out", home / "err")
    assert started("output", "17", "--error").communicate() == (b"oops", b"")


def test_missing_output(daemon: FakeDaemon, run: Run, home: Path) -> None:
    answer_paths(daemon, home / "out")
    daemon.answer("/jobs", [row(state="pending")])
    done = run("output", "17")
    assert done.code == 5
    assert "job 17 (pending)" in done.err
    assert done.err.endswith("wait for it with --follow\n")
    answer_paths(daemon, home)
    done = run("output", "17")
    assert (done.code, done.err.count("\n")) == (1, 1)


def test_only_regular_files_are_opened(daemon: FakeDaemon, run: Run, home: Path) -> None:
    """To open a FIFO waits for a writer; the owner of a job may make one for an operator."""
    os.mkfifo(home / "fifo")
    (home / "link").symlink_to(home / "fifo")
    daemon.answer("/jobs", [row(state="running")])
    for path in (home / "fifo", home / "link", Path("/dev/zero"), home):
        answer_paths(daemon, path)
        for options in ((), ("--follow",)):
            done = run("output", "17", *options)
            assert done.code == 1
            assert done.err == (
                f"metasched: error: not a regular file, {path}; give the job a file by --output\n"
            )
    answer_paths(daemon, Path(os.devnull))
    assert run("output", "17").code == 0


def test_output_follows_until_the_job_has_ended(daemon: FakeDaemon, home: Path) -> None:
    answer_paths(daemon, home / "out")
    daemon.answer("/jobs", [row(state="pending")])
    process = started("output", "17", "--follow")
    assert process.stdout is not None
    (home / "out").write_text("one\n")
    assert process.stdout.readline() == b"one\n"
    with (home / "out").open("a") as file:
        file.write("two\n")
    assert process.stdout.readline() == b"two\n"
    (home / "out").write_text("new\n")  # restarted: shorter than the part already read
    assert process.stdout.readline() == b"new\n"
    with (home / "out").open("a") as file:
        file.write("last")
    daemon.answer("/jobs", [row(state="failed", exit_code=1)])
    assert process.communicate(timeout=30) == (b"last", b"")
    assert process.returncode == 0


def test_following_a_job_that_never_wrote(daemon: FakeDaemon, run: Run, home: Path) -> None:
    answer_paths(daemon, home / "out")
    daemon.answer("/jobs", [row(state="cancelled")])
    done = run("output", "17", "--follow")
    assert done.code == 5
    assert "no output, job 17 has ended (cancelled), " in done.err
    assert done.err.endswith("see `metasched explain 17`\n")
    assert run("output", "17").err == done.err
