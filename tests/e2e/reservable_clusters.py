"""Real clusters whose nodes or processors can be reserved, for the reservation tests.

Each cluster has locations of four processors: nodes in Slurm, queues in Grid Engine. This module
hides the differences between managers; tests check `capabilities`, never a manager's name.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from metasched.adapters.base import Capabilities
from metasched.adapters.drmaa_cluster import Drmaa, DrmaaOptions
from metasched.adapters.local.adapter import Local, LocalOptions
from metasched.adapters.slurm.adapter import Slurm, SlurmOptions
from metasched.model.host_lists import expand_hosts
from tests.conftest import require
from tests.harness import gridengine
from tests.harness.daemons import BootError, wait_until
from tests.harness.gridengine import LIBRARY, Cell
from tests.harness.slurm import ClusterSpec, SlurmCluster, SlurmSite, missing

LOCATION_CPUS = 4
SECOND_QUEUE = "second.q"


def cores(line: str, node: str = "Nodes", ids: str = "CPU_IDs") -> dict[str, set[int]]:
    """Parse the processor numbers of each node from `Nodes=n1 CPU_IDs=0-2,4`."""
    return {
        name: {
            number
            for part in numbers.split(",")
            for first, _, last in [part.partition("-")]
            for number in range(int(first), int(last or first) + 1)
        }
        for name, numbers in re.findall(rf"\b{node}=(\S+) {ids}=([\d,-]+)", line)
    }


def _pairs(cores: Mapping[str, set[int]]) -> frozenset[tuple[str, int]]:
    return frozenset((node, number) for node, numbers in cores.items() for number in numbers)


class ReservableCluster(ABC):
    """A booted cluster, idle at the start of each test."""

    name: str
    capabilities: Capabilities
    cpus: int  # processors of the whole cluster
    shortest_window: int  # seconds
    pending_reason: str  # prefix of the reason of a job that waits for its window

    def round_up(self, cpus: int) -> int:
        """Return the size of a reservation of `cpus` processors: whole nodes if nodes are named."""
        unit = LOCATION_CPUS if self.capabilities.reserves_named_nodes else 1
        return -(-cpus // unit) * unit

    @property
    @abstractmethod
    def locations(self) -> Sequence[str]:
        """The nodes or queues of `LOCATION_CPUS` processors each."""

    @abstractmethod
    def table(self, folder: Path, extra: str = "") -> str:
        """Return the cluster's table in metasched.toml; `folder` is the site's."""

    @abstractmethod
    def reservations(self) -> dict[str, str]:
        """Return the names of all reservations in the manager by native id."""

    @abstractmethod
    def locations_of_native(self, native: str) -> list[str]:
        """Return the locations of a reservation; empty until the manager has chosen them."""

    @abstractmethod
    def reservation_of_job(self, native_job: str) -> str:
        """Return the native id of the reservation that a job was submitted to."""

    @abstractmethod
    def delete_reservation(self, native: str) -> None: ...

    @abstractmethod
    def disable(self, location: str) -> None:
        """Take a location out of service, as an admin does."""

    @abstractmethod
    def enable(self, location: str) -> None: ...

    @abstractmethod
    def end_jobs(self) -> None:
        """End every job and wait until none is left."""

    @abstractmethod
    def tidy(self) -> None:
        """End all jobs, delete all reservations, enable all locations."""

    @abstractmethod
    def check_apart(self, inside: Mapping[int, str], batch: str) -> None:
        """Assert that jobs in reservations and a batch job share no processors.

        `inside` maps each reservation id of metasched to the native id of its job.
        """

    @contextmanager
    def divided(self) -> Iterator[None]:
        """Divide the cluster into several locations for the `with` block."""
        yield

    def natives_of(self, reservation: int) -> list[str]:
        """Return the native ids of the reservations that belong to a metasched reservation."""
        name = re.compile(rf"ms-.*-r{reservation}(-again)?")
        return [native for native, of in self.reservations().items() if name.fullmatch(of)]

    def locations_of(self, reservation: int) -> list[str]:
        """Return the locations of all native reservations of a reservation of metasched."""
        return [
            location
            for native in self.natives_of(reservation)
            for location in self.locations_of_native(native)
        ]


class SlurmReservations(ReservableCluster):
    """A Slurm cluster of nodes with four processors each."""

    shortest_window = 60
    pending_reason = "manager:Reservation"

    def __init__(self, slurm: SlurmCluster, unit: Literal["node", "processor"]) -> None:
        self.slurm, self.name, self._unit = slurm, slurm.name, unit
        self.capabilities = Slurm.capabilities_for(
            SlurmOptions(config=str(slurm.conf), reservation_unit=unit)
        )
        self.cpus = slurm.spec.nodes * slurm.spec.cpus

    @property
    def locations(self) -> Sequence[str]:
        return self.slurm.nodes

    def table(self, folder: Path, extra: str = "") -> str:
        return self.slurm.table(f'reservation_unit = "{self._unit}"\npoll_interval = 1\n{extra}')

    def show(self, *name: str) -> str:
        return self.slurm.run("scontrol", "--oneliner", "show", "reservation", *name)

    def reservations(self) -> dict[str, str]:
        return {name: name for name in re.findall(r"ReservationName=(\S+)", self.show())}

    def locations_of_native(self, native: str) -> list[str]:
        try:
            line = self.show(native)
        except BootError:  # it has just ended
            return []
        if self.capabilities.reserves_named_nodes:
            [names] = re.findall(r" Nodes=(\S+)", line)
            return sorted(expand_hosts(names))
        return sorted(self.cores_of(line))

    @staticmethod
    def cores_of(line: str) -> dict[str, set[int]]:
        """Parse the cores of a reservation by node; Slurm lists them after some seconds."""
        return cores(line, "NodeName", "CoreIDs")

    def reservation_of_job(self, native_job: str) -> str:
        return (
            self.slurm.run("scontrol", "-o", "show", "job", native_job)
            .partition(" Reservation=")[2]
            .partition(" ")[0]
        )

    def check_apart(self, inside: Mapping[int, str], batch: str) -> None:
        used = [self._processors_of_job(native) for native in (*inside.values(), batch)]
        assert sum(map(len, used)) == len(frozenset().union(*used))
        if not self.capabilities.reserves_named_nodes:
            for (reservation, _), processors in zip(inside.items(), used, strict=False):
                [native] = self.natives_of(reservation)
                assert _pairs(self.cores_of(self.show(native))) == processors
            nodes = [{node for node, _ in processors} for processors in used]
            assert set.intersection(*nodes), "a node is shared"

    def _processors_of_job(self, native: str) -> frozenset[tuple[str, int]]:
        return _pairs(cores(self.slurm.run("scontrol", "-d", "-o", "show", "job", native)))

    def delete_reservation(self, native: str) -> None:
        self.slurm.run("scontrol", "delete", f"ReservationName={native}")

    def disable(self, location: str) -> None:
        self.slurm.run("scontrol", "update", f"NodeName={location}", "State=DRAIN", "Reason=test")

    def enable(self, location: str) -> None:
        self.slurm.run("scontrol", "update", f"NodeName={location}", "State=RESUME")

    def end_jobs(self) -> None:
        self.slurm.empty()

    def tidy(self) -> None:
        self.slurm.empty()
        for name in self.reservations():
            with contextlib.suppress(BootError):  # it has just ended
                self.delete_reservation(name)
        for node in self.slurm.nodes:
            if "drain" in self.slurm.run("sinfo", "-h", "-n", node, "-o", "%T"):
                self.enable(node)
        self.slurm.wait_ready()


class GridEngineReservations(ReservableCluster):
    """A cell of one host with eight slots in one queue; divided, it has two queues of four."""

    shortest_window = 20  # several times the start delay of a job; the cell has no minimum
    pending_reason = ""

    def __init__(self, cell: Cell) -> None:
        self.cell, self.name = cell, cell.name
        self.capabilities = Drmaa.capabilities_for(DrmaaOptions(library=str(LIBRARY)))
        self.cpus = gridengine.SLOTS

    @property
    def locations(self) -> Sequence[str]:
        return ["all.q", SECOND_QUEUE]

    def table(self, folder: Path, extra: str = "") -> str:
        python = self.cell.python(folder / "python")
        return self.cell.table(python, f"poll_interval = 0.5\nsettle = 1\n{extra}")

    def reservations(self) -> dict[str, str]:
        listing = self.cell.run("qrstat", "-xml", "-u", "*")
        return dict(re.findall(r"<id>(\d+)</id>\s*<name>([^<]*)</name>", listing))

    def locations_of_native(self, native: str) -> list[str]:
        try:
            shown = self.cell.run("qrstat", "-xml", "-ar", native)
        except BootError:  # it has just ended
            return []
        return sorted(re.findall(r'queue_instance="(\S+)@', shown))

    def reservation_of_job(self, native_job: str) -> str:
        [native] = re.findall(r"(?m)^ar_id: +(\d+)$", self.cell.run("qstat", "-j", native_job))
        assert isinstance(native, str)
        return native

    def check_apart(self, inside: Mapping[int, str], batch: str) -> None:
        """Check only each job's reservation: slots have no names, the cell counts them."""
        for reservation, native in inside.items():
            assert [self.reservation_of_job(native)] == self.natives_of(reservation)
        assert "ar_id:" not in self.cell.run("qstat", "-j", batch)

    def delete_reservation(self, native: str) -> None:
        self.cell.run("qrdel", native)

    def disable(self, location: str) -> None:
        self.cell.run("qmod", "-d", location)

    def enable(self, location: str) -> None:
        self.cell.run("qmod", "-e", location)

    def end_jobs(self) -> None:
        self.cell.empty()

    def tidy(self) -> None:
        self.cell.run("qmod", "-e", "*")
        self.cell.empty()
        for native in self.reservations():
            self.cell.run("qrdel", native)

    @contextmanager
    def divided(self) -> Iterator[None]:
        queue = re.sub(r"\\\n\s*", "", self.cell.run("qconf", "-sq", "all.q"))
        queue = re.sub(r"(?m)^qname .*", f"qname {SECOND_QUEUE}", queue)
        self.cell.load("-Aq", re.sub(r"(?m)^slots .*", f"slots {LOCATION_CPUS}", queue))
        self.cell.run("qconf", "-rattr", "queue", "slots", str(LOCATION_CPUS), "all.q")
        yield
        self.tidy()
        self.cell.run("qconf", "-rattr", "queue", "slots", str(gridengine.SLOTS), "all.q")
        wait_until(
            self._delete_second_queue,
            30,
            f"the end of {SECOND_QUEUE}",
            lambda: self.cell.run("qstat", "-f", "-u", "*"),
        )

    def _delete_second_queue(self) -> bool:
        try:
            self.cell.run("qconf", "-dq", SECOND_QUEUE)
        except BootError:  # a job in it has just ended
            return False
        return True


class LocalReservations(ReservableCluster):
    """A local cluster of eight processors below a site, whose daemon is its manager.

    Its folder is that of the last `table`. It is one location that cannot be disabled.
    """

    shortest_window = 12  # several times the start delay of a job; the cluster has no minimum
    pending_reason = ""
    name, cpus = "home", 8

    def __init__(self) -> None:
        self.capabilities = Local.capabilities_for(LocalOptions(cpus=self.cpus))
        self._site: Path | None = None

    @property
    def locations(self) -> Sequence[str]:
        return [socket.gethostname()]

    def table(self, folder: Path, extra: str = "") -> str:
        self._site = folder
        return (
            f'[[cluster]]\nname = "{self.name}"\nadapter = "local"\ncpus = {self.cpus}\n'
            f"poll_interval = 0.5\nkill_wait = 1\n{extra}"
        )

    def _execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        found = [] if self._site is None else list(self._site.rglob(f"{self.name}/queue.db"))
        if not found:
            return []
        with closing(sqlite3.connect(found[0])) as database, database:
            return database.execute(statement, values).fetchall()

    def reservations(self) -> dict[str, str]:
        return {name: name for (name,) in self._execute("SELECT name FROM windows")}

    def locations_of_native(self, native: str) -> list[str]:
        return list(self.locations)

    def reservation_of_job(self, native_job: str) -> str:
        [(requirements,)] = self._execute(
            "SELECT requirements FROM tasks WHERE native_id = ?", int(native_job)
        )
        reservation = json.loads(requirements)["reservation"]
        assert isinstance(reservation, str)
        return reservation

    def check_apart(self, inside: Mapping[int, str], batch: str) -> None:
        """Check only each job's reservation: processors have no names, the cluster counts them."""
        for reservation, native in inside.items():
            assert [self.reservation_of_job(native)] == self.natives_of(reservation)
        assert self.reservation_of_job(batch) == ""

    def delete_reservation(self, native: str) -> None:
        self._execute("DELETE FROM windows WHERE name = ?", native)

    def disable(self, location: str) -> None:
        raise AssertionError(f"{location} is the only location of {self.name}")

    enable = disable

    def end_jobs(self) -> None:
        """Forget what waits, while no daemon runs."""
        self._execute("DELETE FROM tasks WHERE ended IS NULL")

    def tidy(self) -> None:
        self._site = None

    @contextmanager
    def divided(self) -> Iterator[None]:
        pytest.skip("a local cluster is a single location")
        yield


@contextmanager
def local_cpus(folder: Path) -> Iterator[ReservableCluster]:
    """Return a local cluster of eight processors, any number of which can be reserved."""
    yield LocalReservations()


@contextmanager
def slurm_nodes(folder: Path) -> Iterator[ReservableCluster]:
    """Boot a Slurm cluster whose three nodes are reserved whole."""
    with _slurm(folder, ClusterSpec("gamma", "g", nodes=3, cpus=LOCATION_CPUS)) as cluster:
        yield SlurmReservations(cluster, "node")


@contextmanager
def slurm_processors(folder: Path) -> Iterator[ReservableCluster]:
    """Boot a Slurm cluster of two nodes whose processors are reserved."""
    with _slurm(folder, ClusterSpec("rho", "r", nodes=2, cpus=LOCATION_CPUS)) as cluster:
        yield SlurmReservations(cluster, "processor")


@contextmanager
def _slurm(folder: Path, spec: ClusterSpec) -> Iterator[SlurmCluster]:
    if (reason := missing()) is not None:
        require("slurm", reason)
    with SlurmSite(folder, [spec]) as site:
        yield site[spec.name]


@contextmanager
def gridengine_slots(folder: Path) -> Iterator[ReservableCluster]:
    """Boot a cell of eight slots, any number of which can be reserved."""
    if (reason := gridengine.missing()) is not None:
        require("gridengine", reason)
    with Cell(folder) as cell:
        yield GridEngineReservations(cell)


BOOTS: dict[str, Callable[[Path], AbstractContextManager[ReservableCluster]]] = {
    "slurm-nodes": slurm_nodes,
    "slurm-processors": slurm_processors,
    "gridengine": gridengine_slots,
    "local": local_cpus,
}
