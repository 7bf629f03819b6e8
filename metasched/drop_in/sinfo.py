"""`sinfo`: lists partitions and their nodes, over all clusters."""

from __future__ import annotations

import os
import time

from metasched.drop_in.command import VERSION_LINE, CommandError, connect, parse_options
from metasched.drop_in.format_language import Field, FormatLanguage
from metasched.drop_in.job import UNSET, format_duration
from metasched.drop_in.job_filters import words_of
from metasched.drop_in.native_clusters import read_clusters

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

OPTIONS = {
    "all": "a",
    "clusters=": "M",
    "exact": "e",
    "format=": "o",
    "Format=": "O",
    "help": "",
    "hide": "",
    "local": "",
    "long": "l",
    "noconvert": "",
    "noheader": "h",
    "partition=": "p",
    "responding": "r",
    "states=": "t",
    "summarize": "s",
    "usage": "",
    "verbose": "v",
    "version": "V",
}
# metasched knows kinds of nodes; with these options the real commands list them by name
NODE_OPTIONS = {"dead": "d", "list-reasons": "R", "Node": "N", "nodes=": "n", "reservation": "T"}
# fields of nodes that only the real commands know, and the whole line; letters and names
_NODE_LETTERS = frozenset("BEHIMNOSUXYZdenouvwz")
_NODE_NAMES = (
    *("all", "allocmem", "allocnodes", "comment", "cores", "cpusload", "disk", "extra", "freemem"),
    *("gresused", "maxcpuspernode", "nodeaddr", "nodehost", "nodelist", "port", "preemptmode"),
    *("priorityjobfactor", "reason", "socketcorethread", "sockets", "statecomplete", "threads"),
    *("timestamp", "user", "userlong", "version", "weight"),
)
_VARIABLES = {"SINFO_FORMAT": "format", "SINFO_PARTITION": "partition"}
_DEFAULT_FORMAT = "%{width}P %.5a %.10l %.6D %.6t %N"
_LONG_FORMAT = "%{width}P %.5a %.10l %.10s %.6D %.11T %N"
_SUMMARY_FORMAT = "%{width}P %.5a %.10l %.16F %N"
USAGE = "Usage: sinfo [-aehlNRrsT] [-M clusters] [-n nodes] [-p partition] [-t states]\n"
USAGE += "             [-o format] [-O fields]"

# States of nodes in the order of the listing: word -> code
_STATES = {"mixed": "mix", "allocated": "alloc", "idle": "idle", "down": "down"}
_NO_NODES = ("n/a", "n/a")  # state of a line without nodes


class NodeLine:
    """Equal nodes of a partition on a line: a row of `GET /partitions` and some of its nodes."""

    def __init__(self, partition: Mapping[str, Any], nodes: Mapping[str, Any] | None) -> None:
        self.partition = partition
        self.nodes = nodes or {"count": 0, "cpus": 0, "free_cpus": 0, "memory": None, "gres": {}}
        self.state = _state(nodes) if nodes else _NO_NODES[0]
        count, cpus, free = (self.nodes[key] for key in ("count", "cpus", "free_cpus"))
        # nodes and processors: allocated, idle, other
        self.node_counts = [count if group == self._group else 0 for group in range(3)]
        used = [0, 0, cpus] if self.state == "down" else [cpus - free, free, 0]
        self.cpu_counts = [count * number for number in used]
        self.cpus, self.memory = {cpus}, {self.nodes["memory"] or 0}

    @property
    def _group(self) -> int:
        return {"idle": 1, "down": 2}.get(self.state, 0)

    @property
    def code(self) -> str:
        return _STATES.get(self.state, _NO_NODES[1])

    def add(self, other: NodeLine) -> None:
        """Add the nodes of another line."""
        for counts, more in (
            (self.node_counts, other.node_counts),
            (self.cpu_counts, other.cpu_counts),
        ):
            counts[:] = [sum(pair) for pair in zip(counts, more)]
        self.cpus |= other.cpus
        self.memory |= other.memory


def _state(nodes: Mapping[str, Any]) -> str:
    if not nodes["up"]:
        return "down"
    if nodes["free_cpus"] >= nodes["cpus"]:
        return "idle"
    return "mixed" if nodes["free_cpus"] > 0 else "allocated"


def _name(line: NodeLine) -> str:
    return f"{line.partition['partition']}{'*' if line.partition['default'] else ''}"


def _time_limit(line: NodeLine) -> str:
    limit = line.partition["time_limit"]
    return "infinite" if limit is None else format_duration(limit)


def _default_time(line: NodeLine) -> str:
    limit = line.partition["default_time"]
    return "n/a" if limit is None else format_duration(limit)


def _gres(line: NodeLine) -> str:
    gres = line.nodes["gres"]
    return ",".join(f"{name}:{count}" for name, count in sorted(gres.items())) or UNSET


def _features(line: NodeLine) -> str:
    return ",".join(line.nodes.get("features", ())) or UNSET


def _job_size(line: NodeLine) -> str:
    return f"1-{line.partition['max_nodes'] or 'infinite'}"


def _counts(counts: Sequence[int]) -> str:
    return "/".join(map(str, (*counts, sum(counts))))


def _least(values: Iterable[int]) -> str:
    """Return the least of the values, with a plus if they differ."""
    different = sorted(values)
    return f"{different[0]}{'+' if len(different) > 1 else ''}"


# sums over the nodes of a line, and ranges of their values; the other fields divide lines
_SUMS = (
    Field("D", "nodes", "NODES", lambda line: str(sum(line.node_counts))),
    Field("F", "nodeaiot", "NODES(A/I/O/T)", lambda line: _counts(line.node_counts)),
    Field("A", "nodeai", "NODES(A/I)", lambda line: "{}/{}".format(*line.node_counts)),
    Field("C", "cpusstate", "CPUS(A/I/O/T)", lambda line: _counts(line.cpu_counts)),
)
_RANGES = (
    Field("c", "cpus", "CPUS", lambda line: _least(line.cpus)),
    Field("m", "memory", "MEMORY", lambda line: _least(line.memory)),
)
_OF_PARTITIONS = (
    Field("P", "partition", "PARTITION", _name),
    Field("R", "partitionname", "PARTITION", lambda line: line.partition["partition"]),
    Field("a", "available", "AVAIL", lambda line: line.partition["state"]),
    Field("l", "time", "TIMELIMIT", _time_limit),
    Field("L", "defaulttime", "DEFAULTTIME", _default_time),
    Field("s", "size", "JOB_SIZE", _job_size),
)
FIELDS = (
    *_SUMS,
    *_RANGES,
    *_OF_PARTITIONS,
    Field("t", "statecompact", "STATE", lambda line: line.code),
    Field("T", "statelong", "STATE", lambda line: line.state),
    Field("G", "gres", "GRES", _gres),
    Field("f", "features", "AVAIL_FEATURES", _features),
    Field("b", "features_act", "ACTIVE_FEATURES", _features),
    Field("V", "cluster", "CLUSTER", lambda line: line.partition["cluster"]),
    Field("N", "nodelist", "NODELIST", lambda line: "n/a"),  # nodes are known by kind, not by name
    Field("p", "prioritytier", "PRIO_TIER", lambda line: "1"),
    Field("g", "groups", "GROUPS", lambda line: "all"),
    Field("h", "oversubscribe", "OVERSUBSCRIBE", lambda line: "NO"),
    Field("r", "root", "ROOT", lambda line: "no"),
)
NODE_FORMATS = FormatLanguage(
    FIELDS,
    "Invalid node format specification: ",
    "sinfo: error: Invalid job format specification: ",
)


def main(arguments: Sequence[str]) -> int:
    """List the partitions that the options select. Return the exit code."""
    parsed, _ = parse_options("sinfo", {**OPTIONS, **NODE_OPTIONS}, arguments)
    options = {name: os.environ[key] for key, name in _VARIABLES.items() if os.environ.get(key)}
    options.update(parsed)
    if "help" in options or "usage" in options:
        print(USAGE)
        return 0
    if "version" in options:
        print(VERSION_LINE)
        return 0
    connection = connect()
    of_nodes = any(name.rstrip("=") in options for name in NODE_OPTIONS)
    if of_nodes or _needs_real(options):
        native = read_clusters(connection)
        if of_nodes or any(cluster.config for cluster in native.clusters):
            from metasched.drop_in.native_nodes import list_nodes  # few calls need it

            known = {**OPTIONS, **NODE_OPTIONS}
            return list_nodes(native, known, parsed, options.get("clusters"))
    states = _parse_states(options.get("states", ""))
    rows, _ = connection.request("GET", "/partitions")
    names = words_of(options.get("partition", ""))
    rows = [row for row in rows if not names or row["partition"] in names]
    if not options.get("clusters"):
        _print_table(rows, options, states)
        return 0
    clusters = read_clusters(connection).choose("sinfo", options["clusters"]) or []
    chosen = [cluster.name for cluster in clusters]
    for cluster in chosen:
        if "noheader" not in options:
            print(f"CLUSTER: {cluster}" if cluster == chosen[0] else f"\nCLUSTER: {cluster}")
        _print_table([row for row in rows if row["cluster"] == cluster], options, states)
    return 0


def _needs_real(options: Mapping[str, str]) -> bool:
    """Return whether only the real commands know a field or a state that is asked for."""
    if not _states(options).issubset((*_STATES, *_STATES.values(), "all")):
        return True
    if names := options.get("Format"):
        return any(
            name.partition(":")[0].strip().lower() in _NODE_NAMES for name in names.split(",")
        )
    parts = (part.lstrip(".0123456789") for part in options.get("format", "").split("%")[1:])
    return any(part[:1] in _NODE_LETTERS or part.startswith("all") for part in parts)


def _states(options: Mapping[str, str]) -> set[str]:
    return {word.lower() for word in words_of(options.get("states", ""))}


def _parse_states(text: str) -> frozenset[str]:
    """Return the states of nodes that a list names; empty: all. CommandError for an unknown one."""
    words = [word.lower() for word in words_of(text)]
    if "all" in words:
        return frozenset()
    by_word = {word: state for state, code in _STATES.items() for word in (state, code)}
    for word in words:
        if word not in by_word:
            valid = ",".join(_STATES)
            raise CommandError(
                f'sinfo: error: Bad state string: "{word}"\nsinfo: error: valid states: {valid}'
            )
    return frozenset(by_word[word] for word in words)


def _print_table(
    rows: Sequence[Mapping[str, Any]], options: Mapping[str, str], states: frozenset[str]
) -> None:
    lines = sorted(_lines(rows, states), key=_order(rows))
    width = max((len(_name(line)) for line in lines), default=0)
    default = _SUMMARY_FORMAT if "summarize" in options else _DEFAULT_FORMAT
    default = _LONG_FORMAT if "long" in options else default
    text = options.get("format") or default.format(width=max(width, len("PARTITION")))
    long_names = options.get("Format")
    format = NODE_FORMATS.parse_long(long_names) if long_names else NODE_FORMATS.parse(text)
    fields = [column.field for column in format.columns]
    if not any(field in _OF_PARTITIONS for field in fields):
        lines = _without_shared_nodes(lines)
    joined = _join(lines, fields, "exact" in options)
    if "noheader" not in options:
        if "long" in options:
            print(time.strftime("%a %b %d %H:%M:%S %Y"))
        print(format.heading)
    for line in joined:
        print(format.line(line))


def _lines(rows: Sequence[Mapping[str, Any]], states: frozenset[str]) -> list[NodeLine]:
    """Return a line for each kind of nodes; a partition without such nodes has an empty line."""
    lines = [NodeLine(row, nodes) for row in rows for nodes in row["nodes"]]
    lines = [line for line in lines if not states or line.state in states]
    listed = {line.partition["partition"] for line in lines}
    return lines + [NodeLine(row, None) for row in rows if row["partition"] not in listed]


def _order(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the key of the real command's order: partitions as configured, then states."""
    names = list(dict.fromkeys(row["partition"] for row in rows))
    states = [*_STATES, _NO_NODES[0]]
    return lambda line: (names.index(line.partition["partition"]), states.index(line.state))


def _without_shared_nodes(lines: Iterable[NodeLine]) -> list[NodeLine]:
    """Return the lines of each kind of nodes in the partition of its cluster that has most of them.

    Partitions may share nodes, which would count twice. Nodes have no names here: of partitions
    that divide equal nodes, the largest alone counts.
    """
    kinds: dict[tuple[object, ...], dict[str, list[NodeLine]]] = {}
    for line in lines:
        nodes = {key: value for key, value in line.nodes.items() if key != "count"}
        kind = (line.partition["cluster"], repr(nodes))
        partitions = kinds.setdefault(kind, {})
        partitions.setdefault(line.partition["partition"], []).append(line)
    return [
        line
        for partitions in kinds.values()
        for line in max(
            partitions.values(), key=lambda lines: sum(sum(x.node_counts) for x in lines)
        )
    ]


def _join(lines: Iterable[NodeLine], fields: Sequence[Field], exact: bool) -> list[NodeLine]:
    """Join lines that look equal but for their counts, as the real command does.

    `exact`: also by processors and memory of a node.
    """
    shared = [field for field in fields if field not in _SUMS and (exact or field not in _RANGES)]
    joined: dict[tuple[str, ...], NodeLine] = {}
    for line in lines:
        key = tuple(field.text(line) for field in shared)
        if key in joined:
            joined[key].add(line)
        else:
            joined[key] = line
    return list(joined.values())
