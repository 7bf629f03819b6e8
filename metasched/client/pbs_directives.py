"""The `#PBS` lines of a script, options of PBS Pro's and Torque's qsub, as options of sbatch."""

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

# option -> (whether it has a value, effect, remark); the remark of a refused option is the remedy
OPTIONS = {
    "-A": (True, MAPPED, "`--account`"),
    "-C": (True, REFUSED, "begin the lines with #PBS"),
    "-D": (True, REFUSED, "jobs keep their root directory"),
    "-F": (True, REFUSED, "write the arguments on the command line"),
    "-G": (False, REFUSED, "run a batch job"),
    "-I": (False, REFUSED, "run a batch job"),
    "-J": (True, MAPPED, "`--array`"),
    "-K": (True, REFUSED, "write -t 1-100%10"),
    "-L": (True, REFUSED, "write -l select=... or -l nodes=..."),
    "-M": (True, MAPPED, "`--mail-user`; the first address"),
    "-N": (True, MAPPED, "`--job-name`"),
    "-P": (True, MAPPED, "`--account`"),
    "-R": (True, IGNORED, "files are kept"),
    "-S": (True, MAPPED, "must be the interpreter of line 1"),
    "-T": (True, REFUSED, "write the commands into the script"),
    "-V": (False, MAPPED, "`--export=ALL`"),
    "-W": (True, MAPPED, "see below"),
    "-X": (False, REFUSED, "jobs have no display"),
    "-a": (True, MAPPED, "`--begin`; MMDDhhmm, or hhmm"),
    "-b": (True, ACCEPTED, ""),
    "-c": (True, MAPPED, "`n` alone: jobs have no checkpoints"),
    "-d": (True, MAPPED, "`--chdir`"),
    "-e": (
        True,
        MAPPED,
        "`--error`; `$PBS_JOBID`, `$PBS_JOBNAME`, `$USER`, `$HOME`, `^array_index^`",
    ),
    "-f": (False, ACCEPTED, ""),
    "-h": (False, MAPPED, "`--hold`"),
    "-j": (True, MAPPED, "`oe`: both streams go to the output; `eo`: to the file of `-e`"),
    "-k": (True, IGNORED, "output is written to its place at once"),
    "-l": (True, MAPPED, "see below"),
    "-m": (True, MAPPED, "`--mail-type`"),
    "-n": (False, MAPPED, "`--exclusive`"),
    "-o": (True, MAPPED, "`--output`; as `-e`"),
    "-p": (True, MAPPED, "`--nice`; above 0 ignored with a warning"),
    "-q": (True, MAPPED, "`--partition`"),
    "-r": (True, MAPPED, "`--requeue`, `--no-requeue`"),
    "-t": (True, MAPPED, "`--array`"),
    "-u": (True, REFUSED, "submit as that user"),
    "-v": (True, MAPPED, "`--export=ALL,...`"),
    "-w": (True, MAPPED, "`--chdir`"),
    "-x": (False, REFUSED, "run a batch job"),
    "-z": (False, ACCEPTED, ""),
}
# resource of -l -> (effect, remark)
RESOURCES = {
    "feature": (MAPPED, "`--constraint`"),
    "host": (MAPPED, "`--nodelist`; a name alone"),
    "mem": (MAPPED, "`--mem`: of the whole job, shared by its nodes; in select: of each chunk"),
    "naccesspolicy": (MAPPED, "`singlejob` alone: `--exclusive`"),
    "ncpus": (MAPPED, "`--cpus-per-task`"),
    "ngpus": (MAPPED, "`--gpus-per-node`; also `gpus`"),
    "nice": (IGNORED, "the cluster sets it"),
    "nodes": (MAPPED, "`--nodes`, with `:ppn=N` (`--ntasks-per-node`), `:gpus=N` and features"),
    "place": (MAPPED, "with select: scatter, vscatter, pack, free, excl, exclhost"),
    "pmem": (MAPPED, "`--mem-per-cpu`, or `--mem` with ncpus"),
    "procs": (MAPPED, "`--ntasks`"),
    "pvmem": (MAPPED, "as pmem"),
    "qos": (MAPPED, "`--qos`"),
    "select": (MAPPED, "`N:ncpus=C:mpiprocs=M:mem=S:ngpus=G:ompthreads=T`"),
    "vmem": (MAPPED, "as mem"),
    "walltime": (MAPPED, "`--time`; in seconds or h:m:s"),
}
# attribute of -W -> (effect, remark)
ATTRIBUTES = {
    "depend": (MAPPED, "`--dependency`: after, afterok, afternotok, afterany"),
    "group_list": (IGNORED, "the job has your groups"),
    "run_count": (ACCEPTED, ""),
    "sandbox": (IGNORED, "the job runs in its working directory"),
    "umask": (IGNORED, "the job has the umask of the submission"),
}
_SYNONYMS = {"gpus": "ngpus", "vmem": "mem", "pvmem": "pmem"}
_REMEDY = "write what it means as #MS options"
_UNITS = {"": 1.0, "w": 8.0}
for _power, _letter in enumerate("kmgtp", 1):
    for _spelling in (_letter, _letter.upper()):
        for _suffix, _bytes in (("", 1), ("b", 1), ("B", 1), ("w", 8), ("W", 8)):
            _UNITS[_spelling + _suffix] = 1024.0**_power * _bytes
_UNITS.update({"b": 1.0, "B": 1.0, "W": 8.0})
_VARIABLES = {"PBS_JOBID": "%A", "PBS_JOBNAME": "%x", "PBS_ARRAYID": "%a", "USER": "%u"}
_VARIABLES.update(PBS_ARRAY_INDEX="%a", LOGNAME="%u", PBS_O_LOGNAME="%u")
_DEPENDENCIES = {"after": "after", "afterok": "afterok", "afternotok": "afternotok"}
_DEPENDENCIES.update(afterany="afterany", afterokarray="afterok", afteranyarray="afterany")
_DEPENDENCIES.update(afternotokarray="afternotok")
# option -> option of sbatch, where the value needs no change
_SAME_VALUE = {"-A": "account", "-J": "array", "-N": "job-name", "-P": "account", "-t": "array"}
_SAME_VALUE.update({"-d": "chdir", "-w": "chdir"})


def convert_pbs(arguments: Sequence[tuple[str, str]], options: SbatchOptions) -> None:
    """Add the options of these words, each with its location. Raise DirectiveError."""
    _Conversion(options).convert(arguments)


class _Conversion:
    """The options of all lines of a script: the last value counts, resources add up."""

    def __init__(self, options: SbatchOptions) -> None:
        self._options = options
        self._resources: dict[str, Directive] = {}
        self._join: Directive | None = None
        self._exports: list[str] = []

    def convert(self, arguments: Sequence[tuple[str, str]]) -> None:
        rest = list(reversed(arguments))
        while rest:
            argument, location = rest.pop()
            directive = Directive(argument[:2], argument[2:], location)
            if directive.option not in OPTIONS:
                raise Directive(argument, "", location).refusal(
                    "is no option of qsub", "delete it, or write #MS options"
                )
            has_value, effect, remark = OPTIONS[directive.option]
            if not has_value and directive.value:  # several flags in a word
                rest.append(("-" + directive.value, location))
                directive.value = ""
            elif has_value and not directive.value:
                if not (rest and rest[-1][1] == location):
                    raise DirectiveError(
                        f"{directive.option}: expected one argument", location, "write it"
                    )
                directive.value = rest.pop()[0]
            if effect == REFUSED:
                raise directive.refusal("is not supported", remark)
            if effect == IGNORED:
                if (directive.option, directive.value) != ("-m", "n"):
                    self._options.ignore(directive, remark)
            elif effect == MAPPED:
                self._map(directive)
        self._finish()

    def _map(self, directive: Directive) -> None:
        option, value, options = directive.option, directive.value, self._options
        if option in _SAME_VALUE:
            options.set(_SAME_VALUE[option], value, directive)
        elif option in ("-o", "-e"):
            name = "output" if option == "-o" else "error"
            options.set(name, output_path(directive, _VARIABLES, option[1]), directive)
        elif option == "-S":
            check_interpreter(directive, options)
        elif option in ("-m", "-M"):
            set_mail(directive, options)
        elif option in ("-V", "-v"):
            self._exports += [value] if value else []
            options.set("export", ",".join(["ALL", *self._exports]), directive)
        elif option == "-W":
            self._add_attributes(directive)
        elif option == "-a":
            options.set("begin", begin_time(directive), directive)
        elif option == "-c":
            if value != "n":
                raise directive.refusal("is not supported", "write -c n")
        elif option == "-h":
            options.set("hold", None, directive)
        elif option == "-n":
            options.set("exclusive", None, directive)
        elif option == "-j":
            if value not in ("oe", "eo", "n"):
                raise directive.refusal("is unknown", "write oe, eo or n")
            self._join = directive
        elif option == "-l":
            self._add_resources(directive)
        elif option == "-p":
            set_priority(directive, options, 1024)
        elif option == "-q":
            if "@" in value:
                raise directive.refusal("names a server", "write the name of a queue alone")
            options.set("partition", value, directive)
        else:
            assert option == "-r"
            options.set("requeue" if value == "y" else "no-requeue", None, directive)

    def _add_attributes(self, directive: Directive) -> None:
        # a comma separates attributes, and also dependencies
        name, _, value = directive.value.partition("=")
        if name not in ATTRIBUTES:
            raise directive.refusal("has no equivalent", _REMEDY)
        if ATTRIBUTES[name][0] == IGNORED:
            self._options.ignore(directive, ATTRIBUTES[name][1])
        elif name == "depend":
            terms = []
            for term in value.split(","):
                kind, *ids = term.split(":")
                if kind not in _DEPENDENCIES or not ids:
                    raise directive.refusal(
                        "is no dependency", "write depend=afterok:12:13 or a comma list"
                    )
                terms.append(_DEPENDENCIES[kind] + dependency_ids(directive, ids))
            self._options.set("dependency", ",".join(terms), directive)

    def _add_resources(self, directive: Directive) -> None:
        for request in directive.value.split(","):
            name, _, value = request.partition("=")
            resource = Directive("-l", request, directive.location)
            if name not in RESOURCES or not value:
                raise resource.refusal("has no equivalent", _REMEDY)
            if RESOURCES[name][0] == IGNORED:
                self._options.ignore(resource, RESOURCES[name][1])
            else:
                name = _SYNONYMS.get(name, name)
                self._resources[name] = Directive(f"-l {name}", value, directive.location)

    def _finish(self) -> None:
        """Map what depends on several options."""
        options, resources = self._options, self._resources
        if self._join is not None and self._join.value == "eo" and "error" in options.values:
            options.values["output"] = options.values["error"]
        if self._join is not None and self._join.value != "n":
            options.values.pop("error", None)
        if (limit := resources.get("walltime")) is not None:
            options.set("time", clock_time(limit, limit.value), limit)
        for name, option in (("feature", "constraint"), ("qos", "qos")):
            if name in resources:
                options.set(option, resources[name].value, resources[name])
        if (host := resources.get("host")) is not None:
            set_host(host, options)
        if (policy := resources.get("naccesspolicy")) is not None:
            if policy.value.lower() != "singlejob":
                raise policy.refusal("has no equivalent", "write singlejob, or delete it")
            options.set("exclusive", None, policy)
        kinds = [name for name in ("select", "nodes", "procs") if name in resources]
        if len(kinds) > 1:
            raise resources[kinds[1]].refusal(f"beside -l {kinds[0]}", "write one of them")
        if "select" in resources:
            for name in ("ncpus", "ngpus", "mem", "pmem"):
                if name in resources:
                    raise resources[name].refusal("beside -l select", "write it into the chunk")
            self._map_chunks(resources["select"])
            return
        if "place" in resources:
            raise resources["place"].refusal("without -l select", "write -l select=...")
        nodes = processes = 1
        if "nodes" in resources:
            nodes, processes = self._map_nodes(resources["nodes"])
        elif "procs" in resources:
            processes = count(resources["procs"], resources["procs"].value)
            options.set("ntasks", str(processes), resources["procs"])
        if (cpus := resources.get("ncpus")) is not None:
            if kinds:
                raise cpus.refusal(f"beside -l {kinds[0]}", "write one of them")
            options.set("cpus-per-task", str(count(cpus, cpus.value)), cpus)
        if (gpus := resources.get("ngpus")) is not None:
            options.set("gpus-per-node", str(count(gpus, gpus.value)), gpus)
        if (memory := resources.get("mem")) is not None:
            total = mebibytes(memory, memory.value, _UNITS)
            share = -(-total // (nodes if "procs" not in resources else processes))
            name = "mem-per-cpu" if "procs" in resources else "mem"
            options.set(name, f"{share}M", memory)
        elif (memory := resources.get("pmem")) is not None:
            name = "mem-per-cpu" if kinds else "mem"
            options.set(name, f"{mebibytes(memory, memory.value, _UNITS)}M", memory)

    def _map_nodes(self, directive: Directive) -> tuple[int, int]:
        """Map `2:ppn=4:gpus=1:bigmem`. Return the nodes and the processes of the job."""
        nodes, kinds = 0, set()
        for part in directive.value.split("+"):
            number, *properties = part.split(":")
            if not number.isdecimal():
                raise directive.refusal("names a host", "write a number of nodes")
            nodes += count(directive, number)
            kinds.add(tuple(properties))
        if len(kinds) > 1:
            raise directive.refusal("asks for several kinds of nodes", "ask for nodes of one kind")
        features, per_node = [], 1
        for text in kinds.pop():
            name, is_set, value = text.partition("=")
            if not is_set:
                features.append(name)
            elif name == "ppn":
                per_node = count(directive, value)
            elif name == "gpus":
                self._options.set("gpus-per-node", str(count(directive, value)), directive)
            else:
                raise directive.refusal(f"has {name}=, which has no equivalent", _REMEDY)
        self._options.set("nodes", str(nodes), directive)
        self._options.set("ntasks-per-node", str(per_node), directive)
        if features:
            self._options.set("constraint", "&".join(features), directive)
        return nodes, nodes * per_node

    def _map_chunks(self, directive: Directive) -> None:
        """Map `-l select` and `-l place`."""
        options, chunks, kinds = self._options, 0, set()
        for part in directive.value.split("+"):
            number, *properties = part.split(":")
            if not number.isdecimal():
                number, properties = "1", [number, *properties]
            chunks += count(directive, number)
            kinds.add(tuple(sorted(properties)))
        if len(kinds) > 1:
            raise directive.refusal(
                "asks for several kinds of chunks", "ask for chunks of one kind"
            )
        chunk = dict(text.partition("=")[::2] for text in kinds.pop())
        unknown = chunk.keys() - {"ncpus", "mpiprocs", "mem", "vmem", "ngpus", "ompthreads"}
        if unknown:
            name = min(unknown)
            raise directive.refusal(f"has {name}, which has no equivalent", _REMEDY)
        numbers = {
            name: count(directive, text) for name, text in chunk.items() if "mem" not in name
        }
        cpus, processes = numbers.get("ncpus", 1), numbers.get("mpiprocs", 1)
        if cpus % processes:
            raise directive.refusal(
                f"shares {cpus} processors among {processes} processes", "write a multiple"
            )
        placement = self._placement_words()
        on_nodes = processes > 1 or (chunks > 1 and "ngpus" in numbers) or "scatter" in placement
        if "pack" in placement:
            options.set("nodes", "1", directive)
            options.set("ntasks", str(chunks * processes), directive)
        elif on_nodes:
            options.set("nodes", str(chunks), directive)
            options.set("ntasks-per-node", str(processes), directive)
        else:
            options.set("ntasks", str(chunks), directive)
        options.set("cpus-per-task", str(cpus // processes), directive)
        nodes_per_chunk = on_nodes and "pack" not in placement
        if "ngpus" in numbers:
            per_node = numbers["ngpus"] * (1 if nodes_per_chunk else chunks)
            options.set("gpus-per-node", str(per_node), directive)
        if (text := chunk.get("mem") or chunk.get("vmem")) is not None:
            size = mebibytes(directive, text, _UNITS)
            if nodes_per_chunk or chunks == 1:
                options.set("mem", f"{size}M", directive)
            else:
                options.set("mem-per-cpu", f"{-(-size // cpus)}M", directive)
        if "ompthreads" in numbers:
            self._exports.append(f"OMP_NUM_THREADS={numbers['ompthreads']}")
            options.set("export", ",".join(["ALL", *self._exports]), directive)

    def _placement_words(self) -> set[str]:
        directive = self._resources.get("place")
        if directive is None:
            return set()
        placement = set()
        for term in directive.value.split(":"):
            if term in ("excl", "exclhost"):
                self._options.set("exclusive", None, directive)
            elif term not in ("free", "shared", "pack", "scatter", "vscatter"):
                raise directive.refusal(f"has {term}, which has no equivalent", _REMEDY)
            placement.add(term.replace("vscatter", "scatter"))
        return placement
