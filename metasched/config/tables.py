"""Pydantic models of the tables in metasched.toml and in a policy file."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from metasched.model.arrays import MAX_TASKS
from metasched.model.cluster import MAX_CALL_TIMEOUT, Cluster
from metasched.model.fair_share import DEFAULT_HALF_LIFE, MAX_WEIGHT, MIN_HALF_LIFE, MIN_WEIGHT
from metasched.model.licence import MAX_TOKENS
from metasched.model.limits import MAX_LIMIT
from metasched.model.mail import ADDRESS
from metasched.model.reservation_request import ReservationQuota
from metasched.model.units import parse_duration
from metasched.paths import MAX_REQUEST_BYTES
from metasched.policies.eligible import FEATURE
from metasched.policies.policy import MAX_WINDOW, PlugInSettings, Policy, SelfOptimisation

TableT = TypeVar("TableT", bound=BaseModel)


def _parse_duration_text(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


def _require_absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError("write an absolute path that all nodes can access")
    return path


def _is_text_table(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _require_word(value: object) -> object:
    if not isinstance(value, str) and not _is_text_table(value):
        raise ValueError("write a name in quotes, or for an account a table of names by user")
    return value


def _require_shell_text(text: str) -> str:
    if "\0" in text or "\r" in text or len(text) > MAX_PROLOGUE:
        raise ValueError(f"write lines of sh, at most {MAX_PROLOGUE} characters, no NUL or CR")
    return text


def _require_line(text: str) -> str:
    if len(text) > MAX_REASON or not text.isprintable():
        raise ValueError(f"write a line of at most {MAX_REASON} characters")
    return text


def _require_feature(name: str) -> str:
    if not FEATURE.fullmatch(name):
        raise ValueError("write the feature of those machines")
    return name


def _require_address(text: str) -> str:
    if not ADDRESS.fullmatch(text):
        raise ValueError("write an address such as metasched@example.org")
    return text


MAX_MAILS = 10_000  # to a user in an hour
MAP_NAMES = ("partition", "account", "qos", "feature", "licence")  # tables of [cluster.map]
MAX_PROLOGUE = 65536  # characters
MAX_QUEUE_DEPTH = 1_000_000  # tasks
MAX_CALENDAR_ENTRIES = 200
MAX_REASON = 200  # characters
MAX_SEED = 10**15  # exact in JSON for all readers
MAX_FIRST_ID = 10**15  # ids above it stay exact in JSON, and fit into columns of other tools
MAX_SECONDS = 10 * 366 * 86400.0  # ten years; sums of longer durations exceed the range of times
Seconds = Annotated[float, BeforeValidator(_parse_duration_text), Field(gt=0, le=MAX_SECONDS)]
SecondsOrZero = Annotated[float, BeforeValidator(_parse_duration_text), Field(ge=0, le=MAX_SECONDS)]
# a name of the manager or, of accounts, a table of names by user; a union would be described badly
Word = Annotated[Any, AfterValidator(_require_word)]
_CLUSTER = Cluster(name="", adapter="")  # supplies defaults


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DaemonTable(_Table):
    """[daemon]: where the daemon stores its state and accepts requests."""

    database: str | None = None
    folder: str | None = None
    socket: str | None = None
    keep: Seconds = 365 * 86400.0
    keep_events: Seconds = 2 * 365 * 86400.0
    log_format: Literal["text", "json"] = "text"
    max_array_tasks: Annotated[int, Field(ge=1, le=MAX_TASKS)] = 100_000
    first_id: Annotated[int, Field(ge=1, le=MAX_FIRST_ID)] = 1
    mail_program: str | None = None
    zone: str | None = None
    connections: Annotated[int, Field(ge=16, le=65536)] = 1024
    head_timeout: Seconds = 10.0
    body_timeout: Seconds = 60.0
    max_answers: Annotated[int, Field(ge=16 << 20)] = 4 << 30
    max_request: Annotated[int, Field(ge=1 << 20, le=MAX_REQUEST_BYTES)] = MAX_REQUEST_BYTES


class SiteTable(_Table):
    """[site]: a daemon for all users, with its launcher and operators."""

    launcher: str
    operators: tuple[str, ...] = ()
    operator_groups: tuple[str, ...] = ()
    others_jobs: Literal["hidden", "listed"] = "hidden"


class TcpTable(_Table):
    """[tcp]: address and authentication for clients on other hosts."""

    listen: str
    munge: bool = False
    munge_socket: str | None = None
    names: tuple[str, ...] = ()
    tokens: bool = True
    certificate: str | None = None
    key: str | None = None
    url: str | None = None


class WebTable(_Table):
    """[web]: pages for browsers."""

    url: str | None = None
    proxy_socket: str | None = None
    proxy_user: str | None = None
    user_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,100}$")] = "X-Remote-User"


class DoctorTable(_Table):
    """[doctor]: the ordinary account of the jobs of `metasched doctor --probe`."""

    account: str = ""


class PolicyTable(_Table):
    """[policy]: the policy file."""

    file: str | None = None


class MailTable(_Table):
    """[mail]: the program that sends mail, and to whom."""

    program: str | None = None
    sender: Annotated[str, AfterValidator(_require_address)] = ""
    domains: tuple[str, ...] = ()
    alerts_to: tuple[Annotated[str, AfterValidator(_require_address)], ...] = ()
    per_hour: Annotated[int, Field(ge=1, le=MAX_MAILS)] = 60


class WebhookTable(_Table):
    """[[webhook]]: a receiver of events."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    url: str
    secret_file: str
    kinds: tuple[str, ...] = ("job_ended", "reservation_broken", "alerts")
    allow_private: bool = False


class UserClassTable(_Table):
    """[[user_class]]: members of a user class."""

    name: str
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class LicenceTable(_Table):
    """[[licence]]: a floating licence (`LicencePool`), or a licence of machines of clusters."""

    name: str
    total: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    clusters: tuple[str, ...] = ()
    machines: dict[str, Annotated[str, AfterValidator(_require_feature)]] = Field(
        default_factory=dict
    )
    headroom: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    linger: SecondsOrZero | None = None
    server: str = ""
    stale_after: Seconds = 300.0


class ClusterJobTable(_Table):
    """[cluster.job]: the environment of job scripts on a cluster."""

    job_id: Literal["metasched", "native"] | None = None
    prologue: Annotated[str, AfterValidator(_require_shell_text)] = ""
    environment: Literal["submit", "login"] = "submit"


class ClusterTable(BaseModel):
    """[[cluster]]: the keys of every cluster; all others are options of its adapter."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.]{0,62}$")]
    adapter: str
    benchmark: Annotated[float, Field(ge=1e-6, le=1e9)] = 1.0
    filesystems: tuple[str, ...] = ()
    mounts: dict[str, str] = Field(default_factory=dict)
    map: dict[str, dict[str, Word]] = Field(default_factory=dict)
    poll_interval: Seconds | None = None
    call_timeout: Annotated[Seconds, Field(le=MAX_CALL_TIMEOUT)] = 60.0
    calls: Annotated[int, Field(ge=1, le=32)] = 4
    queue_depth: Annotated[int, Field(ge=1, le=MAX_QUEUE_DEPTH)] | None = None
    move_after: Seconds | None = None
    fence_dir: Annotated[str, AfterValidator(_require_absolute)] = ""
    takes: Literal["both", "jobs", "reservations"] = _CLUSTER.takes
    exclusive: bool = False
    binding: Literal["early", "late"] = "early"
    lead: Seconds = _CLUSTER.lead
    guard: SecondsOrZero = _CLUSTER.guard
    python: str | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    job: ClusterJobTable = ClusterJobTable()


class LicenceServerTable(BaseModel):
    """[[licence_server]]: the keys of every server; all others are options of its kind."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    kind: str
    interval: Annotated[Seconds, Field(ge=1)] = 30.0
    timeout: Seconds = 20.0
    features: dict[str, str] = Field(default_factory=dict)


class QuotaTable(_Table):
    """Limits of reservations; see `ReservationQuota`."""

    horizon: Seconds = ReservationQuota.horizon
    longest: Seconds = ReservationQuota.max_duration
    most: Annotated[int, Field(ge=0)] | None = ReservationQuota.max_size
    let_run: SecondsOrZero = ReservationQuota.let_run


class ReservationsTable(QuotaTable):
    """[reservations]: limits for all users, with other limits by user class."""

    ahead: Seconds = 28 * 86400.0
    classes: dict[str, QuotaTable] = Field(default_factory=dict)


class CalendarTable(_Table):
    """[[calendar]]: an act that recurs; see `CalendarEntry`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    at: str
    do: Literal["drain", "resume", "backup", "prune", "licence", "policy"]
    cluster: str = ""
    reason: Annotated[str, AfterValidator(_require_line)] = ""
    keep_pending: bool = False
    folder: str = ""
    copies: Annotated[int, Field(ge=1, le=1000)] = 7
    file: str = ""
    licence: str = ""
    total: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    lasts: Annotated[Seconds, Field(ge=60)] | None = None
    zone: str | None = None
    grace: Annotated[Seconds, Field(ge=60)] = 3600.0


Amount = Annotated[int, Field(ge=0, le=MAX_LIMIT)]


class LimitsOfScope(_Table):
    """Limits of a user, group, account or class, or of all; see `LimitTable`."""

    open_tasks: Amount | None = None
    queued: Amount | None = None
    stored_bytes: Amount | None = None
    dispatched: Amount | None = None
    running: Amount | None = None
    processors: Amount | None = None
    licences: dict[str, Amount] = Field(default_factory=dict)


class LimitsTable(LimitsOfScope):
    """[limits]: limits of all tasks together, with those of each user and of named scopes."""

    each_user: LimitsOfScope = LimitsOfScope()
    users: dict[str, LimitsOfScope] = Field(default_factory=dict)
    groups: dict[str, LimitsOfScope] = Field(default_factory=dict)
    accounts: dict[str, LimitsOfScope] = Field(default_factory=dict)
    classes: dict[str, LimitsOfScope] = Field(default_factory=dict)


Weight = Annotated[float, Field(ge=MIN_WEIGHT, le=MAX_WEIGHT, allow_inf_nan=False)]


class ShareAccountTable(_Table):
    """[fair_share.shares.NAME]: an account of the tree of shares; see `ShareAccount`."""

    parent: str = ""
    weight: Weight = 1.0
    users: dict[str, Weight] = Field(default_factory=dict)
    other_users: Weight | None = None


DEFAULT_USE_INTERVAL = 300.0  # seconds


class FairShareTable(_Table):
    """[fair_share]: shares of accounts and users over all clusters."""

    half_life: Annotated[Seconds, Field(ge=MIN_HALF_LIFE, allow_inf_nan=False)] = DEFAULT_HALF_LIFE
    shares: dict[str, ShareAccountTable] = Field(default_factory=dict)
    users: dict[str, Weight] = Field(default_factory=dict)
    default: Weight = 1.0
    shares_from: str | None = None
    interval: Seconds = DEFAULT_USE_INTERVAL  # between queries of accounting


class ConfigFile(_Table):
    """metasched.toml."""

    daemon: DaemonTable = DaemonTable()
    mounts: dict[str, str] = Field(default_factory=dict)
    site: SiteTable | None = None
    tcp: TcpTable | None = None
    web: WebTable | None = None
    doctor: DoctorTable = DoctorTable()
    policy: PolicyTable = PolicyTable()
    cluster: tuple[ClusterTable, ...] = ()
    licence: tuple[LicenceTable, ...] = ()
    user_class: tuple[UserClassTable, ...] = ()
    licence_server: tuple[LicenceServerTable, ...] = ()
    reservations: ReservationsTable = ReservationsTable()
    limits: LimitsTable = LimitsTable()
    fair_share: FairShareTable | None = None
    calendar: tuple[CalendarTable, ...] = ()
    mail: MailTable = MailTable()
    webhook: tuple[WebhookTable, ...] = ()


class SelfOptimisationTable(_Table):
    """[self_optimising.PARAMETER] of a policy file; `SelfOptimisation` checks the values."""

    history: int = SelfOptimisation.history
    delta: float = SelfOptimisation.delta
    norm: Literal["l1", "l2"] = SelfOptimisation.norm
    target: tuple[float, ...] = ()


PlugInName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]
ParameterName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
MAX_PARAMETER = 10**12  # of a heuristic of the site; either sign


class PlugInTable(_Table):
    """[heuristics.NAME], [placement.NAME], [run_times.NAME]: a heuristic of the site."""

    weight: Annotated[float, Field(ge=0, le=1e6)] = PlugInSettings.weight
    parameters: dict[
        ParameterName, Annotated[float, Field(ge=-MAX_PARAMETER, le=MAX_PARAMETER)]
    ] = Field(default_factory=dict)


PlugInTables = dict[PlugInName, PlugInTable]


class PolicyFile(_Table):
    """A policy file; missing keys have the defaults of `Policy`."""

    max_priority: Annotated[int, Field(ge=1, le=100)] = Policy.max_priority
    window: Annotated[int, Field(ge=1, le=MAX_WINDOW)] = Policy.window
    weights: dict[str, Annotated[float, Field(ge=0, le=1e6)]] = Field(default_factory=dict)
    classes: dict[str, Annotated[int, Field(ge=0, le=1000)]] = Field(
        default_factory=lambda: dict(Policy().classes)
    )
    load: Literal["observed", "paper", "forecast"] = Policy.load
    ordering: Literal["array", "equal"] = Policy.ordering
    tolerance: Annotated[float, Field(ge=0, le=1)] = Policy.tolerance
    pull: bool = Policy.pull
    pull_after: Seconds = Policy.pull_after
    patience: Seconds = Policy.patience
    age: SecondsOrZero = Policy.age
    default_time: Seconds = Policy.default_time
    seed: Annotated[int, Field(ge=-MAX_SEED, le=MAX_SEED)] = Policy.seed
    send: Literal["at_once", "late"] = Policy.send
    reserve: Literal["earliest", "first"] = Policy.reserve
    self_optimising: dict[str, SelfOptimisationTable] = Field(default_factory=dict)
    heuristics: PlugInTables = Field(default_factory=dict)
    placement: PlugInTables = Field(default_factory=dict)
    run_times: PlugInTables = Field(default_factory=dict)
