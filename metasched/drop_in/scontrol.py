"""`scontrol`: shows jobs, partitions, configuration, hosts; changes, holds, requeues jobs."""

from __future__ import annotations

import os
import time

from metasched.client.connection import ClientError, NotFound, PermissionDenied
from metasched.drop_in.command import (
    VERSION,
    VERSION_LINE,
    CommandError,
    connect,
    fail,
    fail_for_job,
    listed_tasks,
    parse_options,
    real_arguments,
)
from metasched.drop_in.format_language import printable
from metasched.drop_in.job import (
    OPEN_STATES,
    UNSET,
    Job,
    format_clock,
    format_time,
    parse_time,
    user_group,
    user_id,
)
from metasched.drop_in.job_filters import fold_waiting, is_job_id, words_of
from metasched.drop_in.native_clusters import read_clusters, run_native
from metasched.paths import FOLD

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from metasched.drop_in.native_clusters import NativeCluster, NativeClusters

OPTIONS = {
    "all": "a",
    "clusters=": "M",
    "cluster=": "M",
    "details": "d",
    "help": "h",
    "oneliner": "o",
    "quiet": "Q",
    "verbose": "v",
    "version": "V",
}
_ACTIONS = ("hold", "uhold", "release", "requeue", "requeuehold")
# real commands that metasched does not replace; of some a word is a job
_MANY_JOBS_VERBS = ("resume", "suspend")
_CHANGING_VERBS = (*_MANY_JOBS_VERBS, "notify", "top")
_JOB_VERBS = {"listpids": 1, "notify": 1, "top": 1, "wait_job": 1, "write": 2}
# what the real ones say of a job with a problem
_JOB_ERRORS = {
    "notify": "job notify failure: {problem}",
    "show": "slurm_get_job_steps error: {problem}",
    "wait_job": "scontrol: Problem running job {id}",
    "write": "job script retrieval failed: {problem}",
}
_REAL_VERBS = (
    *("abort", "cancel_reboot", "completing", "create", "delete", "getaddrs", "listpids"),
    *("pidinfo", "ping", "power", "reboot", "reboot_nodes", "reconfigure", "schedloglevel"),
    *("setdebug", "setdebugflags", "shutdown", "takeover", "token", "version"),
)
_REAL_SUBJECTS = (
    *("aliases", "assoc_mgr", "bbstat", "burstbuffer", "daemons", "dwstat", "federation"),
    *("frontend", "hostlist", "hostlistsorted", "lic", "licenses", "reservation"),
    *("reservations", "slurmd", "topo", "topology"),
)
MIN_JOB_AGE = 3600  # seconds for which ended jobs are listed without a request for all
USAGE = "scontrol [-o] show job|config|hostnames|node|partition [NAME] |\n"
USAGE += (
    "         hold|release|requeue JOB... | update JobId=JOB,...|JobName=NAME ATTRIBUTE=VALUE..."
)


def main(arguments: Sequence[str]) -> int:
    """Run a command of scontrol. Return the exit code."""
    parsed, words = parse_options("scontrol", OPTIONS, arguments)
    options = dict(parsed)
    if "help" in options:
        print(USAGE)
        return 0
    if "version" in options:
        print(VERSION_LINE)
        return 0
    verb, *names = words or [""]
    real = _Real(parsed, options)
    if verb.lower() == "show" and names:
        return _show(names[0].lower(), names[1:], "oneliner" in options, real)
    if verb.lower() in _ACTIONS and names:
        return _change(verb.lower(), names, real)
    if verb.lower() == "update" and (ids := _updated_jobs(names)):
        return _update(ids, names, real)
    if verb.lower() == "update" and real.chosen is None:
        return _update_named(names)
    if verb.lower() in _MANY_JOBS_VERBS and names:
        return max(_run_on_jobs([verb, name], 1, real) for name in names)
    if verb.lower() in (*_ACTIONS, *_MANY_JOBS_VERBS, "show", "update"):
        raise CommandError(f"too few arguments for keyword:{verb}")
    if verb.lower() in _JOB_VERBS and names:
        return _run_on_jobs([verb, *names], _JOB_VERBS[verb.lower()], real)
    if words and (verb.lower() in _REAL_VERBS or real.chosen is not None):
        return real.run(words, is_last=True)
    raise CommandError(f"invalid keyword: {verb}" if verb else f"Usage: {USAGE}")


def _run_on_jobs(words: Sequence[str], position: int, real: _Real) -> int:
    """Run a real command whose word at a position is a job, or a step, where that job is."""
    ids = words_of(words[position]) if len(words) > position else []
    native_ids = [id for id in ids if real.clusters.is_native(id)]
    if len(native_ids) == len(ids):
        return real.run(words, is_last=words[0].lower() not in _MANY_JOBS_VERBS)
    from metasched.drop_in.job_tools import native_places, run_for_jobs  # few calls need them

    own_ids = [id for id in ids if id not in native_ids]
    changes = words[0].lower() in _CHANGING_VERBS
    places, missing = native_places("scontrol", connect(), own_ids, changes=changes)
    by_name = {cluster.name: cluster for cluster in real.clusters.clusters}
    code = 0
    for id, problem in missing.items():
        error = _JOB_ERRORS.get(words[0].lower(), "{problem} for job {id}")
        code = fail(error.format(problem=problem, id=id))
    for id in native_ids:
        changed = [*words[:position], id, *words[position + 1 :]]
        code = max(code, real.run(changed, is_last=False))
    for name, by_native_id in places.items():
        if name not in by_name or not by_name[name].config:
            code = fail(f"scontrol: error: cluster {name} has no scontrol")
            continue
        for id in by_native_id:
            changed = [*words[:position], id, *words[position + 1 :]]
            arguments = real.arguments(changed)
            code = max(code, run_for_jobs("scontrol", by_name[name], arguments, by_native_id))
    return code


class _Real:
    """The real command on the clusters that the options name; the daemon is asked when needed."""

    def __init__(self, parsed: Sequence[tuple[str, str]], options: Mapping[str, str]) -> None:
        self._parsed = [(name, value) for name, value in parsed if name != "clusters"]
        self._names = options.get("clusters")
        self._names = self._names or os.environ.get("SLURM_CLUSTERS")
        self._clusters: NativeClusters | None = None

    @property
    def clusters(self) -> NativeClusters:
        if self._clusters is None:
            self._clusters = read_clusters(connect())
        return self._clusters

    @property
    def chosen(self) -> list[NativeCluster] | None:
        return None if self._names is None else self.clusters.choose("scontrol", self._names)

    def run(self, words: Sequence[str], is_last: bool) -> int:
        """Run it with the options that were given; return its exit code."""
        return run_native("scontrol", self.arguments(words), self.chosen, is_last)

    def arguments(self, words: Sequence[str]) -> list[str]:
        """Return the options that were given, and words."""
        return real_arguments(OPTIONS, self._parsed, words)


def _updated_jobs(words: Sequence[str]) -> list[str]:
    """Return the ids that `update` names, as in `JobId=17,18 TimeLimit=5`.

    An empty value, as of a script's unset variable, is a wrong id: `JobName` would select jobs.
    """
    pairs = (word.partition("=") for word in words)
    named = (words_of(ids) or [ids] for key, _, ids in pairs if key.lower() in ("job", "jobid"))
    return next(named, [])


def _update(ids: Sequence[str], words: Sequence[str], real: _Real) -> int:
    """Change jobs of metasched and of the clusters. Return the exit code.

    As in Slurm a job that is missing costs a line, and a word that is no id all changes.
    """
    if not all(map(is_job_id, ids)):
        raise CommandError(f"Invalid job id specified for job {printable(','.join(ids))}")
    native_ids = [id for id in ids if real.clusters.is_native(id)]
    own_ids = [id for id in ids if id not in native_ids]
    code = 0
    if own_ids:
        from metasched.drop_in.job_update import update_jobs  # few calls need it

        code = update_jobs(connect(), own_ids, words)
    if native_ids:
        rest = [word for word in words if word.partition("=")[0].lower() not in ("job", "jobid")]
        words = ["update", f"JobId={','.join(native_ids)}", *rest]
        code = max(code, real.run(words, is_last=not own_ids))
    return code


def _update_named(words: Sequence[str]) -> int:
    """Change jobs of metasched as in `update JobName=a TimeLimit=5`. Return the exit code."""
    from metasched.drop_in.job_update import find_named_jobs, update_jobs  # few calls need it

    connection = connect()
    ids, changes = find_named_jobs(connection, words)
    return update_jobs(connection, ids, changes)


def _show(subject: str, names: Sequence[str], one_line: bool, real: _Real) -> int:
    name, _, value = subject.partition("=")  # also `show job=17`
    names = [value, *names] if value else names
    if name in ("job", "jobs", "jobid"):
        return _show_jobs(names, one_line, real)
    if name in ("hostnames", "hostname"):
        from metasched.model.host_lists import expand_hosts  # few calls need it

        hosts = names[0] if names else os.environ.get("SLURM_JOB_NODELIST", "")
        if not hosts:
            fail("scontrol: error: host list is empty")
            return 0  # as the real command
        try:
            for host in expand_hosts(hosts):
                print(printable(host))
        except ValueError:
            fail(f"Invalid hostlist: {printable(hosts)}")
        return 0
    if real.chosen is not None:
        return real.run(["show", subject, *names], is_last=True)
    if name in ("config", "conf"):
        _show_configuration()
        return 0
    if name in ("partition", "partitions", "partitionname"):
        return _show_partitions(names[:1], one_line)
    if name in ("node", "nodes"):
        from metasched.drop_in.native_nodes import show_nodes  # few calls need it

        return show_nodes(real.clusters, real.arguments([]), names)
    if name in ("step", "steps"):
        return _run_on_jobs(["show", *([subject] if not value else [name]), *names], 2, real)
    if name in _REAL_SUBJECTS or real.chosen is not None:
        return real.run(["show", subject, *names[bool(value) :]], is_last=True)
    raise CommandError(f"invalid entity:{subject} for keyword:show ")


def _show_configuration() -> None:
    """Print the configuration as far as users' tools read it and metasched has such a value."""
    health, _ = connect().request("GET", "/health")
    if not isinstance(health, dict):
        raise ClientError("unexpected answer of the daemon; see its log")
    rows = {
        "AccountingStorageType": "accounting_storage/metasched",  # not none: sacct lists jobs
        "BOOT_TIME": format_time(parse_time(health["started"])),
        "ClusterName": "metasched",
        "FirstJobId": health["first_id"],
        # as in Slurm 0 is the first index, and an array may have as many tasks
        "MaxArraySize": health["max_array_tasks"],
        "MinJobAge": f"{MIN_JOB_AGE} sec",
        "SLURM_VERSION": VERSION,
    }
    print(f"Configuration data as of {format_time(time.time())}")
    for name, value in rows.items():
        if value is not None:
            print(f"{name:<23} = {value}")
    print()


def _show_jobs(names: Sequence[str], one_line: bool, real: _Real) -> int:
    ids = [word for name in names for word in words_of(name)]
    if any(not is_job_id(word) for word in ids):
        raise CommandError("scontrol_print_job error: Invalid job id specified")
    native_ids = [word for word in ids if real.clusters.is_native(word)]
    own_ids = [word for word in ids if not real.clusters.is_native(word)]
    code = 0
    if own_ids or not ids:
        try:
            _show_own_jobs(own_ids, one_line, real)
        except CommandError as error:
            if not native_ids:
                raise
            code = fail(str(error))
    for word in native_ids:
        code = max(code, real.run(["show", "job", word], is_last=len(ids) == 1))
    return code


def _show_own_jobs(ids: Sequence[str], one_line: bool, real: _Real) -> None:
    """Print jobs of metasched; without ids all of them, on the chosen clusters."""
    query: dict[str, object] = {"job": list(ids), "skip_missing": "true"} if ids else {}
    jobs = [Job(row) for row in listed_tasks(connect(), {**query, **FOLD})]
    if (chosen := real.chosen) is not None:
        names = [cluster.name for cluster in chosen]
        jobs = [job for job in jobs if job.cluster_among(names)]
    if ids and not jobs:
        raise CommandError("slurm_load_jobs error: Invalid job id specified")
    if not jobs:
        print("No jobs in the system")
    # a task that is named alone has its own number
    is_single = len(jobs) == 1 and not jobs[0].row.get("folded")
    for job in jobs if is_single else fold_waiting(jobs):
        _print_record(_record(job), one_line)


def _print_record(lines: Sequence[str], one_line: bool) -> None:
    print(" ".join(lines) if one_line else "\n   ".join(lines) + "\n")


def _show_partitions(names: Sequence[str], one_line: bool) -> int:
    """Print a record of each partition of each cluster."""
    rows, _ = connect().request("GET", "/partitions")
    rows = [row for row in rows if not names or row["partition"] in names]
    if names and not rows:
        print(f"Partition {printable(names[0])} not found")  # as the real command, not on stderr
        return 1
    for row in rows:
        limit, default = row["time_limit"], row["default_time"]
        nodes = sum(kind["count"] for kind in row["nodes"])
        cpus = sum(kind["count"] * kind["cpus"] for kind in row["nodes"])
        record = [
            f"PartitionName={printable(row['partition'])} Cluster={row['cluster']}",
            f"Default={'YES' if row['default'] else 'NO'}",
            f"DefaultTime={'NONE' if default is None else format_clock(default)}",
            f"MaxNodes={row['max_nodes'] or 'UNLIMITED'} "
            f"MaxTime={'UNLIMITED' if limit is None else format_clock(limit)}",
            f"State={row['state'].upper()} TotalCPUs={cpus} TotalNodes={nodes}",
        ]
        _print_record(record, one_line)
    return 0


def _record(job: Job) -> list[str]:
    """Return the lines of `show job`."""
    row = job.row
    array = ""
    if row["task"] is not None:
        throttle = row["array"].partition("%")[2]
        throttle = f" ArrayTaskThrottle={throttle}" if throttle else ""
        array = f"ArrayJobId={row['job']} ArrayTaskId={job.tasks}{throttle} "
    code, signal = job.wait_status
    limit, cpus, options = row["time_limit"], row["cpus"] // row["tasks"], job.slurm_options
    time_limit = "UNLIMITED" if limit is None else format_clock(limit)
    gres = f"\nTresPerNode={job.gres}" if job.gres else ""
    host = f"\nBatchHost={printable(job.nodes[0])}" if job.nodes else ""
    admin_comment = f"\nAdminComment={printable(job.admin_comment)}" if job.admin_comment else ""
    comment = f"\nComment={printable(row['comment'])}" if row["comment"] else ""
    requested, allocated = f"ReqTRES={job.tres}", job.tres if job.has_started else UNSET
    return f"""\
JobId={job.number} {array}JobName={_text(row["name"])}
UserId={row["user"]}({user_id(row["user"])}) GroupId={"{}({})".format(*user_group(row["user"]))} \
MCS_label=N/A
Priority={job.priority} Nice={row["nice"]} Account={_text(row["account"])} \
QOS={_text(row["qos"])}
JobState={job.state} Reason={job.reason} Dependency={_text(row["dependency"])}
Requeue={int(row["requeue"])} Restarts={row["restarts"]} BatchFlag=1 \
Reboot={int("reboot" in options)} \
ExitCode={code}:{signal}
RunTime={format_clock(job.time_used)} TimeLimit={time_limit} TimeMin=N/A
SubmitTime={format_time(job.submitted)} EligibleTime={format_time(job.eligible, "Unknown")}
StartTime={format_time(job.start, "Unknown")} EndTime={format_time(job.end, "Unknown")} \
Deadline={format_time(parse_time(row["deadline"]))}
Partition={_text(row["partition"])}
ReqNodeList={_text(row["nodelist"])} ExcNodeList={_text(row["exclude"])}
NodeList={printable(row["node_list"])}{host}
NumNodes={job.node_count} NumCPUs={row["cpus"]} NumTasks={row["tasks"]} CPUs/Task={cpus}
TRES={job.tres} {requested} AllocTRES={allocated}
MinCPUsNode={job.min_cpus} MinMemory{"CPU" if row["memory_per_cpu"] else "Node"}={job.memory} \
MinTmpDiskNode={job.min_disk}
Features={_text(row["constraint"])}
OverSubscribe={job.sharing} Contiguous={int("contiguous" in options)} \
Licenses={job.licences or UNSET} Network={UNSET}
Command={UNSET}
WorkDir={printable(row["directory"])}{admin_comment}{comment}
StdErr={printable(job.error_path)}
StdIn=/dev/null
StdOut={printable(job.output_path)}{gres}""".split("\n")


def _text(value: object) -> str:
    return UNSET if value is None or value == "" else printable(str(value))


def _change(verb: str, names: Sequence[str], real: _Real) -> int:
    """Hold, release or requeue jobs, one after another. Return the exit code."""
    action = "hold" if verb == "uhold" else verb
    pairs = [word.rpartition("=") for name in names for word in words_of(name)]
    for key, equals, value in pairs:  # the name of a job may be the id of another
        if equals and key.lower() not in ("job", "jobid"):
            word = printable(f"{key}={value}")
            raise CommandError(f"scontrol: error: {word} is no job id; name jobs by their ids")
    ids = [id for _, _, id in pairs]
    connection, code = connect(), 0
    native_ids = [id for id in ids if is_job_id(id) and real.clusters.is_native(id)]
    if verb == "requeuehold" and len(native_ids) < len(ids):  # it would start again at once
        problem = "jobs of metasched are not requeued and held at once"
        raise CommandError(f"scontrol: error: {problem}; requeue them, then hold them")
    for id in ids:
        if not is_job_id(id):
            code = _fail_for(action, printable(id), "Invalid job id specified")
            continue
        if real.clusters.is_native(id):
            continue
        try:
            answer, _ = connection.request("POST", f"/jobs/{action}", FOLD, {"jobs": [id]})
        except ClientError as error:
            code = _fail_to_change(action, id, error)
        else:
            problem = _unchanged(action, answer)
            code = _fail_for(action, id, problem) if problem else code
    for id in native_ids:
        code = max(code, real.run([verb, id], is_last=len(ids) == 1))
    return code


def _unchanged(action: str, answer: Any) -> str:
    """Return in Slurm's words why an action changed none of the tasks; "": it changed some."""
    states = {row["was"] for row in answer["folded"]}
    if action == "requeue" and states and states <= {"queued", "held", "dispatching", "pending"}:
        return "Job is pending execution"
    if action != "requeue" and states and states.isdisjoint(OPEN_STATES.split(",")):
        return "Job has already finished"
    return ""


def _fail_to_change(action: str, id: str, error: ClientError) -> int:
    """Print the daemon's refusal in Slurm's words, if it has some; return 1."""
    if isinstance(error, NotFound):
        return _fail_for(action, id, "Invalid job id specified")
    if isinstance(error, PermissionDenied):
        denied = "Access/permission denied" if action == "requeue" else "Invalid user id"
        return _fail_for(action, id, denied)
    if error.exit_code == 4:  # no daemon: the other jobs would fail, too
        raise error
    return fail(f"scontrol: error: {error}")


def _fail_for(action: str, id: str, problem: str) -> int:
    """Print a problem with a job, or a task of an array, in Slurm's words; return 1."""
    code = fail_for_job(id, problem)
    if action != "requeue" and "_" not in id:
        fail(f"slurm_suspend error: {problem}")
    return code
