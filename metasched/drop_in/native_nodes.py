"""The nodes of Slurm clusters by name, as the real commands list them: metasched knows kinds."""

from __future__ import annotations

import re
import subprocess
import sys

from metasched.drop_in.command import CommandError, real_arguments, real_environment
from metasched.drop_in.format_language import printable
from metasched.drop_in.native_clusters import slurm_clusters
from metasched.model.host_lists import expand_hosts

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from metasched.drop_in.native_clusters import NativeCluster, NativeClusters

SECONDS = 10.0  # for the answer of a cluster


class _Nodes:
    """What a real command prints on each cluster; it runs on all of them at once."""

    def __init__(
        self, command: str, clusters: NativeClusters, names: str | None, arguments: Sequence[str]
    ) -> None:
        """`names`: the clusters that the user has named; None: all that answer."""
        self._command, self._is_named = command, names is not None
        self.code = 0
        chosen = clusters.choose(command, names)
        slurm = slurm_clusters(command, clusters.clusters if chosen is None else chosen)
        self._processes: list[tuple[NativeCluster, subprocess.Popen[str]]] = []
        for cluster in slurm:
            if not self._is_named and not cluster.is_up:  # each call would wait for it
                self._report(cluster, "it is down")
            elif (path := cluster.program(command)) is None:
                self._report(cluster, f"this host has no {command} for it")
            else:
                process = subprocess.Popen(
                    [path, *arguments],
                    env=real_environment(path, cluster.environment()),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    encoding="utf-8",
                    errors="replace",
                )
                self._processes.append((cluster, process))

    def answers(self) -> Iterator[tuple[NativeCluster, str]]:
        """Yield the output on each cluster; a line is printed for one that fails."""
        is_any = False
        for cluster, process in self._processes:
            try:
                output, errors = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                self._report(cluster, "no answer in time")
                continue
            if process.returncode:
                lines = (errors.strip() or output.strip()).splitlines()
                self._report(cluster, lines[-1] if lines else f"exit code {process.returncode}")
                continue
            is_any = True
            yield cluster, output
        if not is_any:
            self.code = 1

    def _report(self, cluster: NativeCluster, problem: str) -> None:
        """Print why nodes are missing: an error if the user has named the cluster."""
        if self._is_named:
            self.code = 1
        kind = "error" if self._is_named else "warning"
        text = f"nodes of cluster {cluster.name} are not listed: {printable(problem)}"
        print(f"{self._command}: {kind}: {text}", file=sys.stderr)


def list_nodes(
    clusters: NativeClusters,
    known: Mapping[str, str],
    parsed: Sequence[tuple[str, str]],
    names: str | None,
) -> int:
    """Print the nodes of all Slurm clusters as `sinfo` does; return the exit code.

    `known` and `parsed` as in `parse_options`. The heading stands once, or for each cluster that
    the user has named.
    """
    rest = [(name, value) for name, value in parsed if name != "clusters"]
    given = {name for name, _ in rest}
    nodes = _Nodes("sinfo", clusters, names, real_arguments(known, rest, []))
    heading = 0 if "noheader" in given else 2 if "long" in given else 1  # lines
    is_first = True
    for cluster, output in nodes.answers():
        lines = output.splitlines()
        if names is None:
            lines = lines if is_first else lines[heading:]
        elif heading:
            print(f"CLUSTER: {cluster.name}" if is_first else f"\nCLUSTER: {cluster.name}")
        for line in lines:
            print(printable(line))
        is_first = False
    return nodes.code


def show_nodes(clusters: NativeClusters, arguments: Sequence[str], words: Sequence[str]) -> int:
    """Print the records of nodes as `scontrol show node` does; without words of all nodes.

    `arguments` are options of the real command. Return the exit code.
    """
    try:
        wanted = expand_hosts(" ".join(words)) or tuple(words)  # a node may be called None
    except ValueError:
        raise CommandError(f"unable to parse node list {' '.join(words)}") from None
    nodes = _Nodes("scontrol", clusters, None, [*arguments, "show", "node"])
    missing = dict.fromkeys(wanted)
    for _, output in nodes.answers():
        for record in re.split(r"^(?=NodeName=)", output, flags=re.MULTILINE)[1:]:
            name = record.split(None, 1)[0].partition("=")[2]
            if not wanted or name in wanted:
                missing.pop(name, None)
                print(record, end="")
    for name in missing:
        print(f"Node {printable(name)} not found")  # as the real command, not on stderr
    return 1 if missing else nodes.code
