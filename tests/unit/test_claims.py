"""Claims: an attempt starts at most once, and never after metasched has revoked its claim."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from metasched.adapters.base import Submission
from metasched.adapters.claims import (
    EXIT_CLAIM_TAKEN,
    FenceError,
    apply_fence,
    check_fence,
    new_claim_folder,
    read_end,
    revoke_claim,
)
from metasched.core.events import (
    AccountingReceived,
    Action,
    ClaimsRevoked,
    ClusterDrained,
    DaemonStarted,
    Dispatch,
    DispatchAccepted,
    DispatchStarted,
    DispatchUncertain,
    JobSubmitted,
    QueryAccounting,
    Revoke,
    UserRequested,
)
from metasched.core.task_state_machine import ACCOUNTING_RETRY_DELAY
from metasched.model.adapter_errors import Refused
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Payload, Reason, State
from metasched.model.listing import ClaimEnd, JobStatus, TaskClaim
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy
from tests.unit.core_site import NOW, Site, facts, job

TAG = tag_of("cafe", 17, 1)


def order(fence: Path | str, script: str, requeue: bool | None = False) -> Submission:
    """Build a submission that claims its tasks in the folder `fence`."""
    made = Job(id=17, submitted=0.0, estimated=1.0, requeue=requeue)
    return apply_fence(
        Submission(tag=TAG, job=made, payload=Payload(script=script), fence=str(fence))
    )


@pytest.fixture
def fence(tmp_path: Path) -> str:
    """Return the path of a dispatch's claim folder that does not exist yet."""
    return new_claim_folder(str(tmp_path), 17)


def run(sent: Submission, *arguments: str, task: int = 0) -> subprocess.CompletedProcess[bytes]:
    """Run the script as a manager would, with nothing in the PATH."""
    script = sent.payload.script.encode("utf-8", "surrogateescape")
    return subprocess.run(
        ["/bin/sh", "-s", *arguments],
        input=script,
        env={"PATH": "/nowhere", "METASCHED_TASK": str(task)},
        capture_output=True,
        check=False,
    )


def test_a_payload_begins_once_and_each_task_by_itself(fence: str) -> None:
    sent = order(fence, "#!/bin/sh\necho begun $1; exit 3\n")
    first = run(sent, "here", task=4)
    assert (first.stdout, first.stderr, first.returncode) == (b"begun here\n", b"", 3)
    second = run(sent, task=4)
    assert (second.stdout, second.returncode) == (b"", EXIT_CLAIM_TAKEN)
    assert second.stderr.count(b"\n") == 1
    assert run(sent, "there", task=5).stdout == b"begun there\n"


def test_what_its_manager_may_rerun_begins_again(fence: str) -> None:
    sent = order(fence, "#!/bin/sh\necho begun\n", requeue=True)
    assert [run(sent).stdout for _ in range(2)] == [b"begun\n", b"begun\n"]


def test_what_its_manager_reruns_by_default_begins_again(fence: str) -> None:
    sent = order(fence, "#!/bin/sh\necho begun\n", requeue=None)
    assert [run(sent).stdout for _ in range(2)] == [b"begun\n", b"begun\n"]


@pytest.mark.parametrize("requeue", [False, True])
def test_what_is_revoked_never_begins(fence: str, requeue: bool) -> None:
    sent = order(fence, "#!/bin/sh\necho begun\n", requeue)
    claim = TaskClaim(fence, TAG, 0)
    assert [revoke_claim(claim), revoke_claim(claim)] == [True, True]
    assert [(run(sent).stdout, run(sent).returncode)] == [(b"", EXIT_CLAIM_TAKEN)]


def test_what_has_begun_cannot_be_revoked(fence: str) -> None:
    run(order(fence, "#!/bin/sh\n"))
    claim = TaskClaim(fence, TAG, 0)
    assert [revoke_claim(claim), revoke_claim(claim)] == [False, False]
    assert [path.name for path in Path(fence).iterdir()] == ["task.0"]


def test_either_it_begins_or_it_is_revoked(fence: str) -> None:
    sent = order(fence, "#!/bin/sh\necho begun\n")
    for task in range(20):
        began: list[bytes] = []
        starting = threading.Thread(
            target=lambda t=task, b=began: b.append(run(sent, task=t).stdout)
        )
        starting.start()
        revoked = revoke_claim(TaskClaim(fence, TAG, task))
        starting.join()
        assert began == [b"" if revoked else b"begun\n"]


def test_the_script_reaches_its_own_interpreter_byte_for_byte(fence: str) -> None:
    script = (
        f"#!{sys.executable} -I\nimport sys\nprint(sys.argv[1:], '''it's $HOME `x` \\\\ ü''')\n"
    )
    assert run(order(fence, script), "a b", "$c").stdout.decode() == (
        "['a b', '$c'] it's $HOME `x` \\ ü\n"
    )


def test_without_a_place_for_claims_nothing_is_sent_for_now(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"no claim can be created: no folder {tmp_path}") as refused:
        order(new_claim_folder(str(tmp_path / "absent"), 17), "#!/bin/sh\n")
    assert refused.value.retryable


def test_a_payload_that_cannot_reach_the_place_of_claims_does_not_begin(fence: str) -> None:
    sent = order(fence, "#!/bin/sh\necho begun\n")
    Path(fence).rmdir()
    assert (run(sent).stdout, run(sent).returncode) == (b"", EXIT_CLAIM_TAKEN)
    with pytest.raises(FenceError, match="No such file"):
        revoke_claim(TaskClaim(fence, TAG, 0))


def test_a_dispatch_that_no_manager_confirmed_is_revoked_without_its_folder(
    tmp_path: Path, fence: str
) -> None:
    tmp_path.chmod(0o711)
    assert revoke_claim(TaskClaim(fence, TAG, 0, accepted=False))
    assert run(order(fence, "#!/bin/sh\necho begun\n")).stdout == b""


def test_no_other_user_can_list_or_guess_a_dispatchs_claims(tmp_path: Path, fence: str) -> None:
    tmp_path.chmod(0o1777)  # as its site may have made it
    order(fence, "#!/bin/sh\n")
    folders = (tmp_path, Path(fence).parent, Path(fence))
    assert [f.stat().st_mode & 0o7777 for f in folders] == [0o711, 0o711, 0o1733]
    assert len({new_claim_folder(str(tmp_path), 17) for _ in range(100)}) == 100
    Path(fence).chmod(0o700)  # as if its creator had died before it set the mode
    order(fence, "#!/bin/sh\n")
    assert Path(fence).stat().st_mode & 0o7777 == 0o1733


def test_no_process_argument_variable_or_message_holds_the_secret(fence: str) -> None:
    secret = Path(fence).name
    script = "#!/bin/sh\nenv\ncat /proc/$$/cmdline /proc/$PPID/cmdline; readlink /proc/$$/fd/*\n"
    sent = order(fence, script)
    environment = {"METASCHED_TASK": "0", "_ms_claim": "exported", "_ms_word": "exported"}
    path = Path(fence).parents[1] / "job"
    path.write_text(sent.payload.script)
    for _ in range(2):  # the second run finds the claim taken
        ran = subprocess.run(
            ["/bin/sh", str(path)], env=environment, capture_output=True, check=False
        )
        assert ran.stdout or ran.returncode == EXIT_CLAIM_TAKEN
        assert secret.encode() not in ran.stdout + ran.stderr
    Path(fence, "task.0").unlink()
    Path(fence).rmdir()
    with pytest.raises(FenceError) as unresolved:
        revoke_claim(TaskClaim(fence, TAG, 0))
    assert secret not in str(unresolved.value)


def test_links_in_place_of_folders_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    for link in (tmp_path / "claims", tmp_path / "jobs-0"):
        link.symlink_to(target)
    tmp_path.chmod(0o711)
    for fence_dir in (tmp_path / "claims", tmp_path):
        with pytest.raises(Refused, match="no claim can be created"):
            order(new_claim_folder(str(fence_dir), 17), "#!/bin/sh\n")
    with pytest.raises(FenceError):
        check_fence(str(tmp_path / "claims"))
    assert target.stat().st_mode & 0o7777 == 0o700
    assert list(target.iterdir()) == []


def test_a_dispatch_without_a_folder_of_its_own_has_no_claims(tmp_path: Path) -> None:
    with pytest.raises(FenceError, match="is not the folder of a dispatch's claims"):
        revoke_claim(TaskClaim(str(tmp_path), TAG, 0, accepted=False))
    assert list(tmp_path.iterdir()) == []


# Exit statuses.


def start(shell: str, sent: Submission, folder: Path, **variables: str) -> subprocess.Popen[bytes]:
    """Start the script as Slurm does: as a file, in a process that can be signalled alone."""
    path = folder / "job"
    path.write_text(sent.payload.script)
    return subprocess.Popen(
        [shell, str(path)],
        env={"METASCHED_TASK": "0", **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.parametrize("code", [0, 3, 127, 143])
@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_a_claim_records_the_end(fence: str, tmp_path: Path, shell: str, code: int) -> None:
    claim = TaskClaim(fence, TAG, 0)
    sent = order(fence, f"#!/bin/sh\nread line; echo got $line; exit {code}\n")
    before = int(time.time())
    process = start(shell, sent, tmp_path)
    assert process.communicate(b"input\n")[0] == b"got input\n"
    assert process.returncode == code
    end = read_end(claim)
    assert end is not None
    assert end.exit_code == code
    assert before <= end.started <= end.ended <= time.time()
    assert not revoke_claim(claim)


SIGNALS = [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM]


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_a_signal_to_the_batch_process_alone_reaches_the_script(
    fence: str, tmp_path: Path, shell: str, number: signal.Signals
) -> None:
    """`sbatch --signal=B:...` signals that process; the script handles it and exits by itself."""
    script = (
        f"#!/bin/sh\ntrap 'echo caught; end=1' {number.value}\n"
        "echo ready\nuntil [ $end ]; do sleep 0.05; done\nexit 5\n"
    )
    process = start(shell, order(fence, script), tmp_path, SLURM_TASK_PID="7", PATH="/usr/bin:/bin")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.communicate()[0] == b"caught\n"
    assert process.returncode == 5
    end = read_end(TaskClaim(fence, TAG, 0))
    assert end is not None
    assert end.exit_code == 5


def test_a_payload_that_is_killed_records_no_end_of_another(fence: str, tmp_path: Path) -> None:
    claim = TaskClaim(fence, TAG, 0)
    assert run(order(fence, "#!/bin/sh\nexit 4\n", requeue=True)).returncode == 4
    assert read_end(claim) is not None
    again = order(fence, "#!/bin/sh\necho $PPID\nexec sleep 600\n", requeue=True)
    process = start("/bin/sh", again, tmp_path, PATH="/usr/bin:/bin")
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    assert read_end(claim) is None  # the payload has started again
    child = psutil.Process(process.pid).children()[0]
    process.kill()
    child.kill()
    process.wait()
    assert read_end(claim) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "claimed\n",
        "claimed\nstarted 5\nended 3 9",
        "claimed\nstarted x\nended 3 9\n",
        "\xff" * 9000,
    ],
)
def test_half_a_record_is_no_end(fence: str, text: str) -> None:
    order(fence, "#!/bin/sh\n")
    Path(fence, "task.0").write_text(text)
    assert read_end(TaskClaim(fence, TAG, 0)) is None


# Claims in the core.


def lost(records: str = "") -> Site:
    """Return a site whose task, with a fence, is missing from left without proof of absence."""
    site = Site(fence_dir="/fence", pull=False)
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.sent()
    site.seen(
        "left",
        facts(8, accounting_source=records),
        full=True,
        at=NOW + 9,
        since=NOW + 5,
        up_since=NOW + 5,
    )
    assert site.state() is State.UNKNOWN
    return site


def claimed(sending: int = 1) -> tuple[str, int]:
    return (tag_of("cafe", 1, sending), 0)


def test_what_has_claimed_nothing_is_revoked_and_sent_again() -> None:
    site = lost()
    assert site.out.actions == [Revoke("left", (TaskClaim("/fence", *claimed()),))]
    assert site.step(ClaimsRevoked(NOW + 9, (claimed(),))) == [Dispatch(1, 2, "left", (0,))]
    # if the first dispatch starts late, it finds its claim taken
    running = site.row(State.RUNNING, started=NOW + 10)
    assert site.seen("left", None, running, at=NOW + 11) == []
    assert site.core.tasks[1, 0].attempt.dispatch_id == 2  # type: ignore[union-attr]
    assert site.core.tasks[1, 0].reason != Reason.DUPLICATE


def test_what_has_begun_stays_unknown() -> None:
    site = lost()
    assert site.step(ClaimsRevoked(NOW + 9, already_started=(claimed(),))) == []
    assert site.state() is State.UNKNOWN
    later = NOW + 9 + ACCOUNTING_RETRY_DELAY[1]
    only_end = TaskClaim("/fence", *claimed(), started=True)
    assert site.seen("left", None, at=later, since=NOW + 5) == [Revoke("left", (only_end,))]
    assert site.state() is State.UNKNOWN


def test_accounting_is_asked_first() -> None:
    site = lost(records="all")
    assert [type(action).__name__ for action in site.out.actions] == ["QueryAccounting"]
    site.seen("left", None, at=NOW + 9 + ACCOUNTING_RETRY_DELAY[0], since=NOW + 5)
    assert [type(action).__name__ for action in site.out.actions] == ["QueryAccounting", "Revoke"]
    done = site.row(State.COMPLETED, started=NOW, ended=NOW + 1, exit_code=0)
    site.step(AccountingReceived(NOW + 20, "left", (done,)))
    assert site.state() is State.UNKNOWN  # the claim decides whether the record is of this payload
    site.step(ClaimsRevoked(NOW + 20, already_started=(claimed(),)))
    assert not site.core.tasks


def test_an_end_settles_what_manager_and_accounting_have_forgotten() -> None:
    site = lost()
    end = ClaimEnd(NOW + 2, NOW + 4, 3)
    site.step(ClaimsRevoked(NOW + 9, already_started=(claimed(),), ends=((*claimed(), end),)))
    [(task, attempt)] = site.out.closed_attempts
    assert task.state is State.FAILED
    assert (attempt.started, attempt.ended, attempt.exit_code) == (NOW + 2, NOW + 4, 3)


def test_an_end_does_not_settle_what_its_manager_lists() -> None:
    site = lost()
    site.step(ClaimsRevoked(NOW + 9, already_started=(claimed(),)))
    site.seen("left", None, site.row(State.RUNNING, started=NOW + 2), at=NOW + 10)
    site.step(ClaimsRevoked(NOW + 11, ends=((*claimed(), ClaimEnd(NOW + 2, NOW + 4, 3)),)))
    assert site.state() is State.RUNNING


def test_what_comes_back_while_its_claim_is_taken_waits_for_the_answer() -> None:
    site = lost()
    failed = site.row(State.FAILED, started=NOW + 9, ended=NOW + 9, exit_code=EXIT_CLAIM_TAKEN)
    site.seen("left", None, failed, at=NOW + 10)
    assert site.state() is State.UNKNOWN
    assert site.step(ClaimsRevoked(NOW + 11, (claimed(),))) == [Dispatch(1, 2, "left", (0,))]


def test_a_claim_that_was_perhaps_taken_is_taken_again_after_a_restart() -> None:
    site = lost()
    clusters = tuple(
        Cluster(name=n, adapter="local", fence_dir="/fence") for n in ("left", "right")
    )
    revoke_again = [Revoke("left", (TaskClaim("/fence", *claimed()),))]
    assert site.step(DaemonStarted(NOW + 20, "cafe", Policy(), clusters)) == revoke_again
    site.seen("left", facts(8), site.row(State.PENDING), at=NOW + 21, full=True)
    assert site.step(ClaimsRevoked(NOW + 22, (claimed(),))) == [Dispatch(1, 2, "left", (0,))]


def test_a_restored_backup_revokes_claims() -> None:
    """The folder of a dispatch does not depend on the instance."""
    site = Site(fence_dir="/fence")
    site.step(JobSubmitted(NOW, job()))
    site.step(DispatchStarted(NOW, 1, 1, new_claim_folder("/fence", 1)))
    site.step(DispatchAccepted(NOW, 1, 1, {0: "7"}))
    restored = {"cafe": 0, "f00d": 2}
    site.step(
        DaemonStarted(
            *(NOW + 5, "f00d", Policy(), tuple(site.core.clusters)),
            first_dispatches=restored,
            restored=True,
        )
    )
    taken = site.seen("left", facts(8), full=True, at=NOW + 9, since=1.0)
    assert [type(action).__name__ for action in taken] == ["Revoke"]
    assert site.state() is State.UNKNOWN


def test_what_was_withdrawn_is_revoked_lest_it_come_back() -> None:
    site = Site(fence_dir="/fence")
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.step(UserRequested(NOW, "hold", 1))
    site.seen("left", None, site.row(State.CANCELLED, ended=NOW))
    assert site.out.actions == [Revoke("left", (TaskClaim("/fence", *claimed()),))]
    site.step(ClaimsRevoked(NOW, (claimed(),)))
    site.step(UserRequested(NOW, "release", 1))
    listed = JobStatus(*claimed(), "7", State.PENDING)
    assert [type(action).__name__ for action in site.seen("left", None, listed)] == ["Withdraw"]
    assert site.seen("left", None, site.row(State.RUNNING, started=NOW)) == []
    assert site.core.tasks[1, 0].attempt.intent is None  # type: ignore[union-attr]


def test_what_an_operator_called_lost_too_early_goes_before() -> None:
    site = Site(fence_dir="/fence", pull=False)
    site.step(JobSubmitted(NOW, job(clusters=("left",))))
    site.sent()
    site.seen("left", facts(8, accounting_source="all"), full=True, at=NOW + 9, since=NOW + 5)
    site.core.tasks[1, 0].job = job(clusters=("right",))
    actions = site.step(UserRequested(NOW + 9, "lost", 1, by="root"))
    assert actions == [
        Revoke("left", (TaskClaim("/fence", *claimed()),)),
        Dispatch(1, 2, "right", (0,)),
    ]
    site.sent(cluster="right", sending=2, native="8")
    assert [
        type(a).__name__ for a in site.step(ClaimsRevoked(NOW + 9, already_started=(claimed(),)))
    ] == ["Withdraw"]


@pytest.mark.parametrize("listed", [State.RUNNING, State.SUSPENDED])
def test_what_comes_back_started_while_it_is_being_revoked_is_queued(listed: State) -> None:
    """An operator called it lost. Its manager lists its start before its claim has answered."""
    site = lost()
    site.step(ClusterDrained(NOW + 9, "left", "op", "new kernel"))
    site.step(UserRequested(NOW + 9, "lost", 1, by="root"))
    site.seen("left", None, site.row(listed, started=NOW + 9), at=NOW + 10)
    assert site.state() is listed
    site.step(ClaimsRevoked(NOW + 11, (claimed(),)))
    assert site.state() is State.QUEUED
    [(_, attempt)] = site.out.closed_attempts
    assert (attempt.started, attempt.has_started) == (None, False)
    taken = site.row(State.FAILED, started=NOW + 9, ended=NOW + 12, exit_code=EXIT_CLAIM_TAKEN)
    site.seen("left", None, taken, at=NOW + 12)
    assert site.state() is State.QUEUED


# A killed manager forgets a start: it lists a task as pending that has run


def recalled() -> Site:
    """Return a site whose task is being recalled from left, which was up since before it came."""
    site = Site(fence_dir="/fence")
    site.step(JobSubmitted(NOW, job()))
    site.sent()
    site.seen("left", None, site.row(State.PENDING), at=NOW + 9)
    drain = ClusterDrained(NOW + 9, "left", "op", "new kernel")
    assert [type(action).__name__ for action in site.step(drain)] == ["Withdraw"]
    return site


def withdrawn(site: Site, how: str = "listed", at: float = NOW + 10) -> list[Action]:
    """Let left report the withdrawal: a cancelled row, a delta without it, or a whole listing."""
    rows = (site.row(State.CANCELLED, ended=NOW + 10),) if how == "listed" else ()
    gone = (claimed(),) if how == "vanished" else ()
    return site.seen(
        "left",
        None,
        *rows,
        at=at,
        since=NOW + 5,
        previous_taken=NOW + 9,
        full=how == "missing",
        vanished=gone,
    )


REPORTS = ("listed", "vanished", "missing")


@pytest.mark.parametrize("how", REPORTS)
def test_a_withdrawn_task_is_dispatched_once_its_claim_is_revoked(how: str) -> None:
    site = recalled()
    assert withdrawn(site, how) == [Revoke("left", (TaskClaim("/fence", *claimed()),))]
    assert withdrawn(site, how) == []
    assert site.state() is State.PENDING
    assert site.step(ClaimsRevoked(NOW + 11, (claimed(),))) == [Dispatch(1, 2, "right", (0,))]
    assert site.step(ClaimsRevoked(NOW + 12, (claimed(),))) == []


@pytest.mark.parametrize("how", REPORTS)
def test_a_forgotten_start_is_not_dispatched_again(how: str) -> None:
    site = recalled()
    withdrawn(site, how)
    assert site.step(ClaimsRevoked(NOW + 11, already_started=(claimed(),))) == []
    assert withdrawn(site, how, NOW + 12) == []
    assert site.state() is State.UNKNOWN
    end = ClaimEnd(NOW + 1, NOW + 3, 0)
    site.step(ClaimsRevoked(NOW + 17, ends=((*claimed(), end),)))
    [(task, attempt)] = site.out.closed_attempts
    assert (task.state, task.reason) == (State.COMPLETED, "")
    assert (attempt.dispatch_id, attempt.started, attempt.ended) == (1, NOW + 1, NOW + 3)


@pytest.mark.parametrize("how", REPORTS)
def test_a_claim_that_also_has_the_end_settles_at_once(how: str) -> None:
    site = recalled()
    withdrawn(site, how)
    end = ClaimEnd(NOW + 1, NOW + 3, 4)
    site.step(ClaimsRevoked(NOW + 11, already_started=(claimed(),), ends=((*claimed(), end),)))
    [(task, attempt)] = site.out.closed_attempts
    assert (task.state, attempt.exit_code) == (State.FAILED, 4)


def test_a_forgotten_start_that_still_runs_stays() -> None:
    site = recalled()
    withdrawn(site)
    site.step(ClaimsRevoked(NOW + 11, already_started=(claimed(),)))
    running = site.row(State.RUNNING, started=NOW + 2)
    assert site.seen("left", None, running, at=NOW + 12) == []
    assert site.state() is State.RUNNING
    assert site.core.tasks[1, 0].live_attempt.intent is None


def test_a_forgotten_start_that_is_pending_is_withdrawn_all_the_same() -> None:
    """Else its manager would run it again; the claim has its end."""
    site = recalled()
    withdrawn(site)
    site.step(ClaimsRevoked(NOW + 11, already_started=(claimed(),)))
    site.seen("left", None, site.row(State.PENDING), at=NOW + 12)
    assert site.state() is State.PENDING
    again = site.seen("left", None, site.row(State.PENDING), at=NOW + 99)
    assert [type(action).__name__ for action in again] == ["Withdraw"]
    assert withdrawn(site, at=NOW + 100) == []
    assert site.state() is State.UNKNOWN


@pytest.mark.parametrize("how", REPORTS)
def test_a_claim_that_was_not_asked_yet_leaves_its_task_pending(how: str) -> None:
    """It may wait for thousands of others in the daemon; accounting is asked after it."""
    site = recalled()
    asked = withdrawn(site, how)
    later = NOW + 11 + ACCOUNTING_RETRY_DELAY[0]
    assert withdrawn(site, how, NOW + 11) == []
    assert withdrawn(site, how, later) == asked
    # so late that a listing would no longer prove the absence of the task
    site.seen("left", None, at=NOW + 900, since=NOW + 600, full=how == "missing")
    assert site.state() is State.PENDING
    assert not any(isinstance(action, QueryAccounting) for action in site.out.actions)
    assert site.step(ClaimsRevoked(NOW + 901, (claimed(),))) == [Dispatch(1, 2, "right", (0,))]


@pytest.mark.parametrize("how", REPORTS)
def test_a_claim_without_an_answer_is_asked_again_and_the_task_is_unknown(how: str) -> None:
    site = recalled()
    asked = withdrawn(site, how)
    assert withdrawn(site, how, NOW + 11) == []
    for _ in range(2):
        assert site.step(ClaimsRevoked(NOW + 12, unanswered=(claimed(),))) == []
        assert site.state() is State.UNKNOWN
    assert site.out.changes == []
    assert withdrawn(site, how, NOW + 11 + ACCOUNTING_RETRY_DELAY[0]) == asked
    site.seen("right", facts(4), at=NOW + 30)
    actions = site.step(UserRequested(NOW + 30, "lost", 1, by="root"))
    assert actions == [*asked, Dispatch(1, 2, "right", (0,))]


@pytest.mark.parametrize("how", REPORTS)
def test_a_claim_is_asked_again_after_a_restart(how: str) -> None:
    site = recalled()
    asked = withdrawn(site, how)
    assert site.step(site.started(NOW + 20)) == asked
    later = NOW + 21 + ACCOUNTING_RETRY_DELAY[0]
    again = [*withdrawn(site, how, NOW + 21), *withdrawn(site, how, later)]
    assert [action for action in again if isinstance(action, Revoke)][-1:] == asked
    assert not any(isinstance(action, Dispatch) for action in again)
    site.seen("right", facts(4), at=later)
    assert site.step(ClaimsRevoked(later, (claimed(),))) == [Dispatch(1, 2, "right", (0,))]


@pytest.mark.parametrize("how", REPORTS)
def test_a_restart_between_answer_and_end_keeps_a_forgotten_start(how: str) -> None:
    site = recalled()
    withdrawn(site, how)
    site.step(ClaimsRevoked(NOW + 11, already_started=(claimed(),)))
    site.step(site.started(NOW + 20))
    asked = []
    for at in (NOW + 21, NOW + 30):
        asked += withdrawn(site, "missing" if how == "vanished" else how, at)
        assert not any(isinstance(action, Dispatch) for action in asked)
    assert Revoke("left", (TaskClaim("/fence", *claimed(), started=True),)) in asked
    assert site.state() is State.UNKNOWN


@pytest.mark.parametrize("how", REPORTS)
def test_accounting_that_has_forgotten_the_start_too_changes_nothing(how: str) -> None:
    site = recalled()
    withdrawn(site, how)
    site.step(ClaimsRevoked(NOW + 11, already_started=(claimed(),)))
    withdrawn(site, how, NOW + 12)
    for _ in range(2):
        row = site.row(State.CANCELLED, ended=NOW + 10)
        site.step(AccountingReceived(NOW + 13, "left", (row,), (claimed(),)))
        assert (site.out.changes, site.state()) == ([], State.UNKNOWN)
    row = site.row(State.COMPLETED, started=NOW + 1, ended=NOW + 3, exit_code=0)
    site.step(AccountingReceived(NOW + 14, "left", (row,)))
    assert site.core.state.ended_tasks[1, 0].state is State.COMPLETED


@pytest.mark.parametrize("how", REPORTS)
@pytest.mark.parametrize("answered", [False, True])
def test_an_owner_cancels_a_task_that_waits_for_its_claim(how: str, answered: bool) -> None:
    site = recalled()
    withdrawn(site, how)
    site.step(UserRequested(NOW + 11, "cancel", 1))
    if answered:
        site.step(ClaimsRevoked(NOW + 12, (claimed(),)))
    else:  # it has run: its manager says that it is cancelled, or nothing
        site.step(ClaimsRevoked(NOW + 12, already_started=(claimed(),)))
        withdrawn(site, how, at=NOW + 13)
    if answered or how == "listed":
        assert site.core.state.ended_tasks[1, 0].state is State.CANCELLED
    else:
        assert site.state() is State.UNKNOWN


def test_a_held_task_waits_for_its_claim() -> None:
    site = recalled()
    withdrawn(site)
    site.step(UserRequested(NOW + 11, "hold", 1))
    site.step(ClaimsRevoked(NOW + 12, (claimed(),)))
    assert site.state() is State.HELD


def test_a_refuted_dispatch_waits_for_its_claim_too() -> None:
    """The listing that proves absence is of a manager that may have forgotten the start."""
    site = Site(fence_dir="/fence")
    site.step(JobSubmitted(NOW, job()))
    site.step(DispatchStarted(NOW, 1, 1, "/fence"))
    site.step(DispatchUncertain(NOW, 1, 1, "time-out"))
    gone = site.seen("left", facts(8), full=True, at=NOW + 9, since=1.0)
    assert gone == [Revoke("left", (TaskClaim("/fence", *claimed(), accepted=False),))]
    site.step(ClaimsRevoked(NOW + 10, already_started=(claimed(),)))
    assert site.core.tasks[1, 0].live_attempt.dispatch_id == 1


def test_a_row_that_comes_back_in_time_is_not_lost_to_an_unanswered_claim() -> None:
    """After a restart the claim may not answer, while the manager lists the task."""
    site = recalled()
    withdrawn(site)
    site.step(site.started(NOW + 20))
    site.seen("left", facts(8), site.row(State.PENDING), at=NOW + 21, full=True)
    later = NOW + 21 + ACCOUNTING_RETRY_DELAY[0]
    again = site.seen("left", None, at=later, full=False)
    assert [action for action in again if isinstance(action, Revoke)]


def test_a_claim_is_asked_though_the_clock_was_set_back_while_no_daemon_ran() -> None:
    site = recalled()
    site.step(site.started(NOW - 100))
    assert Revoke("left", (TaskClaim("/fence", *claimed()),)) in withdrawn(site, at=NOW - 90)
    assert site.state() is State.PENDING
