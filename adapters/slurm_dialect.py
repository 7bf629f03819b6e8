"""Slurm's variables and `srun` for scripts on clusters of other managers. Pure."""

from __future__ import annotations

from metasched.adapters.base import Submission
from metasched.paths import drop_in_folder

_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def batch_variables(submission: Submission, cluster: str, cpus: int) -> dict[str, str]:
    """Return variables that sbatch's manual promises, for a job on a node with `cpus` processors.

    Empty for scripts that see no id of metasched as Slurm's. With `first_id` the drop-in `srun`
    comes first on the PATH.
    """
    if not submission.exports_job_id:
        return {}
    job = submission.job
    tasks = str(job.tasks)
    variables = {
        "SLURM_CLUSTER_NAME": cluster,
        "SLURM_CPUS_ON_NODE": str(cpus),
        "SLURM_CPUS_PER_TASK": str(max(cpus // job.tasks, 1)),
        "SLURM_JOB_CPUS_PER_NODE": str(cpus),
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_TASKS_PER_NODE": tasks,
    }
    if submission.has_drop_ins:
        path = submission.payload.environment.get("PATH") or _DEFAULT_PATH
        variables["PATH"] = f"{drop_in_folder()}:{path}"
    optional = {
        "SLURM_JOB_ACCOUNT": job.account,
        "SLURM_JOB_PARTITION": job.partition,
        "SLURM_JOB_QOS": job.qos,
        "SLURM_MEM_PER_NODE": job.memory,
        "SLURM_MEM_PER_CPU": job.memory_per_cpu,
    }
    return variables | {name: str(value) for name, value in optional.items() if value}
