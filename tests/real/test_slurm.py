"""Behaviour specific to Slurm: stopped and killed controllers, other users' jobs, races."""

from __future__ import annotations

import ctypes
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from metasched.adapters.base import Submission, Withdrawal
from metasched.adapters.slurm.adapter import Slurm, SlurmOptions
from metasched.adapters.slurm.error_texts import CONTROLLER_ERRORS, TRANSPORT_ERRORS
from metasched.core.transitions import ATTEMPT_FINAL
from metasched.model.adapter_errors import PartlySubmitted, Refused, Unreachable
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Payload, State
from metasched.model.listing import JobStatus, Listing
from metasched.model.tags import tag_of
from tests.conftest import require
from tests.harness.looks import looks
from tests.harness.slurm import SEARCH_PATH, ClusterSpec, SlurmCluster, SlurmSite, missing

ROOT = Path(__file__).parents[2]


class Client:
    """An adapter with its own instance on one cluster, and its submissions."""

    def __init__(self, cluster: SlurmCluster, folder: Path, **options: Any) -> None:
        self.cluster, self.folder, self.instance = cluster, folder, uuid.uuid4().hex[:8]
        self.adapter = Slurm(
            Cluster(name=cluster.name, adapter="slurm"),
            SlurmOptions(config=str(cluster.conf), **options),
            self.instance,
            folder,
        )
        self._jobs = 0

    def order(
        self, commands: str, *, indices: tuple[int, ...] = (0,), options: str = "", **job: Any
    ) -> Submission:
        self._jobs += 1
        return Submission(
            tag=tag_of(self.instance, self._jobs, 1),
            job=Job(id=self._jobs, submitted=time.time(), estimated=60.0, **job),
            payload=Payload(
                script=f"#!/bin/sh\n{commands}\n",
                environment={"PATH": "/usr/bin:/bin"},
                directory=str(self.folder),
            ),
            indices=indices,
            options=tuple(options.split()),
        )

    def submit(self, commands: str, **fields: Any) -> Submission:
        order = self.order(commands, **fields)
        self.adapter.submit(order)
        return order

    def withdraw(
        self, order: Submission, native: str | None = None, unstarted: bool = False
    ) -> None:
        self.adapter.withdraw(
            Withdrawal(tag=order.tag, native_ids={0: native}, only_pending=unstarted)
        )

    def row(self, order: Submission) -> JobStatus | None:
        rows = [row for row in self.adapter.poll().rows if row.tag == order.tag]
        assert len(rows) <= 1
        return rows[0] if rows else None

    def wait_row(self, order: Submission, *states: State) -> JobStatus:
        def is_listed(listing: Listing) -> bool:
            return any(row.tag == order.tag and row.state in states for row in listing.rows)

        listing = self.wait(is_listed)
        return next(row for row in listing.rows if row.tag == order.tag)

    def wait(self, condition: Callable[[Listing], bool], seconds: float = 120.0) -> Listing:
        for _ in looks(seconds):
            listing = self.adapter.poll()
            if condition(listing):
                return listing
        raise AssertionError(listing)


def batch(cluster: SlurmCluster, *options: str) -> str:
    return cluster.run(
        *("sbatch", "--parsable", "--output=/dev/null", *options), stdin="#!/bin/sh\nsleep 300\n"
    ).strip()


@pytest.fixture(scope="module")
def slurm_site(slurm_site_for_faults: SlurmSite) -> SlurmSite:
    return slurm_site_for_faults


@pytest.fixture
def alpha(slurm_site: SlurmSite) -> Iterator[SlurmCluster]:
    """Yield the cluster alpha, without jobs."""
    cluster = slurm_site["alpha"]
    cluster.empty()
    yield cluster
    cluster.empty()


@pytest.fixture
def client(alpha: SlurmCluster, tmp_path: Path) -> Client:
    return Client(alpha, tmp_path, settle=0.5)


# The controller.


def test_a_stopped_controller_is_unreachable_in_time_and_comes_back(
    alpha: SlurmCluster, client: Client, tmp_path: Path
) -> None:
    hasty = Client(alpha, tmp_path, timeout=1.0)
    before = client.submit("sleep 300")
    alpha.stop_controller()
    try:
        for call in (
            hasty.adapter.poll,
            lambda: hasty.submit("true"),
            lambda: hasty.withdraw(before),
            lambda: hasty.withdraw(before, unstarted=True),
        ):
            # Slurm itself would block for nine seconds, and then fail with a message of its own
            with pytest.raises(Unreachable, match="no answer within 1 s"):
                call()
    finally:
        alpha.start_controller()
    assert client.wait_row(before, State.RUNNING).started is not None


def test_after_a_crash_a_listing_proves_nothing_of_the_time_before(
    alpha: SlurmCluster, client: Client
) -> None:
    client.wait(lambda listing: listing.since < listing.until)
    client.submit("true")
    accepted = time.time()
    alpha.kill_controller()
    alpha.start_controller()
    listing = client.adapter.poll()
    assert listing.since > accepted
    settled = client.wait(lambda listing: listing.until > listing.since)
    assert settled.since == pytest.approx(listing.since, abs=1.5)


def test_a_restart_in_order_loses_nothing(alpha: SlurmCluster, client: Client) -> None:
    waiting = client.submit("true", options="--begin=now+1hour")
    running = client.submit("while [ ! -e go ]; do sleep 0.05; done; exit 3")
    client.wait_row(running, State.RUNNING)
    alpha.stop_controller()
    (client.folder / "go").touch()
    time.sleep(0.3)
    alpha.start_controller()
    assert client.wait_row(running, State.FAILED).exit_code == 3
    row = client.wait_row(waiting, State.PENDING)
    assert (row.started, row.manager_reason) == (None, "BeginTime")


def test_commands_die_with_the_process_that_called_them(
    alpha: SlurmCluster, tmp_path: Path
) -> None:
    caller = f"""
import sys
from pathlib import Path
from metasched.adapters.slurm.adapter import Slurm, SlurmOptions
from metasched.model.cluster import Cluster
options = SlurmOptions(config={str(alpha.conf)!r}, timeout=60.0)
Slurm(Cluster(name="alpha", adapter="slurm"), options, "abcd", Path("/")).poll()
"""
    os.kill(alpha.controller, signal.SIGSTOP)
    try:
        worker = subprocess.Popen([sys.executable, "-c", caller], cwd=ROOT)
        children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children")

        def command() -> Path | None:
            processes = [Path("/proc") / pid for pid in children.read_text().split()]
            return next((p for p in processes if (p / "comm").read_text() == "squeue\n"), None)

        end = time.monotonic() + 60
        while (squeue := command()) is None:
            assert time.monotonic() < end
            time.sleep(0.02)
        worker.kill()
        worker.wait()
        while (squeue / "exe").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        os.kill(alpha.controller, signal.SIGCONT)


# Submitting.


def test_directives_in_the_script_are_not_read_again(client: Client) -> None:
    directives = "#SBATCH --array=1-9\n#SBATCH --hold\n#SLURM\n\n # c\n#PBS -N y\n#BSUB -W 8"
    order = client.submit(f"{directives}\nsed -n '2p;10,$p' $0 > seen\n#SBATCH --hold\n# end")
    assert client.wait_row(order, *ATTEMPT_FINAL).state is State.COMPLETED
    assert (client.folder / "seen").read_text() == ("# SBATCH --array=1-9\n#SBATCH --hold\n# end\n")


@pytest.mark.parametrize("name", ["100%.%j.txt", "back\\slash %j.txt", "%", "a\\\\b%%"])
def test_output_paths_are_literal(client: Client, name: str) -> None:
    order = client.order("echo here")
    payload = Payload(
        script="#!/bin/sh\necho here\n",
        directory="/",
        output=str(client.folder / name).replace("%", "%%"),
    )
    order = Submission(tag=order.tag, job=order.job, payload=payload)
    client.adapter.submit(order)
    client.wait_row(order, State.COMPLETED)
    assert [path.name for path in client.folder.iterdir()] == [name]


@pytest.mark.parametrize(
    "name", ["plain", "two\nlines\t'\" `id` $HOME", "żółw 🐢" * 2500, "-x", "--wrap=true", "a\0b"]
)
def test_any_name_is_carried_as_far_as_slurm_can(client: Client, name: str) -> None:
    order = client.submit("true", name=name)
    assert client.wait_row(order, State.COMPLETED).exit_code == 0


def test_variables_name_the_running_task(client: Client) -> None:
    show = "echo $METASCHED_JOB_ID $METASCHED_TAG $METASCHED_CLUSTER $METASCHED_CPUS $PWD"
    order = client.submit(
        f"{show} $SLURM_SUBMIT_DIR > task.$METASCHED_TASK", indices=(2, 5), cpus=3
    )
    listing = client.wait(lambda listing: [row.state for row in listing.rows] == ["completed"] * 2)
    assert {row.task for row in listing.rows} == {2, 5}
    for task in (2, 5):
        text = (client.folder / f"task.{task}").read_text().split()
        assert text == [f"{order.job.id}", order.tag, "alpha", "3", *[str(client.folder)] * 2]


@pytest.mark.parametrize(
    "fields",
    [
        {"partition": "nope"},
        {"constraint": "nope"},
        {"gres": {"nope": 1}},
        {"gres": {"gpu": 9}},
        {"partition": "a\0b"},
        {"name": "x", "options": "--frobnicate"},
        {"options": "--array=1-3"},
        {"options": "--arr=1-3"},
        {"options": "-Hva1-3"},
        {"options": "-a 1-3"},
        {"options": "--comment=mine"},
        {"options": "--wrap=true"},
        {"options": "-W"},
        {"options": "-Q"},
        {"options": "--exclude a1 another.sh"},
        {"options": "-- another.sh"},
        {"options": ": -n 2"},
        {"options": "--licenses=nope"},
        {"options": "--time=never"},
        {"options": "--mem-bind=foo"},
        {"options": "--mem=999999999"},
        {"options": "--gres=a:b:c:d"},
        {"options": "--priority=-1"},
    ],
)
def test_what_slurm_cannot_do_is_refused_for_good(client: Client, fields: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refusal:
        client.submit("true", **fields)
    assert refusal.value.retryable is False
    assert refusal.value.reason
    assert all(row.started is None for row in client.adapter.poll().rows)


@pytest.mark.parametrize("script", ["", "true\n", "#!/bin/sh\r\ntrue\r\n", "#!/bin/sh\n\0\n", "\n"])
def test_what_is_no_script_is_refused(client: Client, script: str) -> None:
    order = client.order("")
    with pytest.raises(Refused) as refusal:
        client.adapter.submit(
            Submission(tag=order.tag, job=order.job, payload=Payload(script=script))
        )
    assert refusal.value.retryable is False
    assert client.adapter.poll().rows == ()


def test_error_texts_are_those_of_the_installed_release() -> None:
    """Compare with slurm_strerror of the library that Slurm's own commands load."""
    linked = subprocess.run(
        ["ldd", shutil.which("sbatch", path=SEARCH_PATH) or "sbatch"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    [path] = re.findall(r"=> (\S*libslurmfull\S*)", linked)
    library = ctypes.CDLL(path)
    library.slurm_strerror.restype = ctypes.c_char_p
    for errors, ranges in (
        (CONTROLLER_ERRORS, [range(2000, 3000)]),
        (TRANSPORT_ERRORS, [range(1000, 2000), range(5000, 7000)]),
    ):
        known = set(errors)
        for number in (n for numbers in ranges for n in numbers):
            said = library.slurm_strerror(number).decode()
            if said != f"Unknown error {number}":
                assert (number, said) in known


def test_native_options_are_passed_on(client: Client) -> None:
    order = client.submit("true", options="--begin now+1hour --nice=7 -w a2 -vH")
    output = client.cluster.run("squeue", "-h", "-O", "nice:|,reqnodes:|,comment:|").strip()
    assert output == f"7|a2|{order.tag}|"


def test_a_partition_that_is_down_may_take_the_job_later(client: Client) -> None:
    client.cluster.run("scontrol", "update", "partitionname=short", "state=drain")
    try:
        with pytest.raises(Refused) as refusal:
            client.submit("true", partition="short")
        assert refusal.value.retryable
        partition = client.adapter.poll().info.partition("short")
        assert partition is not None
        assert not partition.up
    finally:
        client.cluster.run("scontrol", "update", "partitionname=short", "state=up")


def test_a_full_queue_refuses_for_now_and_at_once(tmp_path: Path) -> None:
    if (reason := missing()) is not None:
        require("slurm", reason)
    tiny = ClusterSpec("tiny", "t", nodes=1, cpus=1, settings=("MaxJobCount=4",))
    with SlurmSite(tmp_path / "site", [tiny]) as site:
        client = Client(site["tiny"], tmp_path)
        first = client.submit("true", options="--hold", indices=(1, 2))
        with pytest.raises(PartlySubmitted) as stopped:
            client.submit("true", options="--hold", indices=(1, 2))
        assert set(stopped.value.native_ids) == {1}
        assert stopped.value.untried == (2,)
        with pytest.raises(Refused) as refusal:  # sbatch itself would retry until the timeout
            client.submit("true", options="--hold")
        assert refusal.value.retryable
        rows = client.adapter.poll().rows
        assert [(row.tag, row.task) for row in rows if row.tag == first.tag] in (
            [(first.tag, 1), (first.tag, 2)],
            [(first.tag, 2), (first.tag, 1)],
        )
        assert len(rows) == 3


def test_what_scancel_says_of_a_forgotten_array_is_no_evidence(tmp_path: Path) -> None:
    """Slurm finds an array by its id modulo MaxJobCount, and then compares no id."""
    if (reason := missing()) is not None:
        require("slurm", reason)
    tiny = ClusterSpec("tiny", "t", nodes=1, cpus=4, settings=("MaxJobCount=20",))
    with SlurmSite(tmp_path / "site", [tiny]) as site:
        client, cluster = Client(site["tiny"], tmp_path), site["tiny"]
        order = client.submit("sleep 300", indices=(1, 2), array="1-2")
        rows = client.wait(lambda listing: all(row.started for row in listing.rows)).rows
        array = int(str(rows[0].native_id).partition("_")[0])
        forgotten, unknown = str(array + 20), str(array + 21)
        answers = {
            id: subprocess.run(
                ["scancel", "-v", id],
                env=cluster.environment,
                capture_output=True,
                text=True,
                check=False,
            ).stderr
            for id in (forgotten, unknown)
        }
        assert "already completing or completed" in answers[forgotten]
        assert "Invalid job id specified" in answers[unknown]
        # the adapter takes neither as the end of a job, and neither ends another job
        commands = client.adapter._access_as(order.payload.environment.get("USER", ""))
        commands.cancel([forgotten, unknown])
        rows = client.adapter.poll().rows
        assert {row.state for row in rows} == {State.RUNNING}
        natives = {row.task: row.native_id for row in rows}
        client.adapter.withdraw_all([Withdrawal(tag=order.tag, native_ids=natives)])
        client.wait(lambda listing: all(row.state is State.CANCELLED for row in listing.rows))


def test_a_job_longer_than_a_minute_keeps_its_limit_in_whole_minutes(client: Client) -> None:
    client.submit("true", options="--hold", time_limit=61.0)
    client.submit("true", options="--hold", time_limit=0.5)
    output = client.cluster.run("squeue", "-h", "-S", "i", "-o", "%l").split()
    assert output == ["2:00", "1:00"]


# Withdrawing.


@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
def test_a_native_id_that_slurm_gave_to_another_user_is_left_alone(
    client: Client, state: str
) -> None:
    lost = client.order("true")
    native = batch(client.cluster, *(["--begin=now+1hour"] if state == "PENDING" else []))

    def job_fields() -> list[str]:
        return client.cluster.run("squeue", "-h", "-O", "jobid:|,state:|,priority:|").split("|")

    client.wait(lambda _: state in job_fields())
    before = job_fields()
    client.withdraw(lost, native)
    client.withdraw(lost, native, unstarted=True)
    client.withdraw(lost)
    time.sleep(0.3)
    assert job_fields() == before


def test_withdrawing_the_unstarted_never_ends_what_has_begun(client: Client) -> None:
    """Jobs keep starting while others are withdrawn."""
    script = "echo begun >> $METASCHED_JOB_ID; sleep 0.05; echo ended >> $METASCHED_JOB_ID"
    orders = [client.submit(script, cpus=16) for _ in range(48)]
    dice = random.Random(3)
    for order in dice.sample(orders, len(orders)):
        client.withdraw(order, unstarted=True)
    listing = client.wait(lambda listing: all(row.state in ATTEMPT_FINAL for row in listing.rows))
    rows = {row.tag: row for row in listing.rows}
    for order in orders:
        story = client.folder / str(order.job.id)
        row = rows[order.tag]
        if story.exists():
            assert story.read_text().split() == ["begun", "ended"], row
            assert (row.state, row.exit_code) == (State.COMPLETED, 0)
            assert row.started is not None
        else:
            assert (row.state, row.started) == (State.CANCELLED, None), row


def test_a_withdrawn_script_gets_term_and_time_and_then_kill(client: Client) -> None:
    trap = "trap 'sleep 0.3; echo bye > kind; exit 4' TERM"
    obedient = client.submit(f"{trap}; : > trapped; sleep 300 & wait")
    stubborn = client.submit("trap '' TERM; : > stubborn; while :; do sleep 0.1; done")
    ready = [client.folder / "trapped", client.folder / "stubborn"]
    client.wait(lambda _: all(file.exists() for file in ready))
    for order in (obedient, stubborn):
        client.wait_row(order, State.RUNNING)
        client.withdraw(order)
    # cancelled at once; the exit code follows when the script has ended
    listing = client.wait(lambda listing: any(row.exit_code == 4 for row in listing.rows))
    row = next(row for row in listing.rows if row.tag == obedient.tag)
    assert (row.state, row.signal) == (State.CANCELLED, None)
    assert (client.folder / "kind").read_text() == "bye\n"
    row = client.wait_row(stubborn, State.CANCELLED)
    assert (row.exit_code, row.signal) == (None, signal.SIGKILL)


def test_what_slurm_has_requeued_has_begun(client: Client) -> None:
    order = client.submit("echo run >> runs; sleep 300", requeue=True)
    row = client.wait_row(order, State.RUNNING)
    client.cluster.run("scontrol", "requeue", row.native_id)
    row = client.wait_row(order, State.PENDING)
    assert row.started is not None
    client.withdraw(order, unstarted=True)
    row = client.wait_row(order, State.PENDING)
    client.withdraw(order)
    row = client.wait_row(order, State.CANCELLED)
    assert row.started is not None


def test_slurm_does_not_requeue_by_itself(client: Client) -> None:
    order = client.submit("echo run >> runs; sleep 300")
    row = client.wait_row(order, State.RUNNING)
    client.cluster.run("scontrol", "update", f"nodename={row.node}", "state=down", "reason=test")
    try:
        row = client.wait_row(order, State.NODE_FAIL)
        assert (row.exit_code, row.signal) == (None, None)
        assert row.started is not None
    finally:
        client.cluster.wait_ready()  # the node registers again by itself
    assert (client.folder / "runs").read_text() == "run\n"


# Arrays.


def test_tasks_of_one_order_are_one_array_as_far_as_slurm_has_numbers(client: Client) -> None:
    order = client.order("true", indices=(3, 5, 7, 2000), array="3,5,7,2000", options="--hold")
    natives = client.adapter.submit(order)
    array = natives[3].partition("_")[0]
    assert natives == {3: f"{array}_3", 5: f"{array}_5", 7: f"{array}_7", 2000: natives[2000]}
    assert natives[2000].isdecimal()
    rows = {row.task: row.native_id for row in client.adapter.poll().rows}
    assert rows == natives


def test_withdrawn_tasks_of_an_array_each_keep_a_record(client: Client) -> None:
    """Slurm drops tasks that are cancelled while pending, unless each was held separately."""
    order = client.order(
        "true", indices=(1, 2, 3, 4, 5, 6), array="1,2,3,4,5,6", options="--begin=now+1hour"
    )
    natives = client.adapter.submit(order)
    array = natives[1].partition("_")[0]
    client.adapter.withdraw(
        Withdrawal(tag=order.tag, native_ids={2: natives[2], 3: None}, only_pending=True)
    )
    client.cluster.run("scancel", f"{array}_5")  # not by the adapter
    rows = {row.task: row for row in client.adapter.poll().rows}
    assert set(rows) == {1, 2, 3, 4, 6}
    assert {rows[task].state for task in (2, 3)} == {State.CANCELLED}
    assert {rows[task].state for task in (1, 4, 6)} == {State.PENDING}
    client.adapter.withdraw(Withdrawal(tag=order.tag, native_ids=natives, only_pending=True))
    rows = {row.task: row for row in client.adapter.poll().rows}
    assert {(row.state, row.started) for row in rows.values()} == {(State.CANCELLED, None)}
    assert set(rows) == {1, 2, 3, 4, 6}


@pytest.mark.parametrize("unstarted", [True, False])
def test_a_withdrawal_that_died_after_its_hold_is_finished_by_the_next(
    client: Client, unstarted: bool
) -> None:
    order = client.order("true", indices=(1, 2, 3), array="1,2,3", options="--begin=now+1hour")
    natives = client.adapter.submit(order)
    client.cluster.run("scontrol", "hold", f"{natives[1].partition('_')[0]}_[1-2]")
    request = Withdrawal(tag=order.tag, native_ids=dict.fromkeys(natives), only_pending=unstarted)
    client.adapter.withdraw(request)
    states = {row.task: row.state for row in client.adapter.poll().rows}
    assert states == dict.fromkeys((1, 2, 3), State.CANCELLED)


def test_a_cluster_without_arrays_is_sent_tasks_one_by_one(tmp_path: Path) -> None:
    if (reason := missing()) is not None:
        require("slurm", reason)
    spec = ClusterSpec("tiny", "t", nodes=1, cpus=1, settings=("MaxArraySize=0",))
    with SlurmSite(tmp_path / "site", [spec]) as site:
        client = Client(site["tiny"], tmp_path)
        natives = client.adapter.submit(client.order("true", indices=(1, 2), array="1-2"))
        assert all(native.isdecimal() for native in natives.values())
        listing = client.wait(lambda listing: all(row.ended for row in listing.rows))
        assert {row.task: row.native_id for row in listing.rows} == natives


# Cluster info.


def test_other_peoples_work_is_in_the_facts(alpha: SlurmCluster, client: Client) -> None:
    for _ in range(4):
        batch(alpha, "--cpus-per-task=16", "--time=30")
    client.wait(lambda listing: listing.info.used_cpus == 64)
    batch(alpha, "--ntasks=3", "--time=20", "--comment=a|b\nc, with\nlines")
    batch(alpha, "--array=1-9:2%2", "--ntasks=2", "--time=10")
    batch(alpha, "--ntasks=2")  # the partition's default: ten minutes
    for cannot_start in (
        ["--hold"],
        ["--begin=now+1hour"],
        ["--dependency=singleton", "--job-name=one", "--hold"],
        ["--ntasks=640"],
        ["--partition=short", "--time=600"],
        ["--array=1-900", "--hold"],
    ):
        batch(alpha, *cannot_start)
    client.submit("true", cpus=5, time_limit=1200.0)
    listing = client.wait(lambda listing: listing.info.pending_jobs == 8)
    facts = listing.info
    assert [cpus for _, cpus in facts.running_jobs] == [16] * 4
    assert all(0 < end - time.time() <= 1800 for end, _ in facts.running_jobs)
    assert facts.owed_by_others == 3 * 1200 + 5 * 2 * 600 + 2 * 600
    assert facts.queue_head == (3, 1200.0)
    assert len(listing.rows) == 1


def test_partitions_and_their_limits(client: Client) -> None:
    facts = client.adapter.poll().info
    main, short = facts.partition(None), facts.partition("short")
    assert main is not None
    assert short is not None
    assert (main.name, main.max_time, main.default_time, main.max_nodes) == (
        *("main", 86400.0, 600.0),
        None,
    )
    assert (short.name, short.max_time, short.default_time, short.max_nodes) == (
        *("short", 1800.0),
        *(None, 2),
    )
    assert (main.default, short.default) == (True, False)
    assert {(n.count, n.cpus, n.memory, n.gres.get("gpu", 0)) for n in main.nodes} == {
        (3, 16, 65536, 0),
        (1, 16, 65536, 2),
    }
    assert facts.cpus == 64


def test_a_drained_node_is_listed_but_not_counted(client: Client) -> None:
    order = client.submit("sleep 300", cpus=3, options="--nodelist=a4")
    client.wait_row(order, State.RUNNING)
    client.cluster.run("scontrol", "update", "nodename=a[3-4]", "state=drain", "reason=test")
    try:
        facts = client.adapter.poll().info
        assert (facts.cpus, facts.used_cpus) == (32, 0)
        assert facts.running_jobs[0][1] == 3
        down = [nodes for nodes in facts.partitions[0].nodes if not nodes.up]
        assert {(n.cpus, n.free_cpus, n.free_memory) for n in down} == {(16, 0, 0)}
        assert sorted(n.gres.get("gpu", 0) for n in down) == [0, 2]
        assert {n.free_gres.get("gpu", 0) for n in down} == {0}
    finally:
        client.cluster.run("scontrol", "update", "nodename=a[3-4]", "state=resume")


def test_more_than_a_partition_has_is_refused_although_slurm_would_wait(client: Client) -> None:
    client.adapter.poll()
    with pytest.raises(Refused, match="main has 64 processors, not 65") as refusal:
        client.submit("true", cpus=65)
    assert refusal.value.retryable is False
    batch(client.cluster, "--ntasks=65")
    listing = client.wait(lambda _: "PartitionConfig" in client.cluster.run("squeue", "-o%r"))
    assert (listing.info.pending_jobs, listing.info.owed_by_others, listing.info.queue_head) == (
        0,
        0,
        None,
    )


def test_the_tag_may_be_in_the_name(alpha: SlurmCluster, tmp_path: Path) -> None:
    client = Client(alpha, tmp_path, tag_field="name")
    order = client.submit("exit 6", name="")
    assert client.wait_row(order, State.FAILED).exit_code == 6
    other = client.submit("sleep 300", name="theirs", indices=(4,))
    client.adapter.withdraw(Withdrawal(tag=other.tag, native_ids={4: None}))
    assert client.wait_row(other, State.CANCELLED).task == 4


def test_a_wrong_bin_dir_is_unreachable(alpha: SlurmCluster, tmp_path: Path) -> None:
    client = Client(alpha, tmp_path, bin_dir="/nonexistent")
    with pytest.raises(Unreachable, match="/nonexistent/squeue"):
        client.adapter.poll()


def test_a_cluster_whose_reservations_cannot_be_read_is_not_silent(
    alpha: SlurmCluster, tmp_path: Path
) -> None:
    """Its commands work, but the reservations have a format of no known release."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "squeue", "sinfo", "scancel", "scontrol"):
        real = shutil.which(name)
        (folder / name).write_text(
            '#!/bin/sh\ncase "$*" in\n*"show reservation"*) echo ReservationName=x ;;\n'
            f'*) exec {real} "$@" ;;\nesac\n'
        )
        (folder / name).chmod(0o755)
    listing = Client(alpha, tmp_path, bin_dir=str(folder)).adapter.poll()
    assert listing.info is not None
    assert (listing.info.cpus > 0, listing.info.upcoming_windows) == (True, ())
