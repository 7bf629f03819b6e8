"""The tables of metasched.toml and of a policy file, as pydantic checks them."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
)

from metasched.core.scheduler import MAX_MARGIN_JOBS
from metasched.model.arrays import MAX_TASKS
from metasched.model.cluster import Cluster
from metasched.model.licence import MAX_TOKENS
from metasched.model.reservation_request import ReservationQuota
from metasched.policies.eligible import FEATURE
from metasched.policies.policy import Policy
from metasched.units import parse_duration

TableT = TypeVar("TableT", bound=BaseModel)


def _parse_duration_text(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


def _require_absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError("write an absolute path, which the nodes see, too")
    return path


def _require_feature(name: str) -> str:
    if not FEATURE.fullmatch(name):
        raise ValueError("write the one feature that those machines have")
    return name


MAP_NAMES = ("partition", "account", "qos", "feature", "licence")  # whose words clusters translate


# ten years: beyond that a number is a slip, and sums of such numbers are no times any more
MAX_SECONDS = 10 * 366 * 86400.0


Seconds = Annotated[float, BeforeValidator(_parse_duration_text), Field(gt=0, le=MAX_SECONDS)]


_CLUSTER = Cluster(name="", adapter="")  # its defaults


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DaemonTable(_Table):
    database: str | None = None
    folder: str | None = None
    socket: str | None = None
    keep: Seconds = 365 * 86400.0
    max_array_tasks: Annotated[int, Field(ge=1, le=MAX_TASKS)] = 100_000
    mail_program: str | None = None


class SiteTable(_Table):
    """One daemon for all users: how it acts as them, and who may do what."""

    launcher: str
    operators: tuple[str, ...] = ()
    operator_groups: tuple[str, ...] = ()
    others_jobs: Literal["hidden", "listed"] = "hidden"


class TcpTable(_Table):
    """For clients on other hosts: where to listen, and how they say who they are."""

    listen: str
    munge: bool = False
    munge_socket: str | None = None
    names: tuple[str, ...] = ()
    tokens: bool = True
    certificate: str | None = None
    key: str | None = None


class PolicyTable(_Table):
    file: str | None = None


class UserClassTable(_Table):
    name: str
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class LicenceTable(_Table):
    """The copies of one licence: a `LicencePool`, or those of machines, of a `model.Cluster`."""

    name: str
    total: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    clusters: tuple[str, ...] = ()
    machines: dict[str, Annotated[str, AfterValidator(_require_feature)]] = Field(
        default_factory=dict
    )
    headroom: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    linger: (
        Annotated[float, BeforeValidator(_parse_duration_text), Field(ge=0, le=MAX_SECONDS)] | None
    ) = None
    server: str = ""
    stale_after: Seconds = 300.0


class ClusterTable(BaseModel):
    """The keys that every cluster has; the rest are the adapter's own options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.]{0,62}$")]
    adapter: str
    benchmark: Annotated[float, Field(ge=1e-6, le=1e9)] = 1.0
    filesystems: tuple[str, ...] = ()
    map: dict[str, dict[str, str]] = Field(default_factory=dict)
    poll_interval: Seconds | None = None
    call_timeout: Seconds = 60.0
    move_after: Seconds | None = None
    fence_dir: Annotated[str, AfterValidator(_require_absolute)] = ""
    takes: Literal["both", "jobs", "reservations"] = _CLUSTER.takes
    exclusive: bool = False
    binding: Literal["early", "late"] = "early"
    lead: Seconds = _CLUSTER.lead
    guard: Annotated[float, BeforeValidator(_parse_duration_text), Field(ge=0, le=MAX_SECONDS)] = (
        _CLUSTER.guard
    )
    python: str | None = None
    environment: dict[str, str] = Field(default_factory=dict)


class LicenceServerTable(BaseModel):
    """The keys of every server of licences; the rest are its kind's own options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    kind: str
    interval: Annotated[Seconds, Field(ge=1)] = 30.0
    timeout: Seconds = 20.0
    features: dict[str, str] = Field(default_factory=dict)


class QuotaTable(_Table):
    """What a user may reserve; see `reservations.Quota`."""

    horizon: Seconds = ReservationQuota.horizon
    longest: Seconds = ReservationQuota.max_duration
    most: Annotated[int, Field(ge=0)] | None = ReservationQuota.max_size
    let_run: Annotated[
        float, BeforeValidator(_parse_duration_text), Field(ge=0, le=MAX_SECONDS)
    ] = ReservationQuota.let_run


class ReservationsTable(QuotaTable):
    """What everybody may reserve, and instead of that the users of a class."""

    classes: dict[str, QuotaTable] = Field(default_factory=dict)


class ConfigFile(_Table):
    """The whole file."""

    daemon: DaemonTable = DaemonTable()
    site: SiteTable | None = None
    tcp: TcpTable | None = None
    policy: PolicyTable = PolicyTable()
    cluster: tuple[ClusterTable, ...] = ()
    licence: tuple[LicenceTable, ...] = ()
    user_class: tuple[UserClassTable, ...] = ()
    licence_server: tuple[LicenceServerTable, ...] = ()
    reservations: ReservationsTable = ReservationsTable()


class PolicyFile(_Table):
    """The keys of a policy file; what is not given keeps the default of `core.Policy`."""

    max_priority: Annotated[int, Field(ge=1, le=100)] = Policy.max_priority
    window: Annotated[int, Field(ge=1, le=MAX_MARGIN_JOBS)] = Policy.window
    weights: dict[str, Annotated[float, Field(ge=0, le=1e6)]] = Field(default_factory=dict)
    classes: dict[str, Annotated[int, Field(ge=0, le=1000)]] = Field(
        default_factory=lambda: dict(Policy().classes)
    )
    load: str = Policy.load
    ordering: str = Policy.ordering
    tolerance: Annotated[float, Field(ge=0, le=1)] = Policy.tolerance
    pull: bool = Policy.pull
    pull_after: Seconds = Policy.pull_after
    patience: Seconds = Policy.patience
    age: Annotated[float, BeforeValidator(_parse_duration_text), Field(ge=0, le=MAX_SECONDS)] = (
        Policy.age
    )
    default_time: Seconds = Policy.default_time
    seed: int = Policy.seed
    send: str = Policy.send
    reserve: str = Policy.reserve
