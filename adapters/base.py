"""The whole contract between metasched and a resource manager.

An adapter is a single object in a worker process, called by a single thread, a call at a time. With
`concurrent_owners`, other threads call `submit` and `withdraw_all` meanwhile in site mode. A
thread of its own calls `query_foreign_use`, `query_usage` and `read_shares` beside all other
calls. An adapter keeps no state that matters: after a crash a new adapter of the same instance
continues from the manager's own records. Every task that it submits carries a tag, which
identifies it later. Native ids are never trusted alone, since managers re-issue them.

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

from metasched.adapters.known_jobs import KnownJobs
from metasched.model.adapter_errors import Refused
from metasched.model.arrays import JobArray, task_number
from metasched.model.cluster import Cluster
from metasched.model.fair_share import ShareTree
from metasched.model.foreign_use import UseAnswer, UseQuery
from metasched.model.job import Job, Payload
from metasched.model.job_usage import EndedRun, RunUsage
from metasched.model.listing import (
    AccountingAnswer,
    KnownJob,
    Listing,
    MissingTask,
    PolicyExclusions,
)
from metasched.model.survey import ReservationSpec, Survey
from metasched.paths import NAMED_VARIABLES, drop_in_folder

if TYPE_CHECKING:
    from metasched.adapters.launcher_client import LauncherClient

# `Adapter.launcher_verbs` of an adapter that runs its manager's commands as the owners of jobs
CHANGE_VERBS = ("submit", "cancel", "hold", "release")
NO_RESERVATIONS = "this kind of cluster keeps no reservations"


@dataclass(frozen=True)
class Capabilities:
    """Features of a manager; callers and contract tests test these, never the adapter's name."""

    gres: bool = False  # counts generic resources
    memory: bool = False  # counts the memory that jobs request
    licences: bool = False  # can count licences (`ClusterInfo.licences`) and take requests for them
    limit_granularity: float = 1.0  # seconds; time limits are rounded up to a multiple
    proves_absence: bool = True  # its listings can prove that a tag never arrived
    estimates_starts: bool = False  # estimates the start of pending tasks (`JobStatus.expected`)
    reservations: bool = False  # advance reservations: survey, reserve, delete_reservation
    # no job runs without a limit: else a reservation, however far ahead, keeps such jobs waiting
    limits_every_job: bool = True
    reserves_for_accounts: bool = False  # reservations can be for jobs of accounts of accounting
    reserves_named_nodes: bool = False  # metasched names the nodes; else the manager chooses them
    sets_slurm_variables: bool = False  # the manager itself sets SLURM_JOB_ID and the like
    job_options: tuple[str, ...] = ()  # those of `manager_options` that it honours
    # name of the local policy most like the manager's own scheduling, in forecasts and simulations
    # of a record; "": unknown, so `fcfs` stands for it, and doctor says so
    local_policy: str = ""
    # Pending tasks start in the order of metasched's priorities, not in that of their dispatch.
    # Forecasts read it where the manager lists no queue (`Listing.queue`).
    orders_by_priority: bool = False
    takes_sbatch_options: bool = False  # `Submission.options` are options of sbatch
    # Users reach it by Slurm's own commands. `Options` has config, bin_dir, tag_field, native_jobs.
    has_slurm_commands: bool = False
    # Without accounting, which a site may leave out, it forgets ends and reports no use of others:
    # doctor warns where `ClusterInfo.accounting_source` or `use_source` is missing.
    needs_accounting: bool = False
    on_daemon_host: bool = False  # its processors are those of the daemon's host


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A dispatch: tasks of a job, under a single tag, in this manager's own terms.

    `job.account`, `.partition`, `.qos` and `.constraint` are translated to the manager's names.
    `job.licences` are licences of the manager's own `ClusterInfo.licences`, to be requested.
    """

    tag: str
    job: Job
    payload: Payload
    indices: tuple[int, ...] = (0,)  # array indices of the tasks
    priority: int = 1  # 1..10, higher first
    options: tuple[str, ...] = ()  # the user's options for this cluster (`--native`), split
    fence: str = ""  # folder of claims; always "" when an adapter is called (see `claims`)
    reservation: str = ""  # name that was passed to `Adapter.reserve`; "" = none
    # copies of the licences leased to each task, by the site's names
    leased_licences: Mapping[str, int] = msgspec.field(default_factory=dict)
    # epoch seconds from which the tasks' wait counts, later than `job.submitted` if they had to
    # follow other tasks of their user; 0: from `job.submitted`
    waits_since: float = 0.0
    # scripts see metasched's id of the job in the variables of Slurm's, not the manager's;
    # ignored for scripts of another dialect
    exports_job_id: bool = False
    # with `exports_job_id`: no native job has such ids, so the drop-in commands come first
    has_drop_ins: bool = True
    # variables that lead commands in the tasks to the daemon; empty: those of the submission
    daemon_variables: Mapping[str, str] = msgspec.field(default_factory=dict)
    makes_token: bool = False  # with a fence: each task makes a token for calls of the daemon
    prologue: str = ""  # of the site, lines of sh that run before the script
    login: bool = False  # the script has the environment of a login shell (`login_environment`)
    dialect: str = "slurm"  # whose variables the script expects: slurm, gridengine or pbs
    runs_as_child: bool = False  # the script waits for the user's script, a child (see `claims`)

    def environment(self, index: int, cluster: str) -> dict[str, str]:
        """Return the whole environment of a task on `cluster`; metasched's variables win.

        Raises Refused if a variable has no valid name or contains a NUL.
        """
        job = self.job
        variables = {
            **self.payload.environment,
            **self.daemon_variables,
            "METASCHED_JOB_ID": str(job.id),
            "METASCHED_TAG": self.tag,
            "METASCHED_CLUSTER": cluster,
            "METASCHED_CPUS": str(job.cpus),
            **task_variables(job.id, job.parsed_array, index, self.exports_job_id),
        }
        if self.leased_licences:
            text = ",".join(f"{name}:{count}" for name, count in self.leased_licences.items())
            variables["METASCHED_LICENCES"] = text
            if self.dialect == "slurm":
                variables["SLURM_JOB_LICENSES"] = text
        if drop_in_folder() in self.payload.environment.get("PATH", "").split(":"):
            variables["METASCHED_DROP_IN"] = drop_in_folder()
        if self.exports_job_id:
            variables["SLURM_JOB_NAME"] = job.name
            variables["SLURM_SUBMIT_DIR"] = self.payload.directory
        variables.pop(NAMED_VARIABLES, None)
        for name, value in variables.items():
            if not name or "=" in name or "\0" in name + value:
                raise Refused(f"the environment variable {name[:40]!r} cannot be exported")
        return variables


def task_variables(
    job_id: int, array: JobArray | None, index: int, exports_job_id: bool
) -> dict[str, str]:
    """Return the environment variables that differ between the tasks of a job."""
    variables = {"METASCHED_TASK": str(index)}
    if array is not None:
        variables |= array.variables(job_id, index)
    if exports_job_id:
        number = task_number(job_id, array, index)
        # not SLURM_JOBID: MPI libraries that find it expect Slurm's other variables, and srun
        variables |= dict.fromkeys(("METASCHED_TASK_NUMBER", "SLURM_JOB_ID"), str(number))
    return variables


class ManagerState(msgspec.Struct, frozen=True, kw_only=True):
    """What calls of a manager found, for the checks of an installation."""

    cpus: int  # usable processors
    partitions: tuple[str, ...] = ()
    records: str = ""  # `ClusterInfo.accounting_source`
    release: str = ""  # of the manager's own commands
    clock_lead: float | None = None  # seconds; of its clock, `least_clock_lead`; None: not reported


def least_clock_lead(reported: float, asked_at: float, answered_at: float) -> float:
    """Return the certain lead of another clock over this host's, in seconds; negative: it lags.

    It reported whole seconds (epoch) between `asked_at` and `answered_at` (epoch seconds of this
    host). The delay of an answer is no difference.
    """
    return max(reported - answered_at, min(reported + 1.0 - asked_at, 0.0))


class Withdrawal(msgspec.Struct, frozen=True, kw_only=True):
    """A request to end tasks of a dispatch.

    With `only_pending` (a pull, a recall, a hold) a task may be ended only if it certainly has
    not started and can no longer start; running tasks continue. Otherwise tasks in any state end.
    """

    tag: str
    user: str = ""  # the job's owner
    native_ids: Mapping[int, str | None] = msgspec.field(default_factory=dict)  # None: unknown
    only_pending: bool = False
    # those of the tasks whose jobs are known, to find them without their tag
    jobs: tuple[KnownJob, ...] = ()


class Adapter(ABC):
    """One resource manager.

    `Options` is a frozen dataclass of the adapter's own keys in `[[cluster]]`. Its __post_init__
    raises ValueError for invalid values; metasched.config reports that with the file's line.
    """

    Options: ClassVar[type[Any]]
    poll_interval: ClassVar[float] = 5.0  # seconds between polls while tasks are queued or running
    # Seconds of running time within which the manager handles a request that it has received. A
    # command that got no answer counts as absent only after them (`answered_calls`); 0: a command
    # has no effect after its end. An instance may override it.
    settle: float = 20.0
    chunk: ClassVar[int] = 50  # most tasks in a submission: a long call delays polls
    # Whether, in site mode, `submit` and `withdraw_all` may run beside all other calls, in a thread
    # for each owner. They wait for the owner's processes, and must hold no lock meanwhile.
    concurrent_owners: ClassVar[bool] = False
    # Verbs of launcher.toml that this adapter needs in site mode: the cluster is down without them.
    launcher_verbs: ClassVar[tuple[str, ...]] = ()
    # Variables of the worker process that a library needs before its import; a site's own win.
    environment: ClassVar[Mapping[str, str]] = {}
    # An instance may override the class's capabilities where they depend on its options.
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(
        self,
        cluster: Cluster,
        options: Any,
        instance: str,
        folder: Path,
        launcher: LauncherClient | None = None,
    ) -> None:
        """Store the settings. Must not contact the manager: later calls raise Unreachable.

        `folder` belongs to this cluster, exists, and outlives the process. In site mode, changes
        to jobs go through `launcher` as the job's owner, and each JobStatus names its owner.
        Without a launcher (personal mode) this account makes all changes.
        """
        self.cluster, self.options, self.instance, self.folder = cluster, options, instance, folder
        self.launcher = launcher
        self.instances = frozenset({instance})  # whose tags `poll` recognises
        # Jobs of live attempts, set before each poll. If such a job has lost its tag,
        # `Listing.untagged` has it; so are jobs that may be dispatches without an answer.
        self.known_jobs = KnownJobs({})
        # Jobs that no listing has shown yet, with their accounts as sent, by native id; set before
        # each poll. `Listing.terms` has them, where the manager lists terms.
        self.new_jobs: Mapping[str, str | None] = {}

    @classmethod
    def capabilities_for(cls, options: Any) -> Capabilities:
        """Return the capabilities with these options, before an instance exists.

        Override this where capabilities depend on options.
        """
        return cls.capabilities

    @classmethod
    def configuration_warnings(
        cls, options: Any, environment: Mapping[str, str], site_mode: bool
    ) -> list[tuple[str, str]]:
        """Check the manager's own configuration; return (problem, remedy).

        `options` are those of the cluster, `environment` the variables of its worker. With
        `site_mode` the jobs belong to several accounts. Called by `metasched doctor` on the
        daemon's host, outside any worker. Raises Unreachable.
        """
        return []

    def inspect(self) -> ManagerState:
        """Query the manager without changing anything, before a daemon runs or beside it.

        Called on an instance of its own, with an empty folder: override this if the folder is the
        manager, or if a listing changes something. Raises Unreachable.
        """
        info = self.poll().info
        names = tuple(partition.name for partition in info.partitions)
        return ManagerState(cpus=info.cpus, partitions=names, records=info.accounting_source)

    def add_former_instances(self, names: frozenset[str]) -> None:
        """Recognise the tags of former instances, too: the database is a restored backup.

        Called before all other methods.
        """
        self.instances |= names

    @property
    def access(self) -> str:
        """The interface to the manager in use, such as `commands`; "" without alternatives."""
        return ""

    @property
    def exclusions(self) -> PolicyExclusions | None:
        """Passes of the configured local policy that failed; None: the manager has its own."""
        return None

    @abstractmethod
    def submit(self, submission: Submission) -> dict[int, str]:
        """Queue every task of the submission; return its native id by array index.

        On return the manager has stored all tasks as durably as it can. Raises Refused if no task
        is queued, PartlySubmitted if some certainly are not, otherwise Unreachable if some may be
        (search for the tag). The manager must not restart a task by itself
        if `submission.job.requeue` is false; None leaves it to the manager's own default.
        """

    @abstractmethod
    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Ask the manager to end tasks. Idempotent; unknown and ended tasks are no error.

        On return the manager has accepted the request; `poll` reports the end itself. Tasks whose
        native id is None are found by the tag. Raises Unreachable.
        """

    def withdraw_all(self, withdrawals: Sequence[Withdrawal]) -> None:
        """Withdraw tasks of several dispatches of a user, all with the same `only_pending`.

        Override this where the manager ends many jobs in a single call. If it raises, the manager
        may have accepted some withdrawals; the caller repeats each of them separately.
        """
        for withdrawal in withdrawals:
            self.withdraw(withdrawal)

    @abstractmethod
    def poll(self) -> Listing:
        """List the whole manager in bulk: the tasks of `instances` and the load of all users.

        Never query per job. `rows` contain only tasks whose tag is of `instances`. Raises
        Unreachable, also for a partial answer: absence from a listing counts as evidence.
        """

    def update_licence_demand(self, rho: Mapping[str, float]) -> None:  # noqa: B027 - optional
        """Store the demand per token of each licence (`LicenceQueue.rho`); called before each poll.

        For adapters that order the manager's queue: tasks with scarce licences should start early.
        """

    def resume_after(self, cursor: str | None) -> None:  # noqa: B027 - optional
        """Store the `Listing.cursor` after which `poll` lists ended tasks; called before each poll.

        A text that is no cursor of this manager: all ended tasks. None: the caller knows no
        cursors, and the listing has none. For managers that number the ends of tasks, so that a
        listing need not repeat those of a whole day.
        """

    def query_accounting(self, missing: Sequence[MissingTask]) -> AccountingAnswer:
        """Query the manager's accounting for tasks that are missing from a complete listing.

        Called only if `ClusterInfo.accounting_source` is set; repeated at growing intervals for
        tasks without an answer. A task is in `never_started` only if that is proved. Raises
        Unreachable.
        """
        return AccountingAnswer()

    def query_foreign_use(self, query: UseQuery) -> UseAnswer:
        """Return the processor time of jobs that metasched did not send, after the query's cursor.

        Called at intervals, only if `ClusterInfo.use_source` is set. An answer sums up at most
        `query.max_span` seconds, by user and account. A job that runs counts up to now, or once it
        ends if the manager reports it only then. No use is reported twice: an answer without an
        exception advances the cursor. The caller stores rows and cursor together. A record that
        cannot be read is counted in `set_aside`. Raises Unreachable.
        """
        return UseAnswer(cursor=query.cursor)

    def query_usage(self, ended: Sequence[EndedRun]) -> Mapping[int, RunUsage]:
        """Return the use of ended tasks, by position in `ended`; unknown tasks are left out.

        Called at intervals, only if `ClusterInfo.use_source` is set, for tasks whose use no
        listing has reported. Raises Unreachable.
        """
        return {}

    def read_shares(self) -> ShareTree:
        """Return the manager's own tree of shares. Raises Unreachable, Refused if it has none."""
        raise Refused("this kind of cluster has no shares")

    # Only where `capabilities.reservations`:

    def survey(self) -> Survey:
        """List the use of the nodes over time, and the reservations of this instance.

        With `reserves_named_nodes` the survey lists nodes, otherwise pools of processors. The
        instance's own reservations, recognised by name, are in `reservations`. They occupy no
        node, but do occupy processors of a pool. Jobs occupy nodes until their time limits, pools
        until `guard` seconds later. Raises Unreachable.
        """
        raise Refused(NO_RESERVATIONS)

    def reserve(self, spec: ReservationSpec) -> None:
        """Reserve exactly these nodes, or a number of processors of a pool, for the user.

        Only the user may submit jobs into the reservation. Idempotent: an existing reservation of
        that name is changed to match, and jobs pending in it stay in it. Nodes that the manager
        chose and that are unusable now are replaced. Licences are reserved too, if the manager
        can. Raises Refused if nothing was created or changed, Unreachable if that is unknown.
        """
        raise Refused(NO_RESERVATIONS)

    def delete_reservation(self, name: str) -> None:
        """Delete a reservation; do nothing if there is none of that name.

        Raises Refused with `retryable` while jobs are in it. Raises Unreachable.
        """
        raise Refused(NO_RESERVATIONS)

    def close(self) -> None:  # noqa: B027 - optional
        """Release the resources of this process; the manager's jobs continue."""
