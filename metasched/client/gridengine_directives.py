"""The `#$` lines of a script, options of Grid Engine's qsub, as options of sbatch."""

from __future__ import annotations

from metasched.client.directive_values import (
    ACCEPTED,
    IGNORED,
    MAPPED,
    REFUSED,
    Directive,
    DirectiveError,
    SbatchOptions,
    begin_time,
    check_interpreter,
    clock_time,
    count,
    dependency_ids,
    mebibytes,
    output_path,
    set_host,
    set_mail,
    set_priority,
)

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

# option -> (number of its values, effect, remark); the remark of a refused option is the remedy
OPTIONS = {
    "-@": (1, REFUSED, "write the options into the script"),
    "-A": (1, IGNORED, "an accounting string; `-P` names the account"),
    "-C": (1, REFUSED, "begin the lines with #$"),
    "-M": (1, MAPPED, "`--mail-user`; the first address"),
    "-N": (1, MAPPED, "`--job-name`"),
    "-P": (1, MAPPED, "`--account`"),
    "-R": (1, ACCEPTED, ""),
    "-S": (1, MAPPED, "must be the interpreter of line 1"),
    "-V": (0, MAPPED, "`--export=ALL`"),
    "-a": (1, MAPPED, "`--begin`"),
    "-ac": (1, IGNORED, "jobs have no context"),
    "-adds": (3, REFUSED, "there are no job classes"),
    "-ar": (1, REFUSED, "write #MS --reservation ID"),
    "-b": (1, MAPPED, "`n` alone"),
    "-binding": (1, IGNORED, "the cluster binds processes"),
    "-c": (1, REFUSED, "jobs have no checkpoints"),
    "-ckpt": (1, REFUSED, "jobs have no checkpoints"),
    "-clear": (0, REFUSED, "delete the lines before it"),
    "-clearp": (1, REFUSED, "there are no job classes"),
    "-clears": (2, REFUSED, "there are no job classes"),
    "-cwd": (0, ACCEPTED, "the default"),
    "-dc": (1, IGNORED, "jobs have no context"),
    "-display": (1, REFUSED, "jobs have no display"),
    "-dl": (1, MAPPED, "`--deadline`"),
    "-e": (
        1,
        MAPPED,
        "`--error`; `$JOB_ID`, `$TASK_ID`, `$JOB_NAME`, `$USER`, `$HOME`, `$HOSTNAME`",
    ),
    "-h": (0, MAPPED, "`--hold`"),
    "-hard": (0, MAPPED, "ends `-soft`"),
    "-hold_jid": (1, MAPPED, "`--dependency=afterany`; ids, no names"),
    "-hold_jid_ad": (1, MAPPED, "`--dependency=aftercorr`; ids, no names"),
    "-i": (1, MAPPED, "`/dev/null` alone"),
    "-j": (1, MAPPED, "`y`: the error stream goes to the output"),
    "-jc": (1, REFUSED, "there are no job classes"),
    "-js": (1, IGNORED, "write #MS --urgency"),
    "-jsv": (1, REFUSED, "verify jobs by the policy of the site"),
    "-l": (1, MAPPED, "see below"),
    "-m": (1, MAPPED, "`--mail-type`"),
    "-masterl": (1, REFUSED, "all tasks of a job have equal resources"),
    "-masterq": (1, REFUSED, "all tasks of a job have equal resources"),
    "-mods": (3, REFUSED, "there are no job classes"),
    "-notify": (0, MAPPED, "`--signal=B:USR2@60` with `h_rt` or `s_rt`"),
    "-now": (1, MAPPED, "`n` alone"),
    "-o": (1, MAPPED, "`--output`; as `-e`"),
    "-ot": (1, IGNORED, "write #MS --urgency"),
    "-p": (1, MAPPED, "`--nice`; above 0 ignored with a warning"),
    "-pe": (2, MAPPED, "`--ntasks` or `--cpus-per-task`, by its name"),
    "-q": (1, MAPPED, "`--partition`"),
    "-r": (1, MAPPED, "`--requeue`, `--no-requeue`"),
    "-sc": (1, IGNORED, "jobs have no context"),
    "-shell": (1, ACCEPTED, ""),
    "-soft": (0, MAPPED, "`-l` and `-q` after it are ignored with a warning"),
    "-sync": (1, MAPPED, "`n` alone"),
    "-t": (1, MAPPED, "`--array`"),
    "-tc": (1, MAPPED, "the tasks of the array that run at a time"),
    "-terse": (0, ACCEPTED, ""),
    "-u": (1, REFUSED, "submit as that user"),
    "-v": (1, MAPPED, "`--export=ALL,...`"),
    "-verify": (0, REFUSED, "write --dry-run on the command line"),
    "-w": (1, ACCEPTED, ""),
    "-wd": (1, MAPPED, "`--chdir`"),
}
# resource of -l -> (effect, remark)
RESOURCES = {
    "exclusive": (MAPPED, "`--exclusive`; also `excl`"),
    "gpu": (MAPPED, "`--gpus`; also `gpus`, `ngpus`; one processor or one `-pe` on a node alone"),
    "h_rss": (MAPPED, "`--mem-per-cpu`"),
    "h_rt": (MAPPED, "`--time`; in seconds or h:m:s"),
    "hostname": (MAPPED, "`--nodelist`, `!NAME`: `--exclude`; a name alone; also `h`"),
    "h_vmem": (MAPPED, "`--mem-per-cpu`; of several sizes the largest counts"),
    "mem_free": (MAPPED, "`--mem-per-cpu`"),
    "qname": (MAPPED, "`--partition`; also `q`"),
    "s_rt": (MAPPED, "`--time`, without `h_rt`"),
    "s_vmem": (MAPPED, "`--mem-per-cpu`"),
    "virtual_free": (MAPPED, "`--mem-per-cpu`; also `vf`"),
}
_SYNONYMS = {"excl": "exclusive", "gpus": "gpu", "ngpus": "gpu", "vf": "virtual_free"}
_SYNONYMS.update(h="hostname", mf="mem_free", q="qname")
_MEMORY = ("h_rss", "h_vmem", "mem_free", "s_vmem", "virtual_free")
_UNITS = {"": 1.0}
_UNITS.update({letter: 1024.0**power for power, letter in enumerate("KMGT", 1)})
_UNITS.update({letter: 1000.0**power for power, letter in enumerate("kmgt", 1)})
_VARIABLES = {"JOB_ID": "%A", "TASK_ID": "%a", "SGE_TASK_ID": "%a", "JOB_NAME": "%x"}
_VARIABLES.update(USER="%u", HOSTNAME="%N")
_PARALLEL_TASKS = ("mpi", "orte")
_PARALLEL_THREADS = ("smp", "shm", "shared", "thread", "openmp", "omp", "make", "multicore")
_NOTICE = "B:USR2@60"  # the signal of -notify, at the usual interval of its queues
_ONLY_NO = {
    "-b": "write the command into the script",
    "-now": "metasched queues jobs",
    "-sync": "write --wait on the command line",
}
# option -> option of sbatch, where the value needs no change
_SAME_VALUE = {"-N": "job-name", "-P": "account", "-wd": "chdir"}


def convert_gridengine(arguments: Sequence[tuple[str, str]], options: SbatchOptions) -> None:
    """Add the options of these words, each with its location. Raise DirectiveError."""
    _Conversion(options).convert(arguments)


class _Conversion:
    """The options of all lines of a script: the last value counts, resources add up."""

    def __init__(self, options: SbatchOptions) -> None:
        self._options = options
        self._resources: dict[str, Directive] = {}
        self._environment: Directive | None = None  # -pe
        self._joined = False  # -j y
        self._notice: Directive | None = None  # -notify
        self._is_soft = False
        self._exports: list[str] = []
        self._dependencies: list[str] = []
        self._array: Directive | None = None
        self._limit: Directive | None = None

    def convert(self, arguments: Sequence[tuple[str, str]]) -> None:
        rest = list(reversed(arguments))
        while rest:
            option, location = rest.pop()
            directive = Directive(option, "", location)
            if option not in OPTIONS:
                raise directive.refusal("is no option of qsub", "delete it, or write #MS options")
            values, effect, remark = OPTIONS[option]
            if option == "-binding" and rest and rest[-1][0] in ("env", "pe", "set"):
                values += 1
            taken = [rest.pop() for _ in range(values) if rest and rest[-1][1] == location]
            if len(taken) < values:
                arity = "one argument" if values == 1 else f"{values} arguments"
                raise DirectiveError(f"{option}: expected {arity}", location, "write it")
            directive.value = " ".join(argument for argument, _ in taken)
            if effect == REFUSED:
                raise directive.refusal("is not supported", remark)
            if option == "-soft":
                self._is_soft = True
            elif option == "-hard":
                self._is_soft = False
            elif effect == IGNORED:
                self._options.ignore(directive, remark)
            elif self._is_soft and option in ("-l", "-q"):
                self._options.ignore(directive, "a wish (-soft)")
            elif effect == MAPPED:
                self._map(directive)
        self._finish()

    def _map(self, directive: Directive) -> None:
        option, value, options = directive.option, directive.value, self._options
        if option in _SAME_VALUE:
            options.set(_SAME_VALUE[option], value, directive)
        elif option in _ONLY_NO:
            if value not in ("n", "no"):
                raise directive.refusal("is not supported", _ONLY_NO[option])
        elif option in ("-o", "-e"):
            name = "output" if option == "-o" else "error"
            options.set(name, output_path(directive, _VARIABLES, option[1]), directive)
        elif option == "-S":
            check_interpreter(directive, options)
        elif option in ("-m", "-M"):
            set_mail(directive, options)
        elif option == "-V":
            self._add_exports("", directive)
        elif option == "-v":
            self._add_exports(value, directive)
        elif option == "-a":
            options.set("begin", begin_time(directive), directive)
        elif option == "-dl":
            options.set("deadline", begin_time(directive), directive)
        elif option == "-h":
            options.set("hold", None, directive)
        elif option in ("-hold_jid", "-hold_jid_ad"):
            kind = "afterany" if option == "-hold_jid" else "aftercorr"
            self._dependencies.append(kind + dependency_ids(directive, value.split(",")))
            options.set("dependency", ",".join(self._dependencies), directive)
        elif option == "-i":
            if value != "/dev/null":
                raise directive.refusal("is not supported", "redirect the input in the script")
        elif option == "-j":
            self._joined = value in ("y", "yes")
        elif option == "-l":
            self._add_resources(directive)
        elif option == "-notify":
            self._notice = directive
        elif option == "-p":
            set_priority(directive, options, 1023)
        elif option == "-pe":
            self._environment = directive
        elif option == "-q":
            if "@" in value or "*" in value:
                raise directive.refusal("names hosts", "write the names of queues alone")
            options.set("partition", value, directive)
        elif option == "-r":
            options.set("requeue" if value in ("y", "yes") else "no-requeue", None, directive)
        elif option == "-t":
            self._array = directive
        else:
            assert option == "-tc"
            self._limit = directive

    def _add_exports(self, text: str, directive: Directive) -> None:
        self._exports += [text] if text else []
        self._options.set("export", ",".join(["ALL", *self._exports]), directive)

    def _add_resources(self, directive: Directive) -> None:
        for request in directive.value.split(","):
            name, is_set, value = request.partition("=")
            resource = Directive("-l", request, directive.location)
            name = _SYNONYMS.get(name, name)
            if name not in RESOURCES:
                raise resource.refusal(
                    "has no equivalent",
                    "write #MS --constraint, --gres or --native CLUSTER:'-l ...'",
                )
            self._resources[name] = Directive(name, value if is_set else "true", directive.location)

    def _finish(self) -> None:
        """Map what depends on several options."""
        options, resources = self._options, self._resources
        if self._array is not None:
            limit = "" if self._limit is None else f"%{count(self._limit, self._limit.value)}"
            options.set("array", self._array.value + limit, self._array)
        if self._joined:
            options.values.pop("error", None)
        slots = self._map_slots()
        limit_source = resources.get("h_rt") or resources.get("s_rt")
        if limit_source is not None:
            options.set("time", clock_time(limit_source, limit_source.value), limit_source)
        if self._notice is not None and limit_source is not None:
            options.set("signal", _NOTICE, self._notice)
        elif self._notice is not None:
            options.ignore(self._notice, "without -l h_rt no end is known before it comes")
        if (host := resources.get("hostname")) is not None:
            set_host(host, options)
        sizes = [
            (mebibytes(resources[name], resources[name].value, _UNITS), resources[name])
            for name in _MEMORY
            if name in resources
        ]
        if sizes:
            size, source = max(sizes, key=lambda pair: pair[0])
            options.set("mem-per-cpu", f"{size}M", source)
        if (gpu := resources.get("gpu")) is not None:
            if slots > 1 and "cpus-per-task" not in options.values:
                raise gpu.refusal("of several tasks", "write #MS --gpus N for the whole job")
            options.set("gpus", str(count(gpu, gpu.value)), gpu)
        exclusive = resources.get("exclusive")
        if exclusive is not None and exclusive.value.lower() in ("true", "1"):
            options.set("exclusive", None, exclusive)
        if (queue := resources.get("qname")) is not None:
            options.set("partition", queue.value, queue)

    def _map_slots(self) -> int:
        """Map the parallel environment. Return the slots that it requests."""
        directive = self._environment
        if directive is None:
            return 1
        name, number = directive.value.lower().split(" ")
        minimum, dash, _ = number.partition("-")
        slots = count(directive, minimum or "1")
        if dash:
            self._options.warnings.append(
                f"a range of slots is not supported, {directive.location}: using {slots}"
            )
        if any(part in name for part in _PARALLEL_TASKS):
            self._options.set("ntasks", str(slots), directive)
        elif any(part in name for part in _PARALLEL_THREADS):
            self._options.set("cpus-per-task", str(slots), directive)
        else:
            raise directive.refusal(
                "is an unknown parallel environment", "write #MS --ntasks N or --cpus-per-task N"
            )
        return slots
