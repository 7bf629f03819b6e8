"""Jobs that Slurm no longer lists: what its accounting reports and proves."""

from __future__ import annotations

import getpass
import math
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec import structs

from metasched.adapters.base import Submission, Withdrawal
from metasched.adapters.slurm.adapter import Slurm, SlurmOptions
from metasched.model.adapter_errors import Unreachable
from metasched.model.cluster import Cluster
from metasched.model.fair_share import MIN_WEIGHT
from metasched.model.foreign_use import UseQuery
from metasched.model.job import Job, Payload, State
from metasched.model.job_usage import EndedRun
from metasched.model.listing import AccountingAnswer, Listing, MissingTask
from metasched.model.tags import tag_of
from tests.conftest import require
from tests.harness.daemons import wait_until
from tests.harness.slurm import ClusterSpec, SlurmCluster, SlurmSite, accounting_missing, missing
from tests.harness.worker_adapter import WorkerAdapter

PATIENCE = 180.0
LONG_AGO = (
    "JobId=3 UserId=ada(1000) GroupId=ada(1000) Name=x JobState=COMPLETED Partition=main "
    "TimeLimit=10 StartTime=2020-01-01T00:00:00 EndTime=2020-01-01T00:00:01 NodeList=a1 NodeCnt=1 "
    "ProcCnt=1 WorkDir=/ ReservationName= Tres=cpu=1 Account= QOS= WcKey= Cluster=unknown "
    "SubmitTime=2020-01-01T00:00:00 EligibleTime=2020-01-01T00:00:00 DerivedExitCode=0:0 "
    "ExitCode=0:0 \n"
)
FORGETFUL = ("MinJobAge=2",)
MEASURING = ("JobAcctGatherType=jobacct_gather/linux", "JobAcctGatherFrequency=1")


@dataclass
class Client:
    """An adapter in a worker beside the cluster, and its submissions with their times."""

    cluster: SlurmCluster
    folder: Path
    tag_field: str = "comment"
    accounting_source: str = ""
    instance: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    sent: dict[str, tuple[float, Mapping[int, str], float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.adapter = WorkerAdapter(
            Cluster(name=self.cluster.name, adapter="slurm"),
            SlurmOptions(
                config=str(self.cluster.conf),
                tag_field=self.tag_field,  # type: ignore[arg-type]
                settle=0.5,
            ),
            self.instance,
            self.folder,
            Slurm.capabilities,
            [*self.cluster.inside, sys.executable],
            {},
        )

    def submit(
        self, commands: str, array: str | None = None, name: str = "", options: str = ""
    ) -> Submission:
        number = len(self.sent) + 1
        job = Job(id=number, submitted=time.time(), estimated=60.0, array=array, name=name)
        order = Submission(
            tag=tag_of(self.instance, number, 1),
            job=job,
            payload=Payload(script=f"#!/bin/sh\n{commands}\n", directory=str(self.folder)),
            indices=job.indices,
            options=tuple(options.split()),
        )
        begun = time.time()
        natives = self.adapter.submit(order)
        self.sent[order.tag] = (begun, natives, time.time())
        return order

    def missing(self, order: Submission, acknowledged: bool = True) -> list[MissingTask]:
        """Return the tasks as the core would query them, or as if no answer had come."""
        begun, natives, accepted = self.sent[order.tag]
        if not acknowledged:
            return [MissingTask(order.tag, task, None, begun) for task in order.indices]
        return [
            MissingTask(order.tag, task, native, begun, accepted)
            for task, native in natives.items()
        ]

    def withdraw(self, order: Submission) -> None:
        self.adapter.withdraw(Withdrawal(tag=order.tag, native_ids=self.sent[order.tag][1]))

    def boot(self) -> float:
        """Return when the controller started."""
        output = self.cluster.run("scontrol", "show", "config", SLURM_TIME_FORMAT="%s")
        return float(next(x.split()[2] for x in output.splitlines() if x.startswith("BOOT_TIME")))

    def up_for_a_while(self) -> None:
        """Wait until the controller has been up for longer than the clock tolerance."""
        while time.time() < self.boot() + 4:
            time.sleep(0.2)

    def wait_state(self, order: Submission, state: State) -> None:
        self.wait(
            lambda listing: any(r.tag == order.tag and r.state is state for r in listing.rows)
        )

    def wait(self, condition: Callable[[Listing], bool]) -> Listing:
        end = time.monotonic() + PATIENCE
        while not condition(listing := self.adapter.poll()):
            assert time.monotonic() < end, listing
            time.sleep(0.1)
        return listing

    def forgotten(self, *orders: Submission) -> None:
        tags = {order.tag for order in orders}
        self.wait(lambda listing: tags.isdisjoint(row.tag for row in listing.rows))

    def traced(self, missing_tasks: Sequence[MissingTask], rows: int) -> AccountingAnswer:
        """Return the answer once it has that many rows: slurmdbd learns of an end a bit later."""
        return self._answer(missing_tasks, lambda answer: len(answer.rows) == rows)

    def proved(self, missing_tasks: Sequence[MissingTask]) -> AccountingAnswer:
        """Return the answer once it settles all tasks: a new job may have no record yet."""
        return self._answer(
            missing_tasks,
            lambda answer: len(answer.rows) + len(answer.never_started) == len(missing_tasks),
        )

    def _answer(
        self, missing_tasks: Sequence[MissingTask], is_whole: Callable[[AccountingAnswer], bool]
    ) -> AccountingAnswer:
        end = time.monotonic() + PATIENCE
        while True:
            answer = self.adapter.query_accounting(missing_tasks)
            if is_whole(answer):
                return answer
            assert time.monotonic() < end, answer
            time.sleep(0.1)


@pytest.fixture(scope="module")
def with_slurmdbd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Yield a cluster with slurmdbd; its controller soon forgets ended jobs."""
    if (reason := missing() or accounting_missing()) is not None:
        require("slurm", reason)
    folder = tmp_path_factory.mktemp("accounted")
    spec = ClusterSpec("alpha", "a", nodes=2, cpus=8, settings=(*FORGETFUL, *MEASURING))
    with SlurmSite(folder, [spec], accounting=True) as site:
        yield site["alpha"]


@pytest.fixture(scope="module")
def with_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Yield a cluster with jobcomp/filetxt; its controller soon forgets ended jobs."""
    if (reason := missing()) is not None:
        require("slurm", reason)
    folder = tmp_path_factory.mktemp("completions")
    lines = ("JobCompType=jobcomp/filetxt", f"JobCompLoc={folder / 'completions'}")
    (folder / "completions").write_text(LONG_AGO)  # proves nothing before its first job
    spec = ClusterSpec("alpha", "a", nodes=2, cpus=8, settings=(*FORGETFUL, *lines))
    with SlurmSite(folder, [spec]) as site:
        yield site["alpha"]


KINDS = {
    "sacct, by submit line": ("with_slurmdbd", "comment"),
    "sacct, by name": ("with_slurmdbd", "name"),
    "jobcomp/filetxt, by id and time of submission": ("with_file", "comment"),
    "jobcomp/filetxt, by wckey": ("with_file", "wckey"),
}


@pytest.fixture(params=list(KINDS))
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    cluster, tag_field = KINDS[request.param]
    new_client = Client(request.getfixturevalue(cluster), tmp_path, tag_field, request.param)
    new_client.cluster.empty()
    new_client.up_for_a_while()
    try:
        yield new_client
    finally:
        new_client.adapter.close()


def test_ids_of_a_federation_are_higher(with_slurmdbd: SlurmCluster, tmp_path: Path) -> None:
    def highest_id(folder: str) -> int | None:
        """Return what a new worker reports, which asks for the federation at once."""
        (tmp_path / folder).mkdir()
        client = Client(with_slurmdbd, tmp_path / folder)
        try:
            return client.adapter.poll().info.max_native_id
        finally:
            client.adapter.close()

    assert highest_id("alone") == 67043328
    with_slurmdbd.run("sacctmgr", "-i", "add", "federation", "all", "clusters=alpha")
    try:
        deadline = time.monotonic() + PATIENCE
        while "Federation: all" not in with_slurmdbd.run("scontrol", "show", "federation"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert highest_id("federated") == 2**32 - 1
    finally:
        with_slurmdbd.run("sacctmgr", "-i", "delete", "federation", "all")


@pytest.mark.slow("a controller runs for some seconds, then forgets ended jobs (MinJobAge)")
def test_each_end_is_reported_as_in_a_listing(client: Client) -> None:
    ends = {
        "exit 0": (State.COMPLETED, 0, None),
        "exit 3": (State.FAILED, 3, None),
        "kill -KILL $$": (State.FAILED, None, signal.SIGKILL),
    }
    orders = [client.submit(commands, name="two words Name=x") for commands in ends]
    array = client.submit("exit $METASCHED_TASK", array="0-4:2")
    running, runs_on = client.submit("sleep 300"), client.submit("sleep 300")
    client.wait_state(running, State.RUNNING)
    client.withdraw(running)
    client.forgotten(*orders, array, running)

    assert client.adapter.poll().info.accounting_source == client.accounting_source
    missing_tasks = [
        missing_task
        for order in (*orders, array, running)
        for missing_task in client.missing(order)
    ]
    rows = {
        (row.tag, row.task): row for row in client.traced(missing_tasks, len(missing_tasks)).rows
    }
    for order, end in zip(orders, ends.values(), strict=True):
        row = rows[order.tag, 0]
        assert (row.state, row.exit_code, row.signal) == end
        assert row.native_id == client.sent[order.tag][1][0]
        assert row.started is not None
        assert row.ended is not None
        assert client.sent[order.tag][0] - 2 <= row.started <= row.ended <= time.time()
        assert row.node
    assert {task: rows[array.tag, task].exit_code for task in (0, 2, 4)} == {0: 0, 2: 2, 4: 4}
    assert rows[running.tag, 0].state is State.CANCELLED
    assert rows[running.tag, 0].started is not None

    # An id that another job has now does not identify the task.
    earlier = client.sent[orders[1].tag][0] - 60
    native = client.sent[orders[1].tag][1][0]
    reused_id = MissingTask(tag_of(client.instance, 97, 1), 0, native, earlier, earlier + 1)
    assert client.adapter.query_accounting([reused_id]).rows == ()
    # A running job has no end; slurmdbd has a record of it, the file has none.
    assert client.adapter.query_accounting(client.missing(runs_on)).rows == ()
    if client.cluster.inside:
        assert client.adapter.query_accounting(client.missing(runs_on)) == AccountingAnswer()
    # Without a native id, only a stored tag finds the job; without a record it never started.
    lost = MissingTask(tag_of(client.instance, 99, 1), 0, None, client.sent[orders[1].tag][0])
    doubtful = [*client.missing(orders[1], acknowledged=False), lost]
    if "time of submission" in client.accounting_source:
        assert client.adapter.query_accounting(doubtful) == AccountingAnswer()
    else:
        matches = client.proved(doubtful)
        assert [row.exit_code for row in matches.rows] == [3]
        assert matches.never_started == ((lost.tag, 0),)
    # Nothing is proved of the time before the controller's start: it may have been killed.
    before = MissingTask(tag_of(client.instance, 99, 1), 0, None, client.boot() - 1)
    acknowledged = MissingTask(
        tag_of(client.instance, 98, 1), 0, "424242", client.boot() - 1, client.boot()
    )
    assert client.adapter.query_accounting([before, acknowledged]) == AccountingAnswer()


def test_use_of_ended_jobs(with_slurmdbd: SlurmCluster, tmp_path: Path) -> None:
    client, user = Client(with_slurmdbd, tmp_path), getpass.getuser()
    work = "data = bytearray(90 << 20); end = time.process_time() + 0.5"
    busy = client.submit(
        f"{sys.executable} -c 'import time; {work}\nwhile time.process_time() < end + 1: pass'"
    )
    array = client.submit("true", array="0,2")
    natives = [client.sent[order.tag][1][task] for order in (busy, array) for task in order.indices]
    runs = [EndedRun(1, task, 1, native, user) for task, native in enumerate(natives)]
    runs.append(EndedRun(9, 0, 1, "424242", user))
    end = time.monotonic() + PATIENCE
    while len(usage := client.adapter.query_usage(runs)) < 3:
        assert time.monotonic() < end, usage
        time.sleep(0.2)
    assert usage.keys() == {0, 1, 2}
    assert 1.4 < (usage[0].cpu_seconds or 0.0) < 30
    assert 80 <= (usage[0].max_memory or 0) < 500
    assert all((usage[task].cpu_seconds or 0.0) < 1.4 for task in (1, 2))
    assert [usage[task].cpus for task in range(3)] == [1, 1, 1]
    assert 1.0 <= (usage[0].elapsed or 0.0) < 60


@pytest.mark.slow("a controller runs for some seconds, then forgets ended jobs (MinJobAge)")
@pytest.mark.parametrize("cluster", ["with_slurmdbd", "with_file"])
def test_what_was_cancelled_while_it_waited_never_began(
    cluster: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    client = Client(request.getfixturevalue(cluster), tmp_path)
    client.up_for_a_while()
    waiting = client.submit("true", options="--begin=now+1hour")
    array = client.submit("true", array="1-3", options="--begin=now+1hour")
    client.wait_state(waiting, State.PENDING)
    client.withdraw(waiting)
    client.cluster.run("scancel", client.sent[array.tag][1][1].partition("_")[0])
    client.forgotten(waiting, array)
    missing_tasks = [*client.missing(waiting), *client.missing(array)]
    answer = client.proved(missing_tasks)
    assert {row.started for row in answer.rows} <= {None}
    recorded = {(row.tag, row.task) for row in answer.rows} | set(answer.never_started)
    assert recorded == {(task.tag, task.task) for task in missing_tasks}
    client.adapter.close()


@pytest.mark.slow("the controller forgets an ended job (MinJobAge); slurmdbd is restarted")
def test_accounting_that_does_not_answer_proves_nothing(
    with_slurmdbd: SlurmCluster, tmp_path: Path
) -> None:
    client = Client(with_slurmdbd, tmp_path)
    client.up_for_a_while()
    with_slurmdbd.stop_accountant()
    try:
        order = client.submit("exit 7")
        client.forgotten(order)
        with pytest.raises(Unreachable, match=r"sacct|sacctmgr"):
            client.adapter.query_accounting(client.missing(order))
    finally:
        with_slurmdbd.start_accountant()
    assert client.traced(client.missing(order), 1).rows[0].exit_code == 7
    client.adapter.close()


def test_a_file_that_cannot_be_read_is_no_accounting(
    with_file: SlurmCluster, tmp_path: Path
) -> None:
    client = Client(with_file, tmp_path)
    output = with_file.run("scontrol", "show", "config")
    path = Path(next(line.split()[2] for line in output.splitlines() if "JobCompLoc" in line))
    moved = path.rename(path.with_suffix(".rotated"))
    try:
        assert client.adapter.poll().info.accounting_source == ""
    finally:
        moved.rename(path)
    assert client.adapter.poll().info.accounting_source
    client.adapter.close()


@pytest.mark.slow("use is told ten seconds late; slurmdbd is restarted")
def test_use_of_other_jobs_is_counted_once_while_they_run(
    with_slurmdbd: SlurmCluster, tmp_path: Path
) -> None:
    client, cluster = Client(with_slurmdbd, tmp_path), with_slurmdbd
    cluster.empty()
    since = math.ceil(time.time())
    wait_until(lambda: time.time() >= since, 5.0, "the next second", str)
    foreign = cluster.run("sbatch", "--parsable", "-n3", "-o", "/dev/null", "--wrap", "sleep 300")
    foreign = foreign.strip()
    own = client.submit("sleep 300", array="0-1")
    client.wait_state(own, State.RUNNING)
    sent, natives, _ = client.sent[own.tag]
    query = UseQuery(since=since, max_span=3600.0, own_jobs=dict.fromkeys(natives.values(), sent))
    total = 0.0

    def use_reaches(seconds: float) -> bool:
        nonlocal query, total
        answer = client.adapter.query_foreign_use(query)
        assert {row.user for row in answer.rows} <= {getpass.getuser()}
        total += sum(row.processor_seconds for row in answer.rows)
        query = structs.replace(query, cursor=answer.cursor)
        return total >= seconds

    def is_unreachable() -> bool:
        try:
            client.adapter.query_foreign_use(query)
        except Unreachable:
            return True
        return False

    assert client.adapter.poll().info.use_source == "sacct"
    wait_until(lambda: use_reaches(9), PATIENCE, "the use of a running job", str)
    with_slurmdbd.stop_accountant()
    try:
        wait_until(is_unreachable, PATIENCE, "a query without slurmdbd", str)
        cluster.run("scontrol", "suspend", foreign)
        cluster.run("scontrol", "resume", foreign)
        cluster.run("scancel", foreign)
        wait_until(
            lambda: (
                not cluster.run("squeue", "-h", "-t", "all", "-j", foreign, "-o", "%T")
                .replace("CANCELLED", "")
                .strip()
            ),
            PATIENCE,
            "the end of the job",
            str,
        )
    finally:
        with_slurmdbd.start_accountant()
    fields = ("-nXP", "--format=state,cputimeraw", "-j", foreign)
    wait_until(
        lambda: cluster.run("sacct", *fields).startswith("CANCELLED"), PATIENCE, "its record", str
    )
    used = float(cluster.run("sacct", *fields).split("|")[1])
    wait_until(lambda: use_reaches(used), PATIENCE, "the rest of its use", str)
    assert not use_reaches(used + 1)
    assert total == used
    client.withdraw(own)
    client.adapter.close()


def test_shares_are_those_of_slurmdbd(with_slurmdbd: SlurmCluster, tmp_path: Path) -> None:
    client = Client(with_slurmdbd, tmp_path)
    for entry in (
        ("account", "phys", "share=2"),
        ("account", "lab", "parent=phys", "share=parent"),
        ("account", "chem", "share=0"),
        ("user", "daemon", "account=lab", "share=3"),
        ("user", "bin", "account=phys", "share=parent"),
    ):
        with_slurmdbd.run("sacctmgr", "-i", "add", *entry)
    tree = client.adapter.read_shares()
    accounts = {account.name: account for account in tree.accounts}
    assert accounts.keys() == {"phys", "chem"}
    assert (accounts["phys"].weight, accounts["phys"].users) == (2.0, {"bin": 1.0, "daemon": 3.0})
    assert accounts["chem"].weight == MIN_WEIGHT
    assert tree.users["root"] == 1.0
    client.adapter.close()
