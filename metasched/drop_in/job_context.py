"""The job in which a command runs: METASCHED_* of its script, kept where clients remove SLURM_*."""

from __future__ import annotations

import os

from metasched.drop_in.command import CommandError

_ID_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOBID")


def current_job_id() -> str:
    """Return the id of the job in which this process runs; "" outside of a job."""
    return next((os.environ[name] for name in _ID_VARIABLES if os.environ.get(name)), "")


def job_number() -> str:
    """Return the number that metasched has for the task; "" if its script sees the manager's."""
    return os.environ.get("METASCHED_TASK_NUMBER", "")


def on_other_manager() -> bool:
    """Return whether this process runs in a job of metasched on a cluster without Slurm."""
    return (
        bool(job_number())
        and current_job_id() == job_number()
        and "METASCHED_SLURM_CONF" not in os.environ
    )


def shows_own_id(name: str) -> bool:
    """Return whether the job's script sees metasched's id, so that `name` must get the manager's.

    False in a job that metasched did not send: it may have inherited METASCHED_*. CommandError in
    a job on a cluster without Slurm.
    """
    if current_job_id() != job_number():
        return False
    if on_other_manager():
        cluster = os.environ.get("METASCHED_CLUSTER", "")
        raise CommandError(
            f"{name}: error: cluster {cluster} has no Slurm; run the program without {name}"
        )
    return True


def use_manager_id() -> None:
    """Set Slurm's own id of the job, and the cluster's configuration if a client removed it."""
    os.environ.update(dict.fromkeys(_ID_VARIABLES, os.environ["METASCHED_NATIVE_ID"]))
    if os.environ["METASCHED_SLURM_CONF"]:
        os.environ.setdefault("SLURM_CONF", os.environ["METASCHED_SLURM_CONF"])
