"""Variables of Grid Engine and PBS for scripts in these dialects, on clusters of any kind. Pure.

Lines of sh before the script set them: only the node knows where the job runs. They read the hosts
from the variables of Slurm or Grid Engine; elsewhere the job has a single host.
"""

from __future__ import annotations

from dataclasses import replace
from shlex import quote

from msgspec import structs

from metasched.adapters.base import Submission
from metasched.adapters.interpreter import exec_lines

# awk(1) for the words of squeue(1): counts such as `4(x2),2`, each of a host
_COUNTS = (
    '{hosts[NR]=$1} END{parts=split(counts,part,",");'
    "for(i=1;i<=parts;i++){count=part[i];times=1;"
    "if(match(count,/\\(x[0-9]+\\)/)){times=substr(count,RSTART+2,RLENGTH-3);"
    "count=substr(count,1,RSTART-1)}"
    "for(j=0;j<times;j++)counted[++last]=count}"
    "for(i=1;i<=NR;i++)print hosts[i],counted[i]+0}"
)


def with_dialect_variables(submission: Submission, cluster: str, bin_dir: str) -> Submission:
    """Return the submission with a script that sets the variables of its dialect, then runs it.

    Slurm's own dialect needs no such script (`slurm_dialect`).

    `bin_dir` has the commands of the cluster's manager; "": they are on PATH. A script that a
    manager of its dialect runs keeps what that manager sets.
    """
    variables = _gridengine_lines if submission.dialect == "gridengine" else _pbs_lines
    payload = submission.payload
    lines = ["#!/bin/sh", *variables(submission, cluster, bin_dir), *exec_lines(payload.script), ""]
    script = "\n".join(lines)
    return structs.replace(submission, payload=replace(payload, script=script), dialect="slurm")


def _host_lines(submission: Submission, bin_dir: str, unit: str) -> list[str]:
    """Return lines that set `_ms_hosts` to a line "HOST NUMBER" for each host of the job.

    `unit` of the counts: `cpus` or `tasks`.
    """
    job = submission.job
    total, per_task = (job.cpus, 1) if unit == "cpus" else (job.tasks, job.cpus_per_task)
    counts = "$SLURM_JOB_CPUS_PER_NODE" if unit == "cpus" else "$SLURM_TASKS_PER_NODE"
    return [
        'if [ -n "$SLURM_JOB_NODELIST" ]; then',
        f"  _ms_hosts=$(PATH={quote(bin_dir)}:$PATH:/usr/bin scontrol show hostnames "
        f'"$SLURM_JOB_NODELIST" | awk -v counts="{counts}" {quote(_COUNTS)})',
        'elif [ -n "$SGE_JOB_SPOOL_DIR" ] && [ -r "$PE_HOSTFILE" ]; then',
        f"  _ms_hosts=$(awk '{{print $1, int($2 / {per_task})}}' \"$PE_HOSTFILE\")",
        "fi",
        f'[ -n "$_ms_hosts" ] || _ms_hosts="$(uname -n) {total}"',
        '_ms_count=$(printf "%s\\n" "$_ms_hosts" | wc -l)',
        "_ms_count=$((_ms_count))",
    ]


def _file_lines(variable: str, program: str) -> list[str]:
    """Return lines that write a file of hosts by an awk program, and name it in a variable.

    Grid Engine removes TMPDIR with the job, and the file with it. Elsewhere it is unlinked: the
    script's process holds it open, so all processes of the user on the node can read it by that
    path.
    """
    return [
        '_ms_file=$(mktemp "${TMPDIR:-/tmp}/metasched.XXXXXX") || exit 1',
        'exec 7<"$_ms_file" || exit 1',
        f'printf "%s\\n" "$_ms_hosts" | awk {quote(program)} >"$_ms_file" || exit 1',
        'if [ -z "$SGE_JOB_SPOOL_DIR" ]; then',
        '  rm -f "$_ms_file"; _ms_file=/proc/$$/fd/7',
        "fi",
        f"export {variable}=$_ms_file",
    ]


def _exports(values: dict[str, str]) -> list[str]:
    """Return lines that export variables; the values are words of sh."""
    return [f"export {name}={value}" for name, value in values.items()]


def _gridengine_lines(submission: Submission, cluster: str, bin_dir: str) -> list[str]:
    job = submission.job
    queue = job.partition or cluster
    by_manager = {
        "JOB_ID": "$METASCHED_JOB_ID",
        "NSLOTS": str(job.cpus),
        "NHOSTS": "$_ms_count",
        "NQUEUES": "$_ms_count",
        "QUEUE": quote(queue),
    }
    values = {
        "JOB_NAME": quote(job.name),
        "REQUEST": quote(job.name),
        "ENVIRONMENT": "BATCH",
        "HOSTNAME": '"$(uname -n)"',
        "RESTARTED": '"${RESTARTED:-$((${SLURM_RESTART_COUNT:-0} > 0))}"',
        "SGE_CLUSTER_NAME": quote(cluster),
        "TMPDIR": '"${TMPDIR:-/tmp}"',
        "TMP": '"$TMPDIR"',
        **_submit_variables("SGE_O_", submission),
    }
    if job.array is None:
        names = ("SGE_TASK_ID", "SGE_TASK_FIRST", "SGE_TASK_LAST", "SGE_TASK_STEPSIZE")
        values |= dict.fromkeys(names, "undefined")
    lines = [
        # Grid Engine's own are right; others were inherited from the submission
        f'[ -n "$SGE_JOB_SPOOL_DIR" ] || unset PE PE_HOSTFILE RESTARTED {" ".join(by_manager)}',
        *_host_lines(submission, bin_dir, "cpus"),
        *(f": ${{{name}:={own_value}}}" for name, own_value in by_manager.items()),
        f"export {' '.join(by_manager)}",
        *_exports(values),
    ]
    if job.cpus > 1:
        program = f'{{print $1, $2, {_awk_text(queue + "@")} $1, "UNDEFINED"}}'
        host_file = ["export PE=metasched", *_file_lines("PE_HOSTFILE", program)]
        lines += ['if [ -z "$PE_HOSTFILE" ]; then', *host_file, "fi"]
    return lines


def _pbs_lines(submission: Submission, cluster: str, bin_dir: str) -> list[str]:
    job = submission.job
    number = "$METASCHED_JOB_ID"
    limit = "" if job.time_limit is None else str(int(job.time_limit))
    values = {
        "PBS_JOBID": number if job.array is None else f'"{number}[$METASCHED_TASK]"',
        "PBS_JOBNAME": quote(job.name),
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_QUEUE": quote(job.partition or cluster),
        "PBS_O_QUEUE": quote(job.partition or cluster),
        "PBS_JOBDIR": '"$PWD"',
        "PBS_NUM_NODES": "$_ms_count",
        "PBS_NUM_PPN": '"$(printf "%s\\n" "$_ms_hosts" | awk \'NR == 1 {print $2}\')"',
        "PBS_NP": str(job.tasks),
        "PBS_NODENUM": "0",
        "PBS_VNODENUM": "0",
        "PBS_TASKNUM": "1",
        "PBS_WALLTIME": limit,
        "NCPUS": f"$((PBS_NUM_PPN * {job.cpus_per_task}))",
        "OMP_NUM_THREADS": f'"${{OMP_NUM_THREADS:-{job.cpus_per_task}}}"',
        **_submit_variables("PBS_O_", submission),
    }
    if job.array is not None:
        values["PBS_ARRAY_ID"] = f'"{number}[]"'
    program = "{for(i=0;i<$2;i++)print $1}"
    lines = [
        *_host_lines(submission, bin_dir, "tasks"),
        *_exports(values),
        *_file_lines("PBS_NODEFILE", program),
    ]
    return ['if [ -z "$PBS_JOBID" ]; then', *lines, "fi"]


def _submit_variables(prefix: str, submission: Submission) -> dict[str, str]:
    """Return the variables that a manager keeps of the submission, as words of sh."""
    environment = submission.payload.environment
    values = {name: environment.get(name, "") for name in ("HOME", "PATH", "SHELL")}
    values |= {"LOGNAME": submission.job.user, "WORKDIR": submission.payload.directory}
    return {prefix + name: quote(value) for name, value in values.items() if value}


def _awk_text(text: str) -> str:
    """Return a text of a program of awk."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
