"""A known state of a Slurm cluster: its setup, the output of commands, the expected result.

`record` queries the running Slurm; tests/recorded holds the output of each release.
`METASCHED_RECORD=yes pytest tests/real/test_slurm_recordings.py` writes that of the running Slurm.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from metasched.adapters.base import Submission, Withdrawal
from metasched.adapters.slurm import accounting_records as records
from metasched.adapters.slurm import cluster_info, statuses
from metasched.adapters.slurm import listing as text
from metasched.adapters.slurm import submission as batch
from metasched.adapters.slurm.adapter import Slurm, SlurmOptions
from metasched.adapters.slurm.commands import SlurmCommands
from metasched.core.transitions import ATTEMPT_FINAL
from metasched.model.adapter_errors import Refused
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Payload, State
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from metasched.processes.commands import CommandResult
from tests.harness.slurm import BIN_DIR, ClusterSpec, SlurmCluster

RECORDED = Path(__file__).parents[1] / "recorded"
INSTANCE = "recorded"
CLUSTER = ClusterSpec("alpha", "a", nodes=4, cpus=16, gpus=2)
REFUSED = {
    "partition": "--partition=nowhere",
    "gres": "--gres=unobtainium:1",
    "licence": "--licenses=nothing:1",
    "time": "--time=soon",
    "option": "--frobnicate",
    "feature": "--constraint=nothing",
}
_SETTINGS = (
    *("Configuration data as of", "BOOT_TIME", "MinJobAge", "MaxArraySize"),
    *("AccountingStor", "JobComp"),
)
_PATIENCE = 60.0  # seconds

# The tasks by (job, index): state, exit code, signal, whether it began.
MEANT = {
    (1, 0): (State.COMPLETED, 0, None, True),
    (2, 0): (State.FAILED, 9, None, True),
    (3, 0): (State.FAILED, None, 9, True),
    (4, 1): (State.PENDING, None, None, False),
    (4, 3): (State.PENDING, None, None, False),
    (4, 5): (State.PENDING, None, None, False),
    (5, 0): (State.CANCELLED, None, None, False),
    (5, 2): (State.PENDING, None, None, False),
    (5, 4): (State.CANCELLED, None, None, False),
    (6, 0): (State.RUNNING, None, None, True),
    (7, 0): (State.PENDING, None, None, False),
}
# The ended jobs in the order of the file of completions: state, exit code, signal.
COMPLETIONS = [(State.COMPLETED, 0, None), (State.FAILED, 9, None), (State.FAILED, None, 9)]


class Recorder(SlurmCommands):
    """Keeps the output of the last command, with `~` as the delimiter of its fields."""

    last: CommandResult

    def _run(self, program: str, *arguments: str, **settings: Any) -> CommandResult:
        answer = super()._run(program, *arguments, **settings)
        delimiter = re.search(r"--Format=\w+:([^,]*)", " ".join(arguments))
        out = answer.stdout.replace(delimiter[1], "~") if delimiter else answer.stdout
        self.last = CommandResult(answer.exit_code, out, answer.stderr)
        return answer


def record(cluster: SlurmCluster, folder: Path, completions: Path) -> dict[str, list[str]]:
    """Bring an idle cluster to the known state; return the lines of each answer."""
    options = SlurmOptions(config=str(cluster.conf), bin_dir=BIN_DIR, access="commands")
    recorder = Recorder(options, "alpha")
    answers = {}
    for cause, option in REFUSED.items():
        with pytest.raises(Refused):
            recorder.submit(_order(9, "true", options=(option,)), 0)
        answers[f"refused {cause}"] = recorder.last.stderr
    _bring(Slurm(Cluster(name="alpha", adapter="slurm"), options, INSTANCE, folder))
    for name, ask in (
        ("version", recorder.release_version),
        ("queue", recorder.jobs),
        ("nodes", recorder.nodes),
        ("config", recorder.controller),
    ):
        ask()
        answers[name] = recorder.last.stdout
    lines = {name: output.splitlines() for name, output in answers.items()}
    lines["config"] = [line for line in lines["config"] if line.startswith(_SETTINGS)]
    lines["config"] = [line.replace(str(completions), "/completions") for line in lines["config"]]
    lines["completions"] = completions.read_text().splitlines()
    return lines


def _order(number: int, commands: str, options: tuple[str, ...] = (), **fields: Any) -> Submission:
    job = Job(id=number, submitted=time.time(), estimated=600.0, time_limit=600.0, **fields)
    payload = Payload(
        script=f"#!/bin/sh\n{commands}\n", environment={"PATH": "/usr/bin:/bin"}, directory="/"
    )
    tag = tag_of(INSTANCE, number, 1)
    return Submission(tag=tag, job=job, payload=payload, indices=job.indices, options=options)


def _bring(adapter: Slurm) -> None:
    """Bring the cluster to the known state."""
    later = ("--begin=now+1hour",)
    for number, commands in enumerate(("exit 0", "exit 9", "kill -KILL $$"), 1):
        adapter.submit(_order(number, commands))
        _wait(adapter, (number, 0), lambda row: row.ended is not None)
    adapter.submit(_order(4, "true", array="1,3,5", options=later))
    scattered = _order(5, "true", array="0,2,4", options=later)
    natives = adapter.submit(scattered)
    withdrawn: dict[int, str | None] = {index: natives[index] for index in (0, 4)}
    adapter.withdraw(Withdrawal(tag=scattered.tag, native_ids=withdrawn, only_pending=True))
    adapter.submit(_order(6, "exec sleep 300", cpus=2))
    _wait(adapter, (6, 0), lambda row: row.state is State.RUNNING)
    adapter.submit(_order(7, "true", cpus=64, tasks=64))
    _wait(adapter, (7, 0), lambda row: row.manager_reason == "Resources")


def _wait(adapter: Slurm, task: tuple[int, int], met: Callable[[JobStatus], bool]) -> None:
    end = time.monotonic() + _PATIENCE
    tag = tag_of(INSTANCE, task[0], 1)
    while True:
        rows = adapter.poll().rows
        if any(met(row) for row in rows if (row.tag, row.task) == (tag, task[1])):
            return
        assert time.monotonic() < end, rows
        time.sleep(0.1)


def check(lines: Mapping[str, Sequence[str]], user: int) -> None:
    """Check that the answers are parsed as the known state."""
    outputs = {name: "\n".join([*recorded, ""]) for name, recorded in lines.items()}
    queue, nodes = text.parse_queue(outputs["queue"], "~"), text.parse_nodes(outputs["nodes"], "~")
    controller = text.parse_controller(outputs["config"])

    rows, _, _ = statuses.job_statuses(queue, frozenset({INSTANCE}), user)
    assert {
        (int(row.tag.split("-")[2]), row.task): (
            row.state,
            row.exit_code,
            row.signal,
            row.started is not None,
        )
        for row in rows
    } == MEANT
    assert len(rows) == len(MEANT)
    for row in rows:
        assert (row.ended is not None) == (row.state in ATTEMPT_FINAL)
        assert bool(row.node) == (row.started is not None)

    own_ids = {line.id for line in queue.lines}
    facts = cluster_info.build_cluster_info(queue.lines, nodes, controller.now, own_ids)
    assert (facts.cpus, facts.used_cpus, facts.pending_jobs) == (64, 2, 1)
    assert [cpus for _, cpus in facts.running_jobs] == [2]
    assert facts.queue_head == (64, 600.0)
    main = facts.partition(None)
    assert main is not None
    assert sum(recorded.count * recorded.cpus for recorded in main.nodes) == 64
    assert sum(recorded.count * recorded.gres.get("gpu", 0) for recorded in main.nodes) == 2

    assert controller.boot <= controller.now
    assert (controller.min_job_age, controller.array_size) == (300.0, 1001)
    assert not controller.slurmdbd
    assert str(controller.completions).endswith("/completions")
    parsed = [records.parse_completion(line, "comment") for line in lines["completions"]]
    ended = [completion for completion in parsed if completion is not None]
    assert len(ended) == len(parsed)
    assert {completion.user for completion in ended} == {str(user)}
    assert [
        (completion.state, *text.parse_exit_status(completion.status))
        for completion in ended
        if completion.start is not None
    ] == COMPLETIONS

    for cause in REFUSED:
        refusal = batch.parse_refusal(1, outputs[f"refused {cause}"])
        assert refusal is not None
        assert not refusal.retryable
