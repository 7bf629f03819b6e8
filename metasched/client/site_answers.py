"""Answers about the site, as the OpenAPI document describes them; see also `job_answers`.

Times are in UTC, in ISO 8601; null: it has not happened, or is not known.
"""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict


class BreakerRow(TypedDict):
    """Whether something that failed is tried again."""

    state: Literal["closed", "open", "half_open"]  # closed: it works
    failures: int  # in a row
    since: str | None  # the first of these failures
    next_try: str | None
    words: str  # the last error; "": none


class DrainRow(TypedDict):
    """Who drained a cluster, when and why."""

    by: str
    since: str
    reason: str
    keep_pending: bool  # jobs that are pending there stay
    entry: str | None  # of the calendar, which drained it


class UseRow(TypedDict):
    """Use by other jobs, and shares, as the accounting of a cluster reports them."""

    source: str  # "": it reports none
    until: str | None  # end of the period that is counted
    breaker: BreakerRow
    shares: BreakerRow


class AlteredRow(TypedDict):
    """A term that a cluster's manager lists otherwise than metasched sent it."""

    cluster: str
    kind: str  # tag, account, partition, limit, processors; copy: a tag on another job
    jobs: int  # since the start of the daemon
    first: str  # the first of them, in words


class LocalPolicyRow(TypedDict):
    """The local policy of a cluster of metasched's own, where FCFS decides if it fails."""

    excluded: bool  # FCFS decided the last pass
    excluded_passes: int  # since the start of the daemon


class ClusterRow(TypedDict):
    """A cluster, as `clusters --json` lists it."""

    cluster: str
    adapter: str
    access: str  # how its manager is reached
    state: str  # up, refusing, drained or down, with the reason
    refusing: str  # the words by which it refuses all jobs; "": it does not
    refused_users: int  # whose jobs alone it refuses
    cpus: int  # usable processors
    used: int  # processors, by jobs of anybody
    pending: int  # jobs of anybody
    records: str  # its accounting of ended jobs; "": none
    listed: str | None  # the last listing
    load: list[float]  # of priority 1 and above, 2 and above, ...
    count: list[int]  # queued jobs of priority 1 and above, 2 and above, ...
    pulls: int  # since the start of the daemon
    pulls_started_at_once: int
    drained: DrainRow | None
    set_aside: int  # rows of its listing that cannot be used
    local_policy: LocalPolicyRow | None  # null: its manager has its own
    breaker: BreakerRow  # of its polls
    worker: BreakerRow  # of its worker process
    use: UseRow
    max_native_id: int | None  # that its manager gives a job


class NativeClusterRow(TypedDict):
    """Data for a user's own command to reach a cluster. Paths are of Slurm alone."""

    cluster: str
    manager_name: str
    up: bool
    accounting: bool
    config: str | None  # path of slurm.conf
    bin_dir: str | None
    tag_field: str | None
    native_jobs: bool


class NativeClustersAnswer(TypedDict):
    """Where the clusters' own commands are, and which ids and tags are metasched's."""

    first_id: int
    instances: list[str]
    clusters: list[NativeClusterRow]


class NodesRow(TypedDict):
    """Nodes of a partition that are alike."""

    count: int
    up: bool
    cpus: int  # of each
    free_cpus: int  # of each
    memory: int | None  # MiB of each
    gres: dict[str, int]  # of each
    features: list[str]


class PartitionRow(TypedDict):
    """A partition of a cluster. Limits are in seconds; null: none."""

    partition: str
    cluster: str
    state: Literal["up", "drain", "down"]
    default: bool
    time_limit: float | None
    default_time: float | None
    max_nodes: int | None
    nodes: list[NodesRow]


class TokenWindowRow(TypedDict):
    """A reservation that holds tokens of a licence, or an entry of the calendar that limits it."""

    reservation: int | None
    entry: str | None
    count: int
    start: str
    end: str


class ManagerTokens(TypedDict):
    """The counts of a licence by a cluster's manager."""

    cluster: str
    total: int
    used: int
    others: int  # used by jobs that are not metasched's
    observed: str | None


class TokenCounts(TypedDict):
    """The tokens of a licence."""

    total: int | None
    ours: int  # leased to tasks
    outside: int  # used by others
    free: int | None
    state: str  # ok, unknown or over-committed, with the reason


class LicenceHolder(TypedDict):
    """A task with tokens of a licence. Of another user's task the caller may see the count only."""

    job: int | None
    task: int | None
    user: str | None
    count: int  # tokens
    since: str
    expected: str | None  # end by its time limit; null: it has not started


class LicenceHolders(TypedDict):
    """The oldest leases of a licence."""

    holders: list[LicenceHolder]
    more_holders: int  # that are not listed


class LicenceRow(TokenCounts, LicenceHolders):
    """A licence, as `licences --json` lists it. Counts are in tokens."""

    licence: str
    waiting: int  # requested by queued tasks
    rho: float | None  # queued tasks per token; above 1 the licence is critical
    lingering: int  # returned, but counted as used for a while
    headroom: int  # kept free
    clusters: list[str]  # that may use it; none: all
    machines: dict[str, str]  # the feature of its machines, by cluster
    server: str
    observed: str | None
    chosen: int | None  # the total that an operator has set
    reserved: int  # kept for windows that have begun
    windows: list[TokenWindowRow]
    managers: list[ManagerTokens]


class LicencePeriodRow(TypedDict):
    """The extreme figures of a licence in a period, in tokens."""

    begin: str
    total: int | None  # the most
    ours: int  # this and the next when most were in use
    outside: int
    free: int | None  # the fewest
    waiting: int  # requested by queued tasks, the most


class LicenceHistoryAnswer(TypedDict):
    """The figures of a licence over time; without periods when nothing is known."""

    licence: str
    since: str
    seconds: int  # of each period
    periods: int
    rows: list[LicencePeriodRow]


class LicenceServerRow(TypedDict):
    """The state of a licence server."""

    server: str
    kind: str
    licences: list[str]
    observed: str | None
    lacking: dict[str, str]  # licences missing in its last report, with the reason
    breaker: BreakerRow


class ReleasedTask(TypedDict):
    """A task whose leases were to be released."""

    job: int
    task: int | None  # index in the array
    released: dict[str, int]  # tokens, by licence
    note: str  # why there are none


class ReleasedTasks(TypedDict):
    """All tasks of a request to release leases."""

    jobs: list[ReleasedTask]


class LimitRow(TypedDict):
    """A limit, as `limits --json` lists it."""

    scope: str  # all, user, group, account or class
    name: str | None  # of the user, group, account or class
    limit: str
    used: int
    maximum: int


class ShareRow(TypedDict):
    """An account or user of the tree of shares."""

    account: str | None  # null: the root
    user: str | None  # null: the account itself
    parent: str | None
    weight: float
    share: float  # of all processors, 0 to 1
    used: float  # decayed processor-seconds
    used_share: float  # of all use, 0 to 1
    place: int | None  # of a user, 1 goes first


class OfferRow(TypedDict):
    """A possible window of a reservation; nodes or processors is null."""

    cluster: str
    start: str
    end: str
    nodes: int | None
    processors: int | None


class FreeWindow(OfferRow):
    """A window that can be reserved, with the times at which it may begin."""

    starts: list[tuple[str, str]]  # first and last start of each interval


class FreeWindows(TypedDict):
    """The answer to a dry run."""

    offers: list[FreeWindow]


class ReservationRow(TypedDict):
    """A reservation, as `reservations --json` lists it."""

    reservation: int
    user: str
    cluster: str
    start: str
    end: str
    size: int  # processors
    state: str
    nodes: list[str]
    cause: str  # of its last change
    made: str
    closed: str | None
    offers: list[OfferRow]  # windows that were possible when it broke
    let_run: float  # seconds that jobs may run past its end
    licences: dict[str, int]  # tokens
    mail: str  # address for the notice that it broke
    users: list[str]  # that share it with its owner
    accounts: list[str]  # of accounting; if any, jobs of these alone may run in it
    series: int | None  # null: it is no occurrence


class CalendarRow(TypedDict):
    """What recurs: an act of the site, or a series of reservations."""

    entry: int
    name: str | None
    does: str
    rule: str
    zone: str
    next: list[str]
    last: str | None
    running: str | None  # the time for which it runs now
    grace: float  # seconds after which a missed run is skipped
    until: str | None
    owner: str | None  # of a series
    made_by: str | None
    made: str
    folder: str | None  # of backups; only operators see it


class SeriesRow(CalendarRow):
    """A new series of reservations."""

    occurrences: int


class NotificationRow(TypedDict):
    """A mail, or a group of events for a webhook."""

    id: int
    receiver: str  # mail, or the webhook
    user: str
    job: int | None
    kind: str
    address: str | None
    created: str
    due: str | None  # of the next try
    state: str
    tries: int
    error: str | None
    ended: str | None


class Report(TypedDict):
    """A report of jobs and leases that ended in a period, by days of the site."""

    report: str
    since: str  # first day
    until: str  # day after the last
    time_zone: str | None
    by: list[str]
    rows: list[dict[str, Any]]  # the keys of `by`, and the figures of the report
    total: dict[str, Any]  # the figures of all rows together


class NewTokenRow(TypedDict):
    """A new token. Its secret is shown once."""

    id: int
    token: str
    expires: str
    scope: str


class NewLink(TypedDict):
    """A link that signs a browser in once."""

    url: str
    expires: str


class TokenRow(TypedDict):
    """A token, without its secret."""

    id: int
    user: str
    created: str
    expires: str
    revoked: str | None
    scope: str
    parent: int | None  # the token that opened this session of a browser, and ends it


class RevokedToken(TypedDict):
    """A token that is revoked now."""

    id: int


class EventRow(TypedDict):
    """A record of `events`. What its reader may not see is null."""

    id: int
    time: str
    kind: str
    actor: str | None
    owner: str | None
    cluster: str | None
    licence: str | None
    reservation: int | None
    job: int | None
    task: int | None
    count: int  # of equal records that this record stands for
    cause: str | None
    details: dict[str, Any]


class ReloadRow(TypedDict):
    """The effects of a reload."""

    changes: list[str]  # keys that are in force now
    restart_needed: list[str]  # changed keys that only a restart puts in force
    findings: list[dict[str, Any]]  # problems outside of the files, as of `doctor --json`


class PlugInRow(TypedDict):
    """A heuristic of the site that the policy names."""

    table: Literal["heuristics", "placement", "run_times"]
    heuristic: str
    problem: str  # why it is excluded for all jobs now; "": it is not
    excluded: int  # jobs for which it was excluded since the start of the service


class PolicyRow(TypedDict):
    """The policy in force. What only operators see is null for others."""

    version: int
    since: str
    values: dict[str, Any]  # by key, as `weights.user`
    change: Literal["file", "activated", "undone"]  # how it came into force
    by: str | None
    reason: str | None
    file: str | None  # "": the defaults
    site_file: str | None  # of the configuration; "": none
    differs_from_site_file: bool
    plug_ins: list[PlugInRow] | None  # those with a weight above 0


class PolicyVersionRow(TypedDict):
    """A version of the policy, as `policy history --json` lists it."""

    version: int
    time: str  # when it came into force
    change: Literal["file", "activated", "undone"]
    by: str
    reason: str
    file: str  # "": the defaults
    digest: str  # SHA-256 of the file; "": the defaults
    previous: int | None  # version that an undo returns to
    copy_of: int | None  # version that an undo returned to
    text: str | None  # contents of the file; null in a list


class ShadowCountsRow(TypedDict):
    """Dispatched tasks, by how a candidate policy decides on them."""

    tasks: int
    same_priority: int
    higher_priority: int  # by the candidate
    lower_priority: int
    choices: int  # tasks with several eligible clusters, if these are compared
    same_cluster: int  # of `choices`
    differing: int  # tasks with another priority or cluster


class ShadowClassRow(ShadowCountsRow):
    """The counts of a user class."""

    user_class: str


class ShadowMoveRow(TypedDict):
    """Tasks for which the candidate chooses another cluster."""

    live: str  # cluster where they went
    candidate: str
    tasks: int


class ShadowDifferenceRow(TypedDict):
    """A dispatched task on which a candidate policy decides otherwise."""

    time: str  # of the dispatch
    job: int
    task: int | None  # null: its job is no array
    user_class: str
    live_priority: int
    priority: int  # by the candidate
    live_cluster: str
    cluster: str | None  # by the candidate; null: not compared


class ShadowRow(TypedDict):
    """A candidate policy beside the policy in force, and how its stored decisions differ."""

    file: str
    digest: str  # SHA-256 of the file
    by: str
    reason: str
    since: str
    ended: str | None  # null: it runs
    end: str  # why it ended
    obstacle: str  # why nothing is compared now
    place_obstacle: str  # why clusters are not compared now
    problem: str  # the last failure, while it lasts
    waiting: int  # submissions and placements that the candidate has not seen yet
    dropped: int  # placements that were not compared, since the daemon or the policy started
    all: ShadowCountsRow
    with_deadline: ShadowCountsRow
    by_class: list[ShadowClassRow]
    moves: list[ShadowMoveRow]  # by number of tasks, at most 100
    differences: list[ShadowDifferenceRow]  # the last 20, the newest first


class DescriptorsRow(TypedDict):
    """File descriptors of the daemon."""

    open: int
    limit: int | None  # null: none


class HealthRow(TypedDict):
    """The state of the daemon. What only operators see is null or empty for others."""

    instance: str
    version: str
    commit: str | None  # of the code; null: unknown
    started: str
    user: str  # who asks
    operator: bool
    mail: str  # why mails are not sent; "": they are
    notifications: list[dict[str, Any]]  # of each receiver
    idempotency_keys: bool  # always: a submission with a key can be repeated
    first_id: int
    max_array_tasks: int  # most tasks of an array
    quarantine: list[dict[str, Any]]  # sources and rows that are set aside
    connections: list[dict[str, Any]]  # of each listener
    descriptors: DescriptorsRow | None
    configuration: dict[str, Any] | None
    withdrawals: list[dict[str, Any]]  # of an operator; requested several times without effect
    delayed: list[dict[str, Any]]  # users whose requests waited longest
    altered: list[AlteredRow]  # what managers list otherwise than it was sent
