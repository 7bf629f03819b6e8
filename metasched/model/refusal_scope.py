"""For which jobs a manager's refusal holds, and which jobs those are. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

from metasched.model.job import Job

# All jobs of the cluster, or those that agree in each of these properties.
RefusalScope = Literal[
    "cluster",
    "partition",
    "user+partition",
    "qos",
    "user+qos",
    "account+qos",
    "user+account+qos",
    "account",
    "user+account",
    "user",
    "job",
]
_OF_USER: dict[RefusalScope, RefusalScope] = {
    "cluster": "user",
    "partition": "user+partition",
    "qos": "user+qos",
    "account+qos": "user+account+qos",
    "account": "user+account",
}


class JobSet(NamedTuple):
    """The jobs that a refusal in some scope holds for; None: any."""

    job: int | None = None
    user: str | None = None
    account: str | None = None  # "": the default account of `user`
    qos: str | None = None  # "": the default QOS of `user`
    partition: str | None = None  # "": the default partition

    def includes(self, job: Job) -> bool:
        """Return whether a job is among them."""
        return all(
            required is None or required == actual
            for required, actual in zip(self, _properties_of(job), strict=True)
        )

    def __str__(self) -> str:
        names = [
            f"{name} {value}" if value != "" else f"the default {name}"
            for name, value in self._asdict().items()
            if value is not None
        ]
        return ", ".join(names) or "all jobs"


def _properties_of(job: Job) -> JobSet:
    return JobSet(job.id, job.user, job.account or "", job.qos or "", job.partition or "")


def jobs_in_scope(scope: RefusalScope, job: Job) -> JobSet:
    """Return the jobs that a refusal of `job` in this scope holds for.

    A user without an account in the job has a default account of his own, likewise for the QOS.
    """
    properties = _properties_of(job)
    names = set() if scope == "cluster" else set(scope.split("+"))
    if ("account" in names and not job.account) or ("qos" in names and not job.qos):
        names.add("user")
    return JobSet(**{name: getattr(properties, name) for name in names})


def scope_of_user(scope: RefusalScope) -> RefusalScope:
    """Return a scope that is limited to the jobs of one user."""
    return _OF_USER.get(scope, scope)
