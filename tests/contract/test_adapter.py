"""The contract of every adapter (`metasched/adapters/base.py`), tested on real managers.

`pytest tests/contract` runs it over the adapters of this project. The author of another adapter
writes a boot function (see `conftest.py`: a context manager from a folder to
`connect(instance) -> Adapter`) and runs

    METASCHED_CONTRACT=my_package.my_module:boot pytest tests/contract

No test checks an adapter's name; `capabilities` has the features of its manager.
"""

from __future__ import annotations

import getpass
import random
import signal
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from metasched.adapters.base import Withdrawal
from metasched.adapters.claims import (
    EXIT_CLAIM_TAKEN,
    apply_fence,
    new_claim_folder,
    revoke_claim,
)
from metasched.model.adapter_errors import Refused
from metasched.model.cluster import NodeCapacity
from metasched.model.foreign_use import UseAnswer, UseQuery
from metasched.model.job import State
from metasched.model.listing import Listing, TaskClaim
from metasched.model.manager_options import ALL_OPTIONS
from metasched.model.reservation import manager_name
from metasched.model.survey import ManagerReservation, ReservationSpec
from metasched.model.tags import tag_of
from metasched.policies.local.registry import check_policy_name, check_suspends_none

if TYPE_CHECKING:
    from metasched.adapters.base import Submission
    from tests.contract.conftest import Manager

PATIENCE = 60.0  # seconds until a manager must have written the record of a job
SECOND = 1.0  # many managers report times in whole seconds


def nodes_of(manager: Manager) -> tuple[NodeCapacity, ...]:
    """Return the nodes of the default partition from a new listing."""
    partition = manager.adapter.poll().info.partition(None)
    assert partition is not None
    return partition.nodes


def words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


# Declared capabilities.


def test_declared_capabilities_are_valid(manager: Manager) -> None:
    declared = manager.adapter.capabilities
    assert declared.limit_granularity > 0
    assert set(declared.job_options) <= set(ALL_OPTIONS)
    if not declared.reservations:
        assert not declared.reserves_for_accounts
        assert not declared.reserves_named_nodes
    if declared.local_policy:
        check_policy_name(declared.local_policy)
        check_suspends_none(declared.local_policy)
    if declared.has_slurm_commands:
        names = {option.name for option in fields(manager.adapter.options)}
        assert {"config", "bin_dir", "tag_field", "native_jobs"} <= names


def test_a_job_of_a_higher_priority_overtakes_where_this_is_declared(manager: Manager) -> None:
    if not manager.adapter.capabilities.orders_by_priority:
        pytest.skip("its queue is not ordered by metasched's priorities")
    blockers = manager.fill()
    largest = max(nodes.cpus for nodes in nodes_of(manager))
    orders = [manager.order("true", cpus=largest) for _ in range(2)]
    for order, priority in zip(orders, (1, 10), strict=True):
        manager.adapter.submit(structs.replace(order, priority=priority))
    for blocker in blockers:
        manager.withdraw(blocker)
    late, early = (manager.wait_end(order) for order in orders)
    assert early.ended is not None
    assert late.started is not None
    assert early.ended <= late.started


# Life cycle of a job.


def test_a_job_waits_runs_and_completes(manager: Manager) -> None:
    blockers = manager.fill()
    before = time.time()
    order = manager.submit("while [ ! -e go ]; do sleep 0.05; done")
    waiting = manager.wait_state(order, State.PENDING)
    assert waiting.started is None
    assert waiting.ended is None
    assert waiting.task == 0
    for blocker in blockers:
        manager.withdraw(blocker)
    running = manager.wait_state(order, State.RUNNING)
    assert running.started is not None
    assert running.ended is None
    (manager.folder / "go").touch()
    row = manager.wait_end(order)
    assert (row.state, row.exit_code, row.signal) == (State.COMPLETED, 0, None)
    assert row.native_id == waiting.native_id == running.native_id
    assert row.started == running.started
    assert row.ended is not None
    assert before - SECOND <= running.started <= row.ended <= time.time() + SECOND


def test_what_waits_is_expected_to_begin_when_the_first_place_is_free(manager: Manager) -> None:
    blockers = manager.fill()
    order = manager.submit("exit", cpus=1)
    manager.wait_state(order, State.PENDING)
    if not manager.adapter.capabilities.estimates_starts:
        assert {row.expected for row in manager.adapter.poll().rows} == {None}
        return

    def expected(listing: Listing) -> float | None:
        return next(row.expected for row in listing.rows if row.tag == order.tag)

    start = expected(manager.wait(lambda listing: expected(listing) is not None))
    began = [manager.wait_state(running, State.RUNNING).started or 0.0 for running in blockers]
    rounded = 2 * manager.adapter.capabilities.limit_granularity
    assert start is not None
    assert min(began) + 600 - SECOND <= start <= max(began) + 600 + rounded
    for blocker in blockers:
        manager.withdraw(blocker)
    assert manager.wait_end(order).expected is None


@pytest.mark.parametrize("code", [1, 3, 255])
def test_a_failing_job_reports_its_exit_code(manager: Manager, code: int) -> None:
    row = manager.wait_end(manager.submit(f"exit {code}"))
    assert (row.state, row.exit_code, row.signal) == (State.FAILED, code, None)


def test_a_job_ended_by_a_signal_reports_the_signal(manager: Manager) -> None:
    row = manager.wait_end(manager.submit("kill -KILL $$"))
    assert (row.state, row.exit_code, row.signal) == (State.FAILED, None, signal.SIGKILL)


@pytest.mark.slow("managers end a job at a limit of whole minutes")
def test_a_job_is_ended_at_its_time_limit(manager: Manager) -> None:
    step = manager.adapter.capabilities.limit_granularity
    order = manager.submit("sleep 600 & wait", time_limit=max(step, SECOND))
    row = manager.wait_end(order, patience=2 * step + 90)
    assert row.state is State.TIMEOUT
    assert row.started is not None
    assert row.ended is not None
    assert row.ended - row.started >= max(step, SECOND) - SECOND


def test_a_job_within_its_time_limit_is_left_alone(manager: Manager) -> None:
    step = manager.adapter.capabilities.limit_granularity
    row = manager.wait_end(manager.submit("sleep 0.2", time_limit=max(step, 10 * SECOND)))
    assert row.state is State.COMPLETED


def test_use_is_reported_of_jobs_that_are_not_named_as_own(manager: Manager) -> None:
    began = time.time()
    query = UseQuery(since=began, max_span=3600.0)
    if not manager.adapter.poll().info.use_source:
        answer = manager.adapter.query_foreign_use(query)
        assert (answer.rows, answer.more) == ((), False)
        return
    row = manager.wait_end(manager.submit("sleep 2", cpus=2))
    assert row.started is not None
    assert row.ended is not None
    own_query = structs.replace(query, own_jobs={row.native_id: began})
    expected = 2 * (row.ended - row.started)
    end = time.monotonic() + PATIENCE
    while True:
        foreign, everything = (manager.adapter.query_foreign_use(q) for q in (own_query, query))
        used = total_use(everything) - total_use(foreign)
        if foreign.cursor == everything.cursor and used >= expected - 2 * SECOND:
            break
        assert time.monotonic() < end, (foreign, everything)
        time.sleep(0.1)
    assert used <= expected + 2 * SECOND
    assert {use.user for use in everything.rows} == {getpass.getuser()}
    further = manager.adapter.query_foreign_use(structs.replace(query, cursor=everything.cursor))
    assert row.ended not in {use.ended for use in further.rows}


def total_use(answer: UseAnswer) -> float:
    return sum(use.processor_seconds for use in answer.rows)


# Environment, files and claim of a job.


def test_the_environment_is_the_given_one(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METASCHED_TEST_LEAK", "1")
    submitted = {
        "PATH": "/usr/bin:/bin",
        "EMPTY": "",
        "UNICODE": "żółw 🐢",
        "LINES": "first\nsecond\n\nUNICODE=no",
        "QUOTES": """'single' "double" `back` $PATH \\ ; & |""",
        "COMMAS": "a,b,c=d",
        "SPACES": "  between  ",
        "BASH_FUNC_greet%%": "() {  echo hello\n}",
    }
    manager.wait_end(manager.submit("cat /proc/$$/environ > seen", environment=submitted))
    received = dict(
        line.split("=", 1) for line in (manager.folder / "seen").read_text().split("\0") if line
    )
    assert {name: received.get(name) for name in submitted} == submitted
    assert "METASCHED_TEST_LEAK" not in received


def test_arguments_arrive_as_given(manager: Manager) -> None:
    arguments = ("two words", "", "'", '"', "$HOME", "a\nb", "*", "-x", "--wrap=no", "żółw", "\\")
    manager.wait_end(manager.submit('printf "%s\\0" "$@" > seen', arguments=arguments))
    assert (manager.folder / "seen").read_text() == "".join(f"{text}\0" for text in arguments)


def test_directory_output_and_error(manager: Manager) -> None:
    inside = manager.folder / "a folder with ü and 'quotes'"
    inside.mkdir()
    output, error = inside / "out put ü.txt", inside / "err or %j.txt"
    order = manager.submit(
        "pwd; cat; echo oops >&2",
        directory=str(inside),
        output=str(output),
        error=str(error).replace("%", "%%"),
    )
    assert manager.wait_end(order).state is State.COMPLETED
    assert output.read_text() == f"{inside}\n"
    assert error.read_text() == "oops\n"


def test_output_takes_both_streams_and_is_written_anew(manager: Manager) -> None:
    output = manager.folder / "output"
    output.write_text("of an earlier run, which was longer\n")
    manager.wait_end(manager.submit("echo one; echo two >&2; echo three", output=str(output)))
    assert words(output) == ["one", "two", "three"]


def test_a_script_is_run_by_its_interpreter_byte_for_byte(manager: Manager) -> None:
    text = "#!/usr/bin/tail -n+3\nżółw\n🐢 'as it is' $HOME `id` \\n\n"
    output = manager.folder / "output"
    assert manager.wait_end(manager.submit("", script=text, output=str(output))).exit_code == 0
    assert output.read_text() == text.split("\n")[2] + "\n"


def test_a_task_begins_only_if_its_payload_makes_the_claim(manager: Manager) -> None:
    claims = manager.folder / "claims"
    claims.mkdir()
    plain = manager.order("echo $METASCHED_TASK >> ran; exit 3", indices=(1, 2))
    fence = new_claim_folder(str(claims), plain.job.id)
    order = apply_fence(structs.replace(plain, fence=fence))
    assert revoke_claim(TaskClaim(fence, order.tag, 2))
    manager.adapter.submit(order)

    def codes(listing: Listing) -> dict[int, int | None]:
        rows = [row for row in listing.rows if row.tag == order.tag]
        return {row.task: row.exit_code for row in rows if row.state is State.FAILED}

    assert codes(manager.wait(lambda listing: len(codes(listing)) == 2)) == {
        1: 3,
        2: EXIT_CLAIM_TAKEN,
    }
    assert words(manager.folder / "ran") == ["1"]
    assert not revoke_claim(TaskClaim(fence, order.tag, 1))


# Withdrawals.


def test_withdrawn_while_pending_it_never_starts(manager: Manager) -> None:
    blockers = manager.fill()
    order = manager.submit("touch ran")
    manager.wait_state(order, State.PENDING)
    manager.withdraw(order)
    row = manager.wait_end(order)
    assert (row.state, row.started, row.exit_code) == (State.CANCELLED, None, None)
    assert row.ended is not None
    for blocker in blockers:
        manager.withdraw(blocker)
        manager.wait_end(blocker)
    assert not (manager.folder / "ran").exists()


def test_withdrawn_while_running_all_its_processes_end(manager: Manager) -> None:
    order = manager.submit(
        "setsid sh -c 'echo $$ > below; exec sleep 300' & echo $$ > main; sleep 300"
    )
    manager.wait(lambda _: all(words(manager.folder / name) for name in ("main", "below")))
    manager.withdraw(order)
    row = manager.wait_end(order)
    assert row.state is State.CANCELLED
    assert row.started is not None
    assert row.ended is not None
    assert row.started <= row.ended
    pids = [pid for name in ("main", "below") for pid in words(manager.folder / name)]
    assert len(pids) == 2
    manager.wait(lambda _: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids))


def test_withdrawing_what_has_ended_or_never_was_changes_nothing(manager: Manager) -> None:
    order = manager.submit("exit 4")
    row = manager.wait_end(order)
    manager.withdraw(order)
    manager.withdraw(order, unstarted=True)
    unknown = tag_of(manager.instance, 999, 1)
    for native in (None, "999999"):
        manager.adapter.withdraw(Withdrawal(tag=unknown, native_ids={0: native}))
        manager.adapter.withdraw(Withdrawal(tag=unknown, native_ids={0: native}, only_pending=True))
    listing = manager.adapter.poll()
    assert [(result.tag, result.state, result.exit_code) for result in listing.rows] == [
        (order.tag, row.state, 4)
    ]


def test_withdrawn_twice_it_ends_once(manager: Manager) -> None:
    order = manager.submit("exec sleep 300")
    manager.wait_state(order, State.RUNNING)
    manager.withdraw(order)
    manager.withdraw(order)
    assert manager.wait_end(order).state is State.CANCELLED


def test_a_native_id_of_another_tag_withdraws_nothing(manager: Manager) -> None:
    """Managers reuse ids: an id names a task only together with its tag."""
    order = manager.submit("exec sleep 300")
    row = manager.wait_state(order, State.RUNNING)
    other = tag_of(manager.instance, 998, 1)
    manager.adapter.withdraw(Withdrawal(tag=other, native_ids={0: row.native_id}))
    time.sleep(0.5)
    assert manager.wait_state(order, State.RUNNING).ended is None


def test_many_are_withdrawn_in_one_call_each_by_its_own_tag(manager: Manager) -> None:
    orders = [manager.submit("exec sleep 300") for _ in range(3)]
    tags = {order.tag for order in orders}
    listing = manager.wait(lambda listing: tags <= {row.tag for row in listing.rows})
    natives = {row.tag: row.native_id for row in listing.rows}
    acknowledged, unknown, other = orders
    manager.adapter.withdraw_all(
        [
            Withdrawal(tag=acknowledged.tag, native_ids={0: natives[acknowledged.tag]}),
            Withdrawal(tag=unknown.tag, native_ids={0: None}),
            Withdrawal(tag=tag_of(manager.instance, 998, 1), native_ids={0: natives[other.tag]}),
        ]
    )
    assert {manager.wait_end(order).state for order in (acknowledged, unknown)} == {State.CANCELLED}
    [remaining] = [row for row in manager.adapter.poll().rows if row.tag == other.tag]
    assert remaining.state in (State.PENDING, State.RUNNING)


def test_one_task_is_withdrawn_and_the_others_go_on(manager: Manager) -> None:
    order = manager.submit("while [ ! -e go ]; do sleep 0.05; done", indices=(1, 2))
    manager.wait(lambda listing: [row.state for row in listing.rows] == [State.RUNNING] * 2)
    manager.adapter.withdraw(Withdrawal(tag=order.tag, native_ids={2: None}))
    listing = manager.wait(lambda listing: State.CANCELLED in {row.state for row in listing.rows})
    assert {row.task: row.state for row in listing.rows} == {
        1: State.RUNNING,
        2: State.CANCELLED,
    }
    (manager.folder / "go").touch()
    assert manager.wait_state(order, State.COMPLETED).exit_code == 0


def test_withdrawing_the_unstarted_leaves_what_runs_alone(manager: Manager) -> None:
    order = manager.submit("while [ ! -e go ]; do sleep 0.05; done")
    manager.wait_state(order, State.RUNNING)
    manager.withdraw(order, unstarted=True)
    time.sleep(0.5)
    (manager.folder / "go").touch()
    assert manager.wait_end(order).state is State.COMPLETED


@pytest.mark.slow("thirty jobs are submitted and withdrawn one by one")
def test_withdrawing_the_unstarted_races_with_the_start_and_never_loses(manager: Manager) -> None:
    """At whatever time it is withdrawn, the job runs to its end or never starts."""
    dice = random.Random(7)
    orders = []
    for number in range(30):
        orders.append(manager.submit(f"sleep 0.02; echo {number} >> ran"))
        time.sleep(dice.uniform(0, 0.05))
        manager.withdraw(orders[-1], unstarted=True)
    rows = [manager.wait_end(order) for order in orders]
    started = set(words(manager.folder / "ran"))
    for number, row in enumerate(rows):
        expected = State.COMPLETED if str(number) in started else State.CANCELLED
        assert row.state is expected, row
        assert (row.started is None) == (str(number) not in started), row


# Listings.


def test_a_refused_order_leaves_nothing(manager: Manager) -> None:
    cpus = 10 * manager.adapter.poll().info.cpus
    order = manager.order("touch ran", cpus=cpus)
    with pytest.raises(Refused) as refusal:
        manager.adapter.submit(order)
    assert refusal.value.reason
    assert not refusal.value.retryable
    manager.reconnect()
    assert manager.adapter.poll().rows == ()


def test_a_new_adapter_finds_tasks_by_their_tags(manager: Manager) -> None:
    ended = manager.submit("exit 5")
    manager.wait_end(ended)
    running = manager.submit("exec sleep 300")
    native = manager.wait_state(running, State.RUNNING).native_id
    manager.reconnect()
    rows = {row.tag: row for row in manager.adapter.poll().rows}
    assert set(rows) == {ended.tag, running.tag}
    assert (rows[ended.tag].state, rows[ended.tag].exit_code) == (State.FAILED, 5)
    assert rows[running.tag].native_id == native
    manager.withdraw(running)
    assert manager.wait_end(running).state is State.CANCELLED


def test_a_job_that_ends_without_an_adapter_reports_its_true_end(manager: Manager) -> None:
    order = manager.submit("while [ ! -e go ]; do sleep 0.05; done; exit 6")
    manager.wait_state(order, State.RUNNING)
    manager.adapter.close()
    (manager.folder / "go").touch()
    time.sleep(0.5)
    manager.reconnect()
    row = manager.wait_end(order)
    assert (row.state, row.exit_code) == (State.FAILED, 6)


def test_jobs_of_another_instance_are_foreign(manager: Manager) -> None:
    blockers = manager.fill()
    manager.submit("true", cpus=2, time_limit=1200.0)
    manager.reconnect("another1")
    listing = manager.wait(lambda listing: listing.info.pending_jobs == 1)
    assert listing.rows == ()
    assert len(listing.info.running_jobs) == len(blockers)
    assert listing.info.owed_by_others == 2 * 1200.0
    manager.reconnect()
    assert manager.wait(lambda listing: listing.info.pending_jobs == 1).info.owed_by_others == 0


def test_tasks_of_a_former_instance_are_listed_and_can_be_withdrawn(manager: Manager) -> None:
    manager.fill()
    waiting = manager.submit("true", cpus=2)
    manager.reconnect("another1", frozenset({manager.instance}))
    listing = manager.wait(lambda found: waiting.tag in {row.tag for row in found.rows})
    [row] = [row for row in listing.rows if row.tag == waiting.tag]
    assert row.state is State.PENDING
    assert listing.info.owed_by_others == 0
    manager.adapter.withdraw(Withdrawal(tag=waiting.tag, native_ids={0: row.native_id}))
    assert manager.wait_end(waiting).state is State.CANCELLED


def test_a_listing_proves_absence_for_its_span(manager: Manager) -> None:
    if not manager.adapter.capabilities.proves_absence:
        pytest.skip("this manager's listings prove nothing")
    manager.adapter.poll()
    intent = time.time()
    order = manager.submit("true")
    done = time.time()
    listing = manager.wait(lambda listing: listing.until >= done)
    assert listing.since <= intent
    assert listing.since <= listing.until <= listing.taken <= time.time()
    assert {row.tag for row in listing.rows} == {order.tag}


def test_a_request_is_handled_in_a_known_running_time(manager: Manager) -> None:
    assert 0.0 <= manager.adapter.settle <= 600.0


def test_facts_of_an_idle_manager(manager: Manager) -> None:
    facts = manager.wait_facts(lambda facts: facts.used_cpus == 0)
    assert (facts.running_jobs, facts.owed_by_others, facts.pending_jobs, facts.queue_head) == (
        (),
        0,
        0,
        None,
    )
    partition = facts.partition(None)
    assert partition is not None
    assert partition.up
    assert partition.free_cpus == sum(nodes.count * nodes.cpus for nodes in partition.nodes)
    assert 0 < partition.free_cpus <= facts.cpus


def test_cluster_info_counts_running_jobs_and_free_processors(manager: Manager) -> None:
    idle = manager.wait_facts(lambda facts: facts.used_cpus == 0)
    order = manager.submit("exec sleep 300", cpus=2, time_limit=600.0)
    row = manager.wait_state(order, State.RUNNING)
    facts = manager.wait_facts(lambda facts: facts.used_cpus > 0)
    assert (facts.cpus, facts.used_cpus) == (idle.cpus, 2)
    assert row.started is not None
    ((end, cpus),) = facts.running_jobs
    assert cpus == 2
    assert end == pytest.approx(row.started + 600, abs=SECOND)
    before, now = idle.partition(None), facts.partition(None)
    assert before is not None
    assert now is not None
    assert now.free_cpus == before.free_cpus - 2


def test_cluster_info_counts_pending_jobs(manager: Manager) -> None:
    blockers = manager.fill()
    facts = manager.adapter.poll().info
    assert [cpus for _, cpus in facts.running_jobs] == [order.job.cpus for order in blockers]
    assert [end for end, _ in facts.running_jobs] == sorted(end for end, _ in facts.running_jobs)
    partition = facts.partition(None)
    assert partition is not None
    assert partition.free_cpus == 0
    manager.submit("true", cpus=2, time_limit=1200.0)
    manager.wait_facts(lambda facts: facts.queue_head is not None)
    manager.submit("true", cpus=1, time_limit=300.0)
    facts = manager.wait_facts(lambda facts: facts.pending_jobs == 2)
    assert facts.queue_head == (2, 1200.0)
    assert facts.owed_by_others == 0


def test_counted_gres(manager: Manager) -> None:
    if not manager.adapter.capabilities.gres:
        assert not any(nodes.gres for nodes in nodes_of(manager))
        return
    order = manager.submit("exec sleep 300", gres={"gpu": 1})
    manager.wait_state(order, State.RUNNING)
    nodes = nodes_of(manager)
    total = sum(group.count * group.gres.get("gpu", 0) for group in nodes)
    free = sum(group.count * group.free_gres.get("gpu", 0) for group in nodes)
    assert free == total - 1


def test_counted_memory(manager: Manager) -> None:
    if not manager.adapter.capabilities.memory:
        assert {nodes.memory for nodes in nodes_of(manager)} == {None}
        return

    def free() -> int:
        return sum(nodes.count * (nodes.free_memory or 0) for nodes in nodes_of(manager))

    idle, sizes = free(), {nodes.memory for nodes in nodes_of(manager)}
    order = manager.submit("exec sleep 300", memory=1000)
    manager.wait_state(order, State.RUNNING)
    manager.wait(lambda _: abs(free() - (idle - 1000)) <= 1)  # free memory may be rounded,
    assert {nodes.memory for nodes in nodes_of(manager)} == sizes  # the total may not
    with pytest.raises(Refused) as refusal:
        manager.submit("true", memory=2 * idle)
    assert not refusal.value.retryable


def test_counted_licences(manager: Manager) -> None:
    if not manager.adapter.capabilities.licences:
        assert not manager.adapter.poll().info.licences
        return
    ((name, copies),) = manager.adapter.poll().info.licences.items()
    assert (copies.used, copies.total) == (0, 3)
    holder = manager.submit("exec sleep 300", licences={name: 2})
    manager.wait_state(holder, State.RUNNING)
    manager.wait_facts(lambda facts: facts.licences[name].used == 2)
    waiting = manager.submit("true", licences={name: 2})
    manager.wait_state(waiting, State.PENDING)
    manager.withdraw(holder)
    assert manager.wait_end(waiting).state is State.COMPLETED
    manager.wait_facts(lambda facts: facts.licences[name].used == 0)


# Arrays, reservations and long listings.


def test_the_tasks_of_one_order(manager: Manager) -> None:
    order = manager.order("echo ran >> ran; exit 7", indices=(1, 3, 8))
    natives = manager.adapter.submit(order)
    assert len(set(natives.values())) == 3
    manager.wait(lambda listing: all(row.ended for row in listing.rows) and len(listing.rows) == 3)
    rows = {row.task: row for row in manager.adapter.poll().rows}
    assert {task: row.native_id for task, row in rows.items()} == natives
    assert {row.exit_code for row in rows.values()} == {7}
    assert len(words(manager.folder / "ran")) == 3


def test_each_task_knows_itself_and_writes_its_own_files(manager: Manager) -> None:
    requested = (
        "METASCHED_ARRAY_TASK_ID SLURM_ARRAY_TASK_ID SGE_TASK_ID PBS_ARRAY_INDEX PBS_ARRAYID"
    )
    requested += " METASCHED_TASK METASCHED_ARRAY_JOB_ID SLURM_ARRAY_JOB_ID METASCHED_JOB_ID"
    requested += " SLURM_ARRAY_TASK_MIN SLURM_ARRAY_TASK_MAX SLURM_ARRAY_TASK_COUNT"
    requested += " SLURM_ARRAY_TASK_STEP SGE_TASK_FIRST SGE_TASK_LAST SGE_TASK_STEPSIZE"
    order = manager.submit(
        f"for name in {requested}; do eval echo '$'$name; done; echo %N >&2",
        indices=(3, 5, 7),
        output=str(manager.folder / "a 50%% %3a.out"),
        error=str(manager.folder / "%N-%a.err"),
    )
    manager.wait(lambda listing: len(listing.rows) == 3 and all(row.ended for row in listing.rows))
    job = str(order.job.id)
    for row in manager.adapter.poll().rows:
        task = str(row.task)
        own = words(manager.folder / f"a 50% 00{task}.out")
        assert own == [*[task] * 6, job, job, job, "3", "7", "3", "2", "3", "7", "2"]
        # a manager's name of its node may differ from the host name
        [error] = manager.folder.glob(f"*-{task}.err")
        assert words(error) == ["%N"]
        assert error.name.partition("-")[0] not in ("", "%N")


def test_tasks_of_one_order_run_as_a_job_alone_would(manager: Manager) -> None:
    """A native array may need a wrapper that must keep environment, arguments and signals."""
    submitted = {
        "PATH": "/usr/bin:/bin",
        "UNICODE": "żółw 🐢",
        "LINES": "first\nsecond\n\nUNICODE=no",
        "QUOTES": """'single' "double" `back` $PATH \\ ; & |""",
        "BASH_FUNC_greet%%": "() {  echo hello\n}",
    }
    arguments = ("two words", "", "'", "$HOME", "a\nb", "-x", "żółw", "\\")
    order = manager.submit(
        "cat /proc/$$/environ > env.$METASCHED_TASK\n"
        'printf "%s\\0" "$@" > args.$METASCHED_TASK\n'
        "#SBATCH --hold\n"
        "case $METASCHED_TASK in 4) kill -KILL $$;; 5) exit 9;; esac",
        indices=(2, 4, 5),
        environment=submitted,
        arguments=arguments,
    )
    listing = manager.wait(
        lambda listing: len(listing.rows) == 3 and all(row.ended for row in listing.rows)
    )
    rows = {row.task: (row.state, row.exit_code, row.signal) for row in listing.rows}
    assert rows == {
        2: (State.COMPLETED, 0, None),
        4: (State.FAILED, None, signal.SIGKILL),
        5: (State.FAILED, 9, None),
    }
    for task in order.indices:
        environ = (manager.folder / f"env.{task}").read_text()
        received = dict(line.split("=", 1) for line in environ.split("\0") if line)
        assert {name: received.get(name) for name in submitted} == submitted
        content = (manager.folder / f"args.{task}").read_text()
        assert content == "".join(f"{text}\0" for text in arguments)


def test_the_script_of_tasks_is_run_by_its_interpreter_byte_for_byte(manager: Manager) -> None:
    text = "#!/usr/bin/tail -n+3\n#SBATCH --hold\n🐢 'as it is' $HOME `id` \\n %s\n"
    manager.submit("", script=text, indices=(1, 2), output=str(manager.folder / "%a"))
    manager.wait(lambda listing: [row.exit_code for row in listing.rows] == [0, 0])
    for task in "12":
        assert (manager.folder / task).read_text() == text.split("\n")[2] + "\n"


def test_tasks_withdrawn_unstarted_have_run_or_certainly_never_began(manager: Manager) -> None:
    """Tasks start meanwhile; a task absent from a listing that covers the time never started."""
    size = max(1, manager.adapter.poll().info.cpus // 4)
    before = time.time()
    order = manager.submit(
        "sleep 0.05; echo $METASCHED_TASK >> ran", indices=tuple(range(1, 25)), cpus=size
    )
    dice = random.Random(11)
    remaining = list(order.indices)
    dice.shuffle(remaining)
    for size in (3, 1, 7, 2, 5):
        chosen = [remaining.pop() for _ in range(size)]
        natives: dict[int, str | None] = dict.fromkeys(chosen)
        manager.adapter.withdraw(Withdrawal(tag=order.tag, native_ids=natives, only_pending=True))
    done = time.time()
    listing = manager.wait(
        lambda listing: listing.until >= done and all(row.ended for row in listing.rows)
    )
    rows = {row.task: row for row in listing.rows}
    started = set(map(int, words(manager.folder / "ran")))
    assert set(remaining) <= started
    assert listing.since <= before
    for task in order.indices:
        row = rows.get(task)
        if task in started:
            assert row is not None
            assert (row.state, row.exit_code) == (State.COMPLETED, 0)
        elif row is not None:
            assert (row.state, row.started) == (State.CANCELLED, None)


def test_a_reservation_is_made_as_asked_moved_and_forgotten(manager: Manager) -> None:
    if not manager.adapter.capabilities.reservations or manager.adapter.survey().pools:
        pytest.skip("keeps no nodes for windows of time")
    free = [n for use in manager.adapter.survey().nodes if use.up for n in use.nodes]
    start = round(time.time()) + 3600.0
    me, name = getpass.getuser(), manager_name(manager.instance, 1)
    first = ReservationSpec(name, me, start, start + 600, (free[0],))
    for again in range(2):  # the answer to the first may have been lost
        if again:
            manager.reconnect()
        manager.adapter.reserve(first)
        assert manager.adapter.survey().reservations == (
            ManagerReservation(name, start, start + 600, (free[0],)),
        )
    waiting = structs.replace(manager.order("true", user=me, time_limit=60.0), reservation=name)
    manager.adapter.submit(waiting)
    manager.adapter.reserve(replace(first, nodes=(free[1],)))
    [held] = manager.adapter.survey().reservations
    assert held.nodes == (free[1],)
    other = ReservationSpec(
        manager_name(manager.instance, 2), me, start + 60, start + 90, (free[1],)
    )
    with pytest.raises(Refused):
        manager.adapter.reserve(other)
    delete_reservation_of(manager, waiting, name)
    assert manager.adapter.survey().reservations == ()


def delete_reservation_of(manager: Manager, waiting: Submission, name: str) -> None:
    """Delete a reservation: refused while a job waits in it, without effect if repeated."""
    with pytest.raises(Refused) as refusal:
        manager.adapter.delete_reservation(name)
    assert refusal.value.retryable
    assert manager.wait_state(waiting, State.PENDING).started is None
    manager.withdraw(waiting)
    manager.wait_end(waiting)
    for _ in range(2):
        manager.adapter.delete_reservation(name)


def test_what_runs_takes_its_node_until_its_limit(manager: Manager) -> None:
    if not manager.adapter.capabilities.reservations or manager.adapter.survey().pools:
        pytest.skip("keeps no nodes for windows of time")
    assert not any(use.spans for use in manager.adapter.survey().nodes)
    order = manager.submit("sleep 600", time_limit=600.0)
    row = manager.wait_state(order, State.RUNNING)
    assert row.started is not None
    survey = manager.adapter.survey()
    [used] = [use for use in survey.nodes if use.spans]
    assert [end - row.started for _, end in used.spans] == [600.0]
    node = used.nodes[0]
    soon = ReservationSpec(
        manager_name(manager.instance, 1),
        getpass.getuser(),
        survey.observed + 60,
        survey.observed + 120,
        (node,),
    )
    with pytest.raises(Refused):
        manager.adapter.reserve(soon)
    manager.withdraw(order)
    manager.wait_end(order)


def test_processors_of_a_pool_are_reserved_once_and_given_back(manager: Manager) -> None:
    if not manager.adapter.capabilities.reservations or not manager.adapter.survey().pools:
        pytest.skip("keeps no processors for windows of time")
    [pool] = manager.adapter.survey().pools
    assert pool.uses == ()
    start = round(time.time()) + 3600.0
    me, name = getpass.getuser(), manager_name(manager.instance, 1)
    window = ReservationSpec(name, me, start, start + 600, (), pool.size)
    for again in range(2):  # the answer to the first may have been lost
        if again:
            manager.reconnect()
        manager.adapter.reserve(window)
        survey = manager.adapter.survey()
        assert survey.reservations == (
            ManagerReservation(name, start, start + 600, pool.nodes, pool.size),
        )
        assert survey.pools == (replace(pool, uses=((start, start + 600, pool.size),)),)
    other = ReservationSpec(manager_name(manager.instance, 2), me, start + 60, start + 90, (), 1)
    with pytest.raises(Refused):
        manager.adapter.reserve(other)
    waiting = structs.replace(manager.order("true", user=me, time_limit=60.0), reservation=name)
    manager.adapter.submit(waiting)
    delete_reservation_of(manager, waiting, name)
    survey = manager.adapter.survey()
    assert (survey.reservations, survey.pools) == ((), (pool,))


def test_what_runs_takes_its_processors_until_its_limit_unless_it_is_in_a_reservation(
    manager: Manager,
) -> None:
    if not manager.adapter.capabilities.reservations or not manager.adapter.survey().pools:
        pytest.skip("keeps no processors for windows of time")
    [pool] = manager.adapter.survey().pools
    batch = manager.submit("sleep 600", time_limit=600.0, cpus=3)
    row = manager.wait_state(batch, State.RUNNING)
    assert row.started is not None
    name, me = manager_name(manager.instance, 1), getpass.getuser()
    now = round(time.time())
    manager.adapter.reserve(ReservationSpec(name, me, now, now + 300.0, (), 2))
    order = structs.replace(manager.order("sleep 600", user=me, time_limit=60.0), reservation=name)
    manager.adapter.submit(order)
    manager.wait_state(order, State.RUNNING)
    survey = manager.adapter.survey()
    [held], [free] = survey.reservations, survey.pools
    units = -(-3 // pool.cpus)
    assert set(free.uses) == {
        (row.started, row.started + 600 + (survey.guard or 0), units),
        (held.start, now + 300.0, 2),
    }
    assert free.size == pool.size
    count = pool.size - units - 1
    soon = ReservationSpec(manager_name(manager.instance, 2), me, now + 60, now + 120, (), count)
    with pytest.raises(Refused):
        manager.adapter.reserve(soon)
    for submission in (order, batch):
        manager.withdraw(submission)
        manager.wait_end(submission)
    manager.adapter.delete_reservation(name)
    assert manager.adapter.survey().pools == (pool,)


def test_a_window_that_has_begun_long_ago_is_made_for_what_is_left_of_it(manager: Manager) -> None:
    if not manager.adapter.capabilities.reservations:
        pytest.skip("keeps nothing for windows of time")
    survey, name, now = (
        manager.adapter.survey(),
        manager_name(manager.instance, 1),
        round(time.time()),
    )
    nodes = [n for use in survey.nodes if use.up for n in use.nodes][:1]
    window = ReservationSpec(name, getpass.getuser(), now - 3600.0, now + 600.0, tuple(nodes), 1)
    manager.adapter.reserve(window)
    [held] = manager.adapter.survey().reservations
    assert (held.name, held.end) == (name, now + 600.0)
    manager.adapter.delete_reservation(name)


@pytest.mark.slow("a window of twelve seconds ends; managers take up to 30 s longer")
def test_what_waits_in_a_reservation_that_ends_never_began(manager: Manager) -> None:
    if not manager.adapter.capabilities.reservations or not manager.adapter.survey().pools:
        pytest.skip("keeps no processors for windows of time")
    name, me = manager_name(manager.instance, 1), getpass.getuser()
    now = round(time.time())
    manager.adapter.reserve(ReservationSpec(name, me, now, now + 12.0, (), 1))
    orders = [manager.order("sleep 600", user=me, time_limit=10.0) for _ in range(2)]
    for order in orders:  # the window is long enough for a single job
        manager.adapter.submit(structs.replace(order, reservation=name))
    manager.wait(
        lambda listing: (
            any(row.started and row.ended for row in listing.rows)
            and manager.adapter.survey().reservations == ()
        )
    )
    manager.adapter.delete_reservation(name)  # the manager has forgotten it
    for order in orders:  # a pending job may stay pending for ever
        manager.withdraw(order)
    ended = [manager.wait_end(order) for order in orders]
    assert State.CANCELLED in {row.state for row in ended if row.started is None}


@pytest.mark.slow("two thousand tasks are submitted and withdrawn")
def test_two_thousand_tasks_in_one_listing(manager: Manager) -> None:
    blockers = manager.fill()
    before = time.time()
    every_second = [tuple(range(first, 1000, 2)) for first in (0, 1, 0, 1)]
    orders = [manager.submit("touch ran", indices=indices) for indices in every_second]
    requested = {(order.tag, task) for order in orders for task in order.indices}

    def listed(state: State) -> set[tuple[str, int]]:
        rows = manager.adapter.poll().rows
        return {(r.tag, r.task) for r in rows if r.state is state and r.started is None}

    assert listed(State.PENDING) == requested
    assert manager.adapter.poll().info.pending_jobs == 2000
    for order in orders:
        manager.withdraw(order)
    done = time.time()
    listing = manager.wait(
        lambda listing: (
            listing.until >= done and all(row.state is not State.PENDING for row in listing.rows)
        )
    )
    assert listing.since <= before  # so that tasks absent from it never started
    assert requested - listed(State.CANCELLED) <= {
        (order.tag, min(order.indices)) for order in orders
    }
    for blocker in blockers:
        manager.withdraw(blocker)
        manager.wait_end(blocker)
    assert not (manager.folder / "ran").exists()


@pytest.mark.slow("two hundred jobs run")
def test_two_hundred_jobs_in_one_listing_each_run_once(manager: Manager) -> None:
    orders = [manager.submit(f"echo {n} >> ran", time_limit=60.0) for n in range(200)]
    listing = manager.wait(
        lambda listing: len(listing.rows) == 200 and all(row.ended for row in listing.rows), 200
    )
    assert {row.tag for row in listing.rows} == {order.tag for order in orders}
    assert {(row.state, row.exit_code) for row in listing.rows} == {(State.COMPLETED, 0)}
    assert sorted(map(int, words(manager.folder / "ran"))) == list(range(200))
