"""The options of sbatch: a single table for command line, variables, script and documents.

It has every option of Slurm 22.05, 24.11 and 26.05 (docs/sbatch.md). The words after the
options are the script and its arguments.
"""

from __future__ import annotations

from metasched.client.option_words import FLAG, OPTIONAL, VALUE
from metasched.drop_in import command_line
from metasched.drop_in.command import CommandError

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAPPED = "mapped"
SLURM = "slurm"  # passed on to Slurm clusters; others run the job without it
SLURM_ONLY = "slurm only"  # passed on; the job runs on Slurm clusters alone
ACCEPTED = "accepted"  # changes nothing
IGNORED = "ignored"  # with a warning
REFUSED = "refused"

USAGE_CODE = 255  # exit code of the real command for options and values that are invalid


class Option(command_line.Option):
    """An option of sbatch."""

    def __init__(self, row: tuple[str, ...]) -> None:
        names, value, self.treatment, variables, self.remark = row
        name, short = (*names.split(), "")[:2]  # the latter without its dash
        super().__init__(name, short, value)
        self.variables = variables.split()  # of the environment, with the same effect


def _rows() -> Iterator[tuple[str, ...]]:
    """Yield names, value, treatment, variables and remark of each option."""
    yield "account A", VALUE, MAPPED, "SBATCH_ACCOUNT", ""
    yield "acctg-freq", VALUE, SLURM, "SBATCH_ACCTG_FREQ", ""
    yield "array a", VALUE, MAPPED, "SBATCH_ARRAY_INX", "with `%` for the tasks that run at a time"
    yield "autocomplete", VALUE, REFUSED, "", "completion is not offered"
    yield "batch", VALUE, SLURM_ONLY, "SBATCH_BATCH", ""
    yield "bb", VALUE, SLURM_ONLY, "SBATCH_BURST_BUFFER", ""
    yield "bbf", VALUE, REFUSED, "", "write #BB or #DW lines for one cluster with metasched submit"
    yield "begin b", VALUE, MAPPED, "", "`now+1hour`, `17:30`, `MM/DD`, `2030-01-31T17:30`"
    yield "chdir D", VALUE, MAPPED, "", ""
    yield "cluster", VALUE, MAPPED, "", "as `--clusters`"
    yield "cluster-constraint", VALUE, REFUSED, "SBATCH_CLUSTER_CONSTRAINT", "name the clusters"
    yield (
        "clusters M",
        VALUE,
        MAPPED,
        "SBATCH_CLUSTERS SLURM_CLUSTERS",
        "of metasched or Slurm, or `all`",
    )
    yield "comment", VALUE, MAPPED, "", ""
    yield "consolidate-segments", FLAG, SLURM, "", ""
    yield (
        "constraint C",
        VALUE,
        MAPPED,
        "SBATCH_CONSTRAINT",
        "of alternatives those that a cluster has",
    )
    yield "container", VALUE, SLURM_ONLY, "SBATCH_CONTAINER", ""
    yield "container-id", VALUE, SLURM_ONLY, "SBATCH_CONTAINER_ID", ""
    yield "container-type", VALUE, SLURM_ONLY, "", ""
    yield "context", VALUE, SLURM, "", ""
    yield "contiguous", FLAG, SLURM, "", ""
    yield "core-spec S", VALUE, SLURM, "SBATCH_CORE_SPEC", ""
    yield "cores-per-socket", VALUE, SLURM_ONLY, "", ""
    yield "cpu-freq", VALUE, SLURM, "SBATCH_CPU_FREQ_REQ", ""
    yield "cpus-per-gpu", VALUE, SLURM_ONLY, "SBATCH_CPUS_PER_GPU", ""
    yield "cpus-per-task c", VALUE, MAPPED, "", ""
    yield "deadline", VALUE, MAPPED, "", "forms as in `--begin`"
    yield "delay-boot", VALUE, SLURM, "SBATCH_DELAY_BOOT", ""
    yield (
        "dependency d",
        VALUE,
        MAPPED,
        "",
        "after, afterany, afterok, afternotok, aftercorr, \
singleton; `,` or `?`, not both",
    )
    yield "distribution m", VALUE, SLURM, "SBATCH_DISTRIBUTION", ""
    yield "error e", VALUE, MAPPED, "SBATCH_ERROR", "patterns as in `--output`"
    yield "exclude x", VALUE, MAPPED, "", "other names than those of nodes: no effect"
    yield "exclusive", OPTIONAL, MAPPED, "SBATCH_EXCLUSIVE", "with a value: Slurm clusters alone"
    yield "export", VALUE, MAPPED, "SBATCH_EXPORT", "ALL, NONE, NIL, and NAME or NAME=value"
    yield "export-file", VALUE, REFUSED, "", "set the variables in the script"
    yield "external", FLAG, REFUSED, "", "METASCHED_BYPASS=1 submits it to one cluster"
    yield "extra", VALUE, SLURM, "", ""
    yield "extra-node-info B", VALUE, SLURM_ONLY, "", ""
    yield (
        "get-user-env",
        OPTIONAL,
        IGNORED,
        "SBATCH_GET_USER_ENV",
        "the job has the environment of the submission",
    )
    yield "gid", VALUE, REFUSED, "", "submit as that group"
    yield "gpu-bind", VALUE, SLURM, "SBATCH_GPU_BIND", ""
    yield "gpu-freq", VALUE, SLURM, "SBATCH_GPU_FREQ", ""
    yield "gpus G", VALUE, MAPPED, "SBATCH_GPUS", "on one node unless `--nodes` says more"
    yield "gpus-per-node", VALUE, MAPPED, "SBATCH_GPUS_PER_NODE", ""
    yield "gpus-per-socket", VALUE, SLURM_ONLY, "SBATCH_GPUS_PER_SOCKET", ""
    yield "gpus-per-task", VALUE, MAPPED, "SBATCH_GPUS_PER_TASK", ""
    yield "gres", VALUE, MAPPED, "SBATCH_GRES", "a bar separates alternatives; also in `--gpus`"
    yield "gres-flags", VALUE, SLURM, "SBATCH_GRES_FLAGS", ""
    yield "help h", FLAG, MAPPED, "", "prints the usage"
    yield "hint", VALUE, SLURM, "SBATCH_HINT SLURM_HINT", ""
    yield "hold H", FLAG, MAPPED, "", ""
    yield (
        "ignore-pbs",
        FLAG,
        MAPPED,
        "SBATCH_IGNORE_PBS",
        "`#$`, `#PBS` and `#BSUB` lines are not read",
    )
    yield (
        "input i",
        VALUE,
        REFUSED,
        "SBATCH_INPUT",
        "redirect the input in the script; \
`/dev/null` is accepted",
    )
    yield "job-name J", VALUE, MAPPED, "SBATCH_JOB_NAME", ""
    yield "kill-on-invalid-dep", VALUE, MAPPED, "", ""
    yield (
        "licenses L",
        VALUE,
        MAPPED,
        "",
        "NAME or NAME:N in a comma list, or alternatives with bars",
    )
    yield "mail-type", VALUE, MAPPED, "", "metasched sends it, not Slurm"
    yield "mail-user", VALUE, MAPPED, "", ""
    yield "mcs-label", VALUE, SLURM_ONLY, "", ""
    yield "mem", VALUE, MAPPED, "SBATCH_MEM_PER_NODE", "0 (the whole node): Slurm clusters alone"
    yield "mem-bind", VALUE, SLURM, "SBATCH_MEM_BIND", ""
    yield "mem-per-cpu", VALUE, MAPPED, "SBATCH_MEM_PER_CPU", ""
    yield "mem-per-gpu", VALUE, SLURM_ONLY, "SBATCH_MEM_PER_GPU", ""
    yield "mem-update", VALUE, SLURM, "", ""
    yield "mincpus", VALUE, SLURM_ONLY, "", ""
    yield "network", VALUE, SLURM, "SBATCH_NETWORK", ""
    yield "nice", OPTIONAL, MAPPED, "", "in the queue of its cluster; below 0: Slurm clusters alone"
    yield "no-kill k", OPTIONAL, SLURM, "SBATCH_NO_KILL", ""
    yield (
        "no-requeue",
        FLAG,
        MAPPED,
        "SBATCH_NO_REQUEUE",
        "the default on clusters without `fence_dir`",
    )
    yield "nodefile F", VALUE, REFUSED, "", "write its nodes after `--nodelist`"
    yield "nodelist w", VALUE, MAPPED, "", "several nodes: Slurm clusters alone"
    yield "nodes N", VALUE, MAPPED, "", "of a range, the minimum"
    yield "ntasks n", VALUE, MAPPED, "", ""
    yield "ntasks-per-core", VALUE, SLURM_ONLY, "", ""
    yield "ntasks-per-gpu", VALUE, SLURM_ONLY, "", ""
    yield "ntasks-per-node", VALUE, MAPPED, "", ""
    yield "ntasks-per-socket", VALUE, SLURM_ONLY, "", ""
    yield "ntasks-per-tres", VALUE, SLURM_ONLY, "", ""
    yield "oom-kill-step", OPTIONAL, SLURM, "", ""
    yield "open-mode", VALUE, MAPPED, "SBATCH_OPEN_MODE", "truncate by default"
    yield (
        "output o",
        VALUE,
        MAPPED,
        "SBATCH_OUTPUT",
        "%A %a %j %J %x %u %N %n %t %s and %%; a backslash turns them off",
    )
    yield "overcommit O", FLAG, SLURM_ONLY, "SBATCH_OVERCOMMIT", ""
    yield "oversubscribe s", FLAG, SLURM, "", ""
    yield "parsable", FLAG, MAPPED, "", "prints the bare id"
    yield "partition p", VALUE, MAPPED, "SBATCH_PARTITION", "of `a,b` those that a cluster has"
    yield "power", VALUE, SLURM, "SBATCH_POWER", ""
    yield "prefer", VALUE, SLURM, "", ""
    yield "priority", VALUE, SLURM, "", "that in Slurm's queue"
    yield "profile", VALUE, SLURM, "SBATCH_PROFILE", ""
    yield "propagate", OPTIONAL, SLURM, "", ""
    yield "qos q", VALUE, MAPPED, "SBATCH_QOS", ""
    yield "quiet Q", FLAG, MAPPED, "", "prints no id"
    yield "reboot", FLAG, SLURM, "", ""
    yield "requeue", FLAG, MAPPED, "SBATCH_REQUEUE", ""
    yield (
        "reservation",
        VALUE,
        MAPPED,
        "SBATCH_RESERVATION",
        "a number: of metasched; a name: Slurm clusters alone",
    )
    yield "resources", VALUE, SLURM_ONLY, "", ""
    yield "resv-ports", OPTIONAL, SLURM_ONLY, "", ""
    yield "segment", VALUE, SLURM_ONLY, "", ""
    yield "signal", VALUE, MAPPED, "SBATCH_SIGNAL", "on Grid Engine and DRMAA with `--time`"
    yield "sockets-per-node", VALUE, SLURM_ONLY, "", ""
    yield "spread-job", FLAG, SLURM, "SBATCH_SPREAD_JOB", ""
    yield "spread-segments", FLAG, SLURM, "", ""
    yield "stepmgr", FLAG, SLURM, "", ""
    yield "switches", VALUE, SLURM, "SBATCH_REQ_SWITCH", ""
    yield "tasks-per-node", VALUE, MAPPED, "", "as `--ntasks-per-node`"
    yield "test-only", FLAG, MAPPED, "", "says where the job would go"
    yield "thread-spec", VALUE, SLURM, "SBATCH_THREAD_SPEC", ""
    yield "threads-per-core", VALUE, SLURM_ONLY, "SBATCH_THREADS_PER_CORE", ""
    yield (
        "time t",
        VALUE,
        MAPPED,
        "SBATCH_TIMELIMIT",
        "0 and UNLIMITED: on partitions without a limit, not on other DRMAA systems",
    )
    yield "time-min", VALUE, SLURM, "", ""
    yield "tmp", VALUE, SLURM_ONLY, "", ""
    yield "tres-bind", VALUE, SLURM, "SBATCH_TRES_BIND", ""
    yield "tres-per-task", VALUE, SLURM_ONLY, "SBATCH_TRES_PER_TASK", ""
    yield "uid", VALUE, REFUSED, "", "submit as that user"
    yield "usage", FLAG, MAPPED, "", ""
    yield "use-min-nodes", FLAG, ACCEPTED, "SBATCH_USE_MIN_NODES", "always so"
    yield "verbose v", FLAG, ACCEPTED, "SBATCH_DEBUG", "there is no more to say"
    yield "version V", FLAG, MAPPED, "", ""
    yield "wait W", FLAG, MAPPED, "SBATCH_WAIT", "exits with the largest code of the tasks"
    yield "wait-all-nodes", VALUE, SLURM, "SBATCH_WAIT_ALL_NODES", ""
    yield "wckey", VALUE, MAPPED, "SBATCH_WCKEY", 'not to Slurm where `tag_field = "wckey"`'
    yield "wrap", VALUE, MAPPED, "", ""


OPTIONS = {option.name: option for option in map(Option, _rows())}
_TABLE = command_line.OptionTable(OPTIONS.values())
# Names of the same option, by the name of the table that is used.
SYNONYMS = {"cluster": "clusters", "tasks-per-node": "ntasks-per-node"}


class UsageError(CommandError):
    """An option or value that the real command refuses with its code for wrong usage."""

    exit_code = USAGE_CODE


def parse_arguments(arguments: Sequence[str]) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Return the options by their names, None without a value, and the words after them.

    A long name may be shortened. UsageError, in the words of getopt_long(3), for an unknown option,
    an ambiguous name, a missing value, and one that is too much.
    """
    try:
        return _TABLE.read(arguments, permutes=False)
    except command_line.CommandLineError as error:
        raise UsageError(f'sbatch: {error}\nTry "sbatch --help" for more information') from None


def options_of_environment(environ: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """Return the options that variables of the environment set."""
    return [
        (option.name, environ[variable] if option.value != FLAG else None)
        for option in OPTIONS.values()
        for variable in option.variables
        if variable in environ
    ]


def usage() -> str:
    """Return the text of `--help`."""
    lines = ["Usage: sbatch [OPTIONS...] script [args...]", ""]
    for option in OPTIONS.values():
        short = f"-{option.short}, " if option.short else "    "
        value = {VALUE: "=VALUE", OPTIONAL: "[=VALUE]"}.get(option.value, "")
        lines.append(f"  {short}--{option.name + value:<30} {option.treatment}")
    return "\n".join(lines)
