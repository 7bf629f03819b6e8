"""The whole contract between metasched and a resource manager.

An adapter is one object in one worker process, called by one thread, one call at a time. It
keeps nothing that matters: after a crash a new one, told the same instance, goes on from what
the manager itself knows. Every task it submits carries a tag by which it is found again; native
ids are never trusted alone, since managers re-issue them.

An author implements `Adapter`, registers it under the entry-point group `metasched.adapters`,
and runs tests/contract against it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from metasched.adapters.errors import Refused
from metasched.model.arrays import JobArray
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Payload
from metasched.model.listing import AccountingAnswer, Listing, MissingTask
from metasched.model.stored_names import STORED_FIELDS
from metasched.model.survey import ReservationSpec, Survey

if TYPE_CHECKING:
    from metasched.adapters.launcher_client import LauncherClient


@dataclass(frozen=True)
class Capabilities:
    """What a manager can do; callers and the contract tests ask these, never the adapter's name."""

    gres: bool = False  # counts generic resources
    memory: bool = False  # counts the memory that jobs ask for
    licences: bool = False  # can count licences (`Facts.licences`) and be asked for them
    limit_granularity: float = 1.0  # seconds; time limits are rounded up to it
    proves_absence: bool = True  # its listings can prove that a tag never arrived
    estimates_starts: bool = False  # says when it expects what waits to begin (`Row.expected`)
    reservations: bool = False  # keeps windows of time for users: survey, reserve, unreserve
    reserves_named_nodes: bool = False  # ... of names that we say; else it chooses them by itself


class Submission(msgspec.Struct, rename=STORED_FIELDS["Submission"], frozen=True, kw_only=True):
    """One sending: these tasks of a job, under one tag, in this manager's own names.

    `job.account`, `.partition`, `.qos` and `.constraint` are already translated; `job.licences`
    are those of the manager's own `Facts.licences`, to be asked for. `options` are
    the words that the user wrote for this cluster (`--native`), already split. A `fence` is
    the folder in which the payload is to claim its attempt; adapters never see one (`claims`).
    A `reservation` is the name under which `Adapter.reserve` has made the one to run in. The site's
    licences that it has `leased` are named as the site does.
    """

    tag: str
    job: Job
    payload: Payload
    indices: tuple[int, ...] = (0,)
    priority: int = 1
    options: tuple[str, ...] = ()
    fence: str = ""
    reservation: str = ""
    leased_licences: tuple[str, ...] = ()

    def environment(self, index: int, cluster: str) -> dict[str, str]:
        """The whole environment of one task on the cluster of that name: ours wins.

        Refused if a variable cannot be handed on.
        """
        job = self.job
        variables = {
            **self.payload.environment,
            "METASCHED_JOB_ID": str(job.id),
            "METASCHED_TAG": self.tag,
            "METASCHED_CLUSTER": cluster,
            "METASCHED_CPUS": str(job.cpus),
            **task_variables(job.id, job.parsed_array, index),
        }
        for name, value in variables.items():
            if not name or "=" in name or "\0" in name + value:
                raise Refused(f"the environment variable {name[:40]!r} cannot be handed on")
        return variables


def task_variables(job_id: int, array: JobArray | None, index: int) -> dict[str, str]:
    """What differs in the environments of a job's tasks."""
    return {"METASCHED_TASK": str(index), **(array.variables(job_id, index) if array else {})}


class Withdrawal(msgspec.Struct, rename=STORED_FIELDS["Withdrawal"], frozen=True, kw_only=True):
    """A wish to be rid of tasks: `natives` maps each index to its native id, if it is known.

    `unstarted` True (a pull, a recall, a hold): only what has certainly not begun and cannot
    begin any more may be ended; what runs is left alone. False: end it whatever it does.
    """

    tag: str
    user: str = ""  # the job's owner
    native_ids: Mapping[int, str | None] = msgspec.field(default_factory=dict)
    only_pending: bool = False


class Adapter(ABC):
    """One resource manager.

    `Options` is a frozen dataclass of the adapter's own keys in `[[cluster]]`; config checks it.
    """

    Options: ClassVar[type[Any]]
    poll_interval: ClassVar[float] = 5.0  # seconds between polls while something goes on
    # Tasks in one order, at the most: a call must not keep polls and withdrawals waiting for long.
    chunk: ClassVar[int] = 50
    # What its library needs in the worker's environment before that begins; a site's own wins.
    environment: ClassVar[Mapping[str, str]] = {}
    # an instance has its own where they depend on its options
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(
        self,
        cluster: Cluster,
        options: Any,
        instance: str,
        folder: Path,
        launcher: LauncherClient | None = None,
    ) -> None:
        """`folder` is the cluster's own, exists, and outlives the process.

        `launcher` is there in site mode: what is done for a job is done through it as the job's
        owner, and rows name their owners. Without one (personal mode) this account does all.
        Must not talk to the manager: an unreachable one is reported by the calls.
        """
        self.cluster, self.options, self.instance, self.folder = cluster, options, instance, folder
        self.launcher = launcher

    @classmethod
    def capabilities_for(cls, options: Any) -> Capabilities:
        """What it can do with these options, before it is made; to be overridden if they matter."""
        return cls.capabilities

    @classmethod
    def configuration_warnings(cls, options: Any) -> list[tuple[str, str]]:
        """What of the manager's own configuration is against these options, and what to do.

        Asked by `metasched doctor`, on the daemon's host but in no worker. Raises Unreachable.
        """
        return []

    @property
    def access(self) -> str:
        """By what it speaks to its manager, where there is a choice: shown to users."""
        return ""

    @abstractmethod
    def submit(self, submission: Submission) -> dict[int, str]:
        """Queue every task of the order; return index -> native id.

        On return all tasks are in the manager, durably as far as it can. Refused: none is.
        Unreachable: perhaps they are (search the tag). The manager must not restart a task by
        itself unless `order.job.requeue`.
        """

    @abstractmethod
    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Ask the manager to end tasks. Idempotent; unknown and ended ones are no error.

        The return means only that the manager has taken the wish: the end itself is told by
        `poll`. Tasks whose native id is None are found by the tag. Raises Unreachable.
        """

    def withdraw_all(self, withdrawals: Sequence[Withdrawal]) -> None:
        """As `withdraw`, for several of one user that agree in `unstarted`.

        To be overridden where the manager takes many in one call. If it raises, some of them may
        have been taken: each is told again by itself.
        """
        for withdrawal in withdrawals:
            self.withdraw(withdrawal)

    @abstractmethod
    def poll(self) -> Listing:
        """One bulk listing of the whole manager: our tasks and everyone's demand.

        Never per job. Rows hold only tasks whose tag is of this instance. Raises Unreachable;
        a partial answer is Unreachable too, since absence from a listing is taken as evidence.
        """

    def update_licence_demand(self, rho: Mapping[str, float]) -> None:  # noqa: B027 - most order no queue
        """Learn how many wait for each copy of a licence (`Licences.rho`), before a poll.

        For managers whose queue is ordered here: who has leased a critical one is to start early.
        """

    def query_accounting(self, missing: Sequence[MissingTask]) -> AccountingAnswer:
        """What the manager's accounting tells of tasks that a complete listing lacks.

        Called only where `Facts.records` says that there is such a thing, and again, ever later,
        for tasks of which it told nothing. A task is `unstarted` only if that is proved. Raises
        Unreachable.
        """
        return AccountingAnswer()

    # Only where `capabilities.reservations`:

    def survey(self) -> Survey:
        """What takes the nodes over time, and the reservations of this instance.

        A manager that can be told which nodes to keep tells of nodes, one that chooses them by
        itself of pools. Reservations of this instance, ours by their names, are told as `held`, and
        take no node, but their processors of a pool; jobs take theirs until their limits, in a pool
        until `guard` after these. Raises Unreachable.
        """
        raise NotImplementedError

    def reserve(self, spec: ReservationSpec) -> None:
        """Keep exactly these nodes, or so many processors of a pool, for the user.

        The user alone may submit jobs into it. Idempotent: what is there under that name is made
        so; jobs that wait in it stay in it. What a manager chose and cannot use now is replaced. Of
        its licences those are kept, too, that the manager can reserve.
        Refused: it is not there, or is as it was before. Unreachable: perhaps it is there.
        """
        raise NotImplementedError

    def delete_reservation(self, name: str) -> None:
        """Forget a reservation; it is no error that there is none.

        Refused with `again` while it cannot be, since jobs are in it. Raises Unreachable.
        """
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of what is held in this process; the manager's jobs go on."""
