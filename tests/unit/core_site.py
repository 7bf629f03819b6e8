"""A core with two clusters, and helpers that send it events and return its actions."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from metasched.core.array_remainder import REMAINDER_MINIMUM
from metasched.core.events import (
    Action,
    CoreEvent,
    DaemonStarted,
    DispatchAccepted,
    DispatchStarted,
    ListingReceived,
    Outcome,
)
from metasched.core.scheduler import Core
from metasched.model.cluster import Cluster, ClusterInfo, NodeCapacity, Partition
from metasched.model.fair_share import FairShareSettings
from metasched.model.job import Job, State
from metasched.model.licence import LicencePool
from metasched.model.limits import LimitSettings
from metasched.model.listing import JobStatus
from metasched.model.tags import tag_of
from metasched.policies.policy import Policy

NOW = 1_000_000.0


def facts(cpus: int, free: int | None = None, **fields: object) -> ClusterInfo:
    free = cpus if free is None else free
    partition = Partition("main", (NodeCapacity(1, cpus, free),), default=True)
    return ClusterInfo(cpus=cpus, used_cpus=cpus - free, partitions=(partition,), **fields)  # type: ignore[arg-type]


def job(id: int = 1, cpus: int = 1, **fields: object) -> Job:
    return Job(id=id, submitted=NOW, estimated=100.0, cpus=cpus, **fields)  # type: ignore[arg-type]


class Site:
    """A core that has listings of two clusters: left (8 processors), right (4)."""

    def __init__(
        self,
        listed: bool = True,
        move_after: float | None = None,
        fence_dir: str = "",
        pools: tuple[LicencePool, ...] | None = None,
        queue_depth: int | None = 0,
        limits: LimitSettings | None = None,
        fair_share: FairShareSettings | None = None,
        maps: Mapping[str, Mapping[str, str]] | None = None,
        remainder_minimum: int = REMAINDER_MINIMUM,
        **policy: object,
    ) -> None:
        self.core = Core(remainder_minimum)
        self.out = Outcome()
        clusters = tuple(
            Cluster(
                name=n,
                adapter="local",
                move_after=move_after,
                fence_dir=fence_dir,
                queue_depth=queue_depth,
                maps=maps or {},
                local_policy="easy",
                orders_by_priority=True,
            )
            for n in ("left", "right")
        )
        policy = {"pull_after": 5.0, **policy}
        self._started = DaemonStarted(
            NOW,
            "cafe",
            Policy(**policy),  # type: ignore[arg-type]
            clusters,
            pools=pools,
            limits=limits or LimitSettings(),
            fair_share=fair_share,
        )
        self.step(self._started)
        if listed:
            self.seen("left", facts(8))
            self.seen("right", facts(4))

    def started(self, now: float, **fields: object) -> DaemonStarted:
        """Return a further start with the same settings."""
        return structs.replace(self._started, time=now, **fields)

    def step(self, event: CoreEvent) -> list[Action]:
        self.out = self.core.step(event)
        return self.out.actions

    def seen(
        self,
        name: str,
        now: ClusterInfo | None = None,
        *rows: JobStatus,
        at: float = NOW,
        **fields: object,
    ) -> list[Action]:
        fields = {"since": 0.0, "until": at, **fields}
        return self.step(ListingReceived(at, name, rows, info=now, **fields))  # type: ignore[arg-type]

    def state(self, id: int = 1) -> State:
        return self.core.tasks[id, 0].state

    def sent(self, id: int = 1, cluster: str = "left", sending: int = 1, native: str = "7") -> None:
        self.step(DispatchStarted(NOW, id, sending))
        self.step(DispatchAccepted(NOW, id, sending, {0: native}))

    def row(self, state: State, id: int = 1, sending: int = 1, **fields: object) -> JobStatus:
        return JobStatus(tag_of("cafe", id, sending), 0, "7", state, **fields)  # type: ignore[arg-type]
