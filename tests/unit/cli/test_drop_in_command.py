"""The command `drop-in`: the folder of the drop-in commands, and when it is refused."""

from __future__ import annotations

import os
import re

import pytest

from metasched.client.native_ids import first_id_problem
from tests.unit.cli.fake_daemon import FakeDaemon, Run, row

FIRST_ID = 100_000_001


def prepare(daemon: FakeDaemon, first_id: int, native_id: int | None, *jobs: int) -> None:
    daemon.answer("/health", {"user": "ada", "first_id": first_id})
    daemon.answer("/clusters", [{"cluster": "alpha", "max_native_id": native_id}])
    daemon.answer("/jobs", [row(job) for job in jobs])


def test_the_folder_has_the_commands(daemon: FakeDaemon, run: Run) -> None:
    prepare(daemon, FIRST_ID, 67043328, FIRST_ID)
    done = run("drop-in", "slurm")
    assert (done.code, done.err) == (0, "")
    assert os.access(os.path.join(done.out.rstrip("\n"), "squeue"), os.X_OK)
    [query] = [query for _, path, query, _ in daemon.requests if path == "/jobs"]
    assert (query["user"], query["limit"]) == (["ada"], ["1"])
    prepare(daemon, FIRST_ID, None)  # no open job; a cluster that has never answered
    assert run("drop-in", "slurm").code == 0


@pytest.mark.parametrize(
    ("first_id", "native_id", "jobs", "message"),
    [
        (1, 7, (), "the daemon has no first_id, .*; set first_id = 100000001 in"),
        (1, 2**32 - 1, (), "the daemon has no first_id, .*; set first_id = 4294967296 in"),
        (50, 50, (), "cluster alpha has ids up to 50, first_id is 50; set first_id = 100000001"),
        (
            FIRST_ID,
            2**32 - 1,
            (),
            "up to 4294967295, first_id is 100000001; set first_id = 4294967296",
        ),
        (FIRST_ID, 7, (FIRST_ID - 1,), "your open job 100000000 is below first_id, 100000001; "),
    ],
)
def test_ids_that_could_be_those_of_other_jobs(
    daemon: FakeDaemon,
    run: Run,
    first_id: int,
    native_id: int,
    jobs: tuple[int, ...],
    message: str,
) -> None:
    prepare(daemon, first_id, native_id, *jobs)
    done = run("drop-in", "slurm")
    assert (done.code, done.out) == (3, "")
    assert done.err.count("\n") == 1
    assert re.search(message, done.err), done.err


def test_the_lines_for_login_shells_need_no_daemon(run: Run) -> None:
    done = run("drop-in", "slurm", "--profile")
    assert done.code == 0
    assert "PATH=$METASCHED_DROP_IN:$PATH" in done.out


def test_a_daemon_of_a_release_before_reports_no_ids() -> None:
    assert first_id_problem(FIRST_ID, [{"cluster": "alpha"}]) == ("", "")
