"""The inputs of a study: jobs, clusters and present policy, and the two parts of the jobs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from metasched.config.policy_file import read_policy
from metasched.config.policy_words import values_of
from metasched.core.scheduler import DECISION_VERSION
from metasched.errors import UserError
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import Schedule
from metasched.laboratory.simulate.recorded_workload import RecordedPeriod, read_period
from metasched.laboratory.simulate.settings import (
    SimulationSettings,
    read_settings,
    read_workload,
    simulate,
)
from metasched.laboratory.simulate.site_record import open_record
from metasched.laboratory.simulate.workload import Workload
from metasched.policies.policy import Policy
from metasched.version import RELEASE

MIN_JOBS = 40  # of each part


class InputSources(NamedTuple):
    """Where the inputs come from, as on the command line; every process reads them itself."""

    trace: str  # file or generator; "": the record of the site
    clusters: str | None = None
    policy: str | None = None  # policy file in force; None: the defaults
    local: str | None = None  # local policy; None: that of `metasched simulate`
    settings: tuple[str, ...] = ()  # as KEY=VALUE
    jobs: str | None = None  # range A:B
    held_out: float = 0.3  # share of the jobs, at the end
    seed: int = 0
    database: str | None = None  # of the record: file or URL; None: that of the configuration
    config: str | None = None  # configuration; None: the nearest


@dataclass(frozen=True)
class TuningInputs:
    """Jobs, clusters and settings of all trials."""

    workload: Workload
    clusters: tuple[SimulatedCluster, ...]
    settings: SimulationSettings
    held_out: float  # share of the jobs
    recorded: RecordedPeriod | None = None  # the site with its drains, if its record is simulated

    def simulate(self, part: Workload, policy: Policy) -> Schedule:
        """Run a part of the jobs under a policy. UserError if that is impossible."""
        if self.recorded is not None:
            return replace(self.recorded, workload=part).run(policy)
        return simulate(part, self.clusters, replace(self.settings, meta_policy=policy))

    @property
    def present(self) -> Policy:
        """The policy that others are compared with."""
        return self.settings.meta_policy

    @property
    def training(self) -> Workload:
        """The jobs that trials see: all but the last."""
        return self.workload.subset(0, self._training_jobs())

    @property
    def held_out_part(self) -> Workload:
        """The last jobs, which no trial sees."""
        return self.workload.subset(self._training_jobs(), None)

    def early(self, share: float) -> Workload:
        """Return this share of the training part, its first jobs."""
        return self.workload.subset(0, max(1, round(self._training_jobs() * share)))

    def _training_jobs(self) -> int:
        return len(self.workload.entries) - round(len(self.workload.entries) * self.held_out)


@cache
def read_inputs(sources: InputSources) -> TuningInputs:
    """Read the inputs, once in each process. UserError in a line if any is invalid.

    Processes are forked from that which reads the record of a site, which changes all the time.
    """
    inputs = _read_trace(sources) if sources.trace else _read_record(sources)
    for part, remedy in ((inputs.training, "lower it"), (inputs.held_out_part, "raise it")):
        if len(part.entries) < MIN_JOBS:
            raise UserError(
                f"a part of {len(part.entries)} jobs, --held-out {sources.held_out:g}; "
                f"{remedy}, or take a trace with more jobs: {MIN_JOBS} are needed on each side"
            )
    return inputs


def _read_trace(sources: InputSources) -> TuningInputs:
    settings = read_settings(
        sources.policy, sources.settings, sources.seed, sources.clusters, sources.local
    )
    # `--seed` is of the jobs and the search; a tuned policy draws as the present policy does
    own = read_policy(None if sources.policy is None else Path(sources.policy))
    settings = replace(settings, meta_policy=replace(settings.meta_policy, seed=own.seed))
    workload, clusters = read_workload(sources.trace, sources.clusters, sources.jobs, settings)
    return TuningInputs(workload, clusters, settings, sources.held_out)


def _read_record(sources: InputSources) -> TuningInputs:
    """Read the record of the site in the ledger. The present policy is recorded, or a file."""
    config = None if sources.config is None else Path(sources.config)
    with open_record(sources.database, config).snapshot() as connection:
        recorded = read_period(connection)
    present = recorded.policy if sources.policy is None else read_policy(Path(sources.policy))
    settings = SimulationSettings(
        meta_policy=present, licence_pools=recorded.pools, seed=sources.seed
    )
    return TuningInputs(recorded.workload, recorded.clusters, settings, sources.held_out, recorded)


def describe_inputs(sources: InputSources, inputs: TuningInputs) -> dict[str, Any]:
    """Return all that the values of a trial depend on, for provenance; equal inputs are equal."""
    return {
        "trace": _named_with_digest(sources.trace)
        if sources.trace
        else f"record of the site, {len(inputs.workload.entries)} jobs "
        f"(sha256 {_digest_of_jobs(inputs.workload)})",
        "site": "as given" if inputs.recorded is None else _digest_of_site(inputs.recorded),
        "jobs": sources.jobs or "all",
        "clusters": "its own" if sources.clusters is None else _named_with_digest(sources.clusters),
        "local": sources.local or "default",
        "set": " ".join(sources.settings),
        "held_out": sources.held_out,
        "seed": sources.seed,
        "policy": values_of(inputs.present),
        "release": RELEASE,
        "decisions": DECISION_VERSION,
        "optuna": version("optuna"),
    }


def _digest_of_jobs(workload: Workload) -> str:
    """Return the start of a digest of the submitted jobs, their ids, owners and run times."""
    digest = hashlib.sha256()
    for entry in workload.entries:
        job = entry.job
        facts = (
            *(job.submitted, entry.run_time, job.cpus, job.estimated, job.time_limit, job.deadline),
            *(job.user, job.user_class, sorted(job.licences.items())),
            *(entry.task, job.array),
        )
        digest.update(f"{facts}\n".encode(errors="backslashreplace"))
    return digest.hexdigest()[:16]


def _digest_of_site(recorded: RecordedPeriod) -> str:
    """Return the start of a digest of all of a record but its jobs and its policy.

    Neither has to change when a cluster, a licence, a limit or a drain does.
    """
    parts = (
        *(recorded.clusters, recorded.local_policies, recorded.pools),
        *(recorded.fair_share, recorded.limits, recorded.drains),
    )
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]


def _named_with_digest(source: str) -> str:
    """Return the name of a file with the start of its SHA-256 digest; a word as it is."""
    path = Path(source)
    if not path.is_file():
        return source
    return f"{path.name} (sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:16]})"
