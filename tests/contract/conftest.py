"""The managers of the contract suite, and helpers that drive any of them.

A manager is booted once per run by a context manager that takes its folder. This yields
`connect(instance) -> Adapter`, which is called for every adapter object of a test. The manager
must be idle, run only the suite's jobs, and see the same files as the tests. It has at least two
processors, or eight if it reserves processors. If its capabilities say that it counts them, it
has a GPU (`gpu`), a single licence with 3 tokens, and 2000 MiB.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from metasched.adapters.base import Adapter, Submission, Withdrawal
from metasched.adapters.drmaa_cluster import DrmaaOptions
from metasched.adapters.local.adapter import Local, LocalOptions
from metasched.adapters.slurm.adapter import Slurm, SlurmOptions
from metasched.core.transitions import ATTEMPT_FINAL
from metasched.model.cluster import Cluster, ClusterInfo
from metasched.model.job import Job, Payload, State
from metasched.model.listing import JobStatus, Listing
from metasched.model.tags import tag_of
from tests.conftest import require
from tests.harness import gridengine as ge
from tests.harness import processes, pyslurm
from tests.harness.looks import looks
from tests.harness.slurm import ALPHA, BIN_DIR, SlurmSite, missing

Connect = Callable[[str], Adapter]
Boot = Callable[[Path], AbstractContextManager[Connect]]

PATIENCE = 180.0  # seconds until a manager must have carried out a request


@contextmanager
def local(folder: Path) -> Iterator[Connect]:
    """A local cluster of 8 processors, 2 GPUs and 4 GiB, whatever this host has."""

    def connect(instance: str) -> Adapter:
        options = LocalOptions(cpus=8, memory=4096, gres={"gpu": 2}, kill_wait=2.0)
        return Local(Cluster(name="here", adapter="local"), options, instance, folder)

    try:
        yield connect
    finally:
        remaining = processes.of_cluster(folder)
        processes.kill(remaining)
        assert not remaining


@contextmanager
def slurm(folder: Path) -> Iterator[Connect]:
    """A real Slurm cluster of 4 nodes with 16 processors each, 2 GPUs on one of them."""
    reason = missing()
    if reason is not None:
        require("slurm", reason)
    with SlurmSite(folder, [ALPHA]) as site:
        options = SlurmOptions(config=str(site["alpha"].conf), bin_dir=BIN_DIR, settle=1.0)

        def connect(instance: str) -> Adapter:
            return Slurm(Cluster(name="alpha", adapter="slurm"), options, instance, folder)

        yield connect


@contextmanager
def slurm_cores(folder: Path) -> Iterator[Connect]:
    """A real Slurm cluster that reserves processors: 2 nodes with 4 cores of 2 processors."""
    reason = missing()
    if reason is not None:
        require("slurm", reason)
    spec = replace(ALPHA, name="cores", prefix="c", nodes=2, cpus=8, threads=2)
    with SlurmSite(folder, [spec]) as site:
        config = str(site["cores"].conf)
        options = SlurmOptions(
            config=config, bin_dir=BIN_DIR, settle=1.0, reservation_unit="processor"
        )

        def connect(instance: str) -> Adapter:
            return Slurm(Cluster(name="cores", adapter="slurm"), options, instance, folder)

        yield connect


@contextmanager
def by_pyslurm(folder: Path) -> Iterator[Connect]:
    """The same cluster as `slurm`, through a worker whose Python has pyslurm."""
    for component, reason in (("slurm", missing()), ("pyslurm", pyslurm.missing())):
        if reason is not None:
            require(component, reason)
    with SlurmSite(folder, [ALPHA]) as site:
        options = SlurmOptions(config=str(site["alpha"].conf), access="pyslurm", settle=1.0)

        def connect(instance: str) -> Adapter:
            return pyslurm.worker_adapter(site["alpha"], options, instance, folder)

        yield connect


@contextmanager
def gridengine(folder: Path) -> Iterator[Connect]:
    """A real Grid Engine cell of one host with 8 slots and 2 GPUs, through a worker inside it."""
    reason = ge.missing()
    if reason is not None:
        require("gridengine", reason)
    with ge.Cell(folder / "cell") as cell:
        options = DrmaaOptions(library=str(ge.LIBRARY), settle=1.0, memory=ge.MEMORY)

        def connect(instance: str) -> Adapter:
            return ge.worker_adapter(cell, options, instance, folder)

        yield connect


def plugged(name: str) -> Boot:
    """Return the boot function that METASCHED_CONTRACT names as `module:function`."""
    module, _, function = name.partition(":")
    boot: Boot = getattr(import_module(module), function)
    return boot


BOOTS: dict[str, Boot] = {
    "local": local,
    "slurm": slurm,
    "slurm-cores": slurm_cores,
    "pyslurm": by_pyslurm,
    "gridengine": gridengine,
}
if named := os.environ.get("METASCHED_CONTRACT"):
    BOOTS = {named: plugged(named)}


class Manager:
    """A manager for a single test, with its own instance and a `folder` for its files."""

    def __init__(self, connect: Connect, folder: Path) -> None:
        self.folder = folder
        self.instance = uuid.uuid4().hex[:8]
        self._connect = connect
        self._jobs = 0
        self.adapter = connect(self.instance)

    def reconnect(
        self, instance: str | None = None, former_instances: frozenset[str] = frozenset()
    ) -> None:
        """Replace the adapter by a new object, which has no state of the old."""
        self.adapter.close()
        self.adapter = self._connect(instance or self.instance)
        self.adapter.add_former_instances(former_instances)

    def order(self, commands: str, *, indices: tuple[int, ...] = (0,), **fields: Any) -> Submission:
        """Return a submission of shell commands; `wishes` are fields of `Job` and `Payload`."""
        self._jobs += 1
        of_payload = {key: fields.pop(key) for key in Payload.__annotations__ if key in fields}
        limit = fields.setdefault("time_limit", 600.0)
        if indices != (0,):
            fields["array"] = ",".join(map(str, indices))
        return Submission(
            tag=tag_of(self.instance, self._jobs, 1),
            indices=indices,
            job=Job(id=self._jobs, submitted=time.time(), estimated=limit, **fields),
            payload=replace(
                Payload(
                    script=f"#!/bin/sh\n{commands}\n",
                    environment={"PATH": "/usr/bin:/bin"},
                    directory=str(self.folder),
                ),
                **of_payload,
            ),
        )

    def submit(self, commands: str, **fields: Any) -> Submission:
        order = self.order(commands, **fields)
        natives = self.adapter.submit(order)
        assert set(natives) == set(order.indices)
        return order

    def withdraw(self, order: Submission, unstarted: bool = False) -> None:
        natives = dict.fromkeys(order.indices)
        self.adapter.withdraw(Withdrawal(tag=order.tag, native_ids=natives, only_pending=unstarted))

    def wait(self, condition: Callable[[Listing], bool], patience: float = PATIENCE) -> Listing:
        """Return the first listing for which `what` is true; fail after `patience` seconds."""
        for _ in looks(patience, longest=0.5):
            listing = self.adapter.poll()
            if condition(listing):
                return listing
        raise AssertionError(f"still, after {patience:g} s: {listing}")

    def wait_state(
        self, order: Submission, *states: State, patience: float = PATIENCE
    ) -> JobStatus:
        """Wait until a task is in any of the states; return the row of the first task."""
        listing = self.wait(
            lambda listing: any(row.state in states for row in rows_of(listing, order).values()),
            patience,
        )
        return rows_of(listing, order)[order.indices[0]]

    def wait_end(self, order: Submission, patience: float = PATIENCE) -> JobStatus:
        return self.wait_state(order, *ATTEMPT_FINAL, patience=patience)

    def wait_facts(self, condition: Callable[[ClusterInfo], bool]) -> ClusterInfo:
        return self.wait(lambda listing: condition(listing.info)).info

    def fill(self) -> list[Submission]:
        """Fill every processor of the default partition with jobs; return once these run."""
        partition = self.adapter.poll().info.partition(None)
        assert partition is not None
        sizes = [nodes.cpus for nodes in partition.nodes for _ in range(nodes.count)]
        orders = [self.submit("exec sleep 300", cpus=cpus) for cpus in sizes]
        for order in orders:
            self.wait_state(order, State.RUNNING)
        return orders

    def clear(self) -> None:
        """End all jobs that the test left, and wait until they have ended."""
        self.reconnect()
        for row in self.adapter.poll().rows:
            if row.state not in ATTEMPT_FINAL:
                self.adapter.withdraw(Withdrawal(tag=row.tag, native_ids={row.task: row.native_id}))
        self.wait(lambda listing: all(row.state in ATTEMPT_FINAL for row in listing.rows))
        self.wait_facts(lambda facts: facts.used_cpus == 0)
        self.adapter.close()


def rows_of(listing: Listing, order: Submission) -> dict[int, JobStatus]:
    return {row.task: row for row in listing.rows if row.tag == order.tag}


@pytest.fixture(scope="session", params=list(BOOTS))
def connect(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Connect]:
    with BOOTS[request.param](tmp_path_factory.mktemp("manager")) as connect:
        yield connect


@pytest.fixture
def manager(connect: Connect, tmp_path: Path) -> Iterator[Manager]:
    booted = Manager(connect, tmp_path)
    try:
        yield booted
    finally:
        booted.clear()
