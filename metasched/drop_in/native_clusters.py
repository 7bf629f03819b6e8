"""The clusters of the site, their real commands on this host, and which ids are their own."""

from __future__ import annotations

import os
import sys

from metasched.client.connection import ClientError
from metasched.client.sudo import may_be_changed
from metasched.drop_in.command import (
    CommandError,
    exec_program,
    exec_real,
    find_real,
    real_environment,
    real_path,
    search_path,
)
from metasched.drop_in.job_filters import words_of

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from metasched.client.connection import Connection

LISTED = "METASCHED_NATIVE_JOBS"  # set to 0: listings contain jobs of metasched alone


class NativeCluster:
    """A cluster of the site: a row of `GET /clusters/native`."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.name: str = row["cluster"]
        self.manager_name: str = row["manager_name"]  # "": unknown, or not Slurm
        self.config: str = row["config"] or ""  # "": not Slurm
        self.is_up: bool = row["up"]
        self.has_accounting: bool = row["accounting"]
        self.tag_field: str = row["tag_field"] or ""
        self.lists_jobs: bool = row["native_jobs"]
        self._bin_dir: str = row["bin_dir"] or ""

    def program(self, name: str) -> str | None:
        """Return the path of a real command; None if it does not reach the cluster from here."""
        config = self.config
        if config[:1] != "/" or not os.access(config, os.R_OK) or may_be_changed(config):
            return None
        return find_real(name, [self._bin_dir] if self._bin_dir else search_path())

    def environment(self) -> dict[str, str]:
        """Return the variables of its commands."""
        # Slurm would ask slurmdbd for the named cluster
        variables = {name: os.environ[name] for name in os.environ if name != "SLURM_CLUSTERS"}
        return {**variables, "SLURM_CONF": self.config}

    def exec(self, name: str, arguments: Sequence[str]) -> None:
        """Replace this process by a real command. CommandError if this host has none."""
        path, environment = self.required_program(name), self.environment()
        if self._bin_dir:
            environment["METASCHED_SLURM_BIN"] = self._bin_dir  # for srun below salloc
        exec_program(path, arguments, environment)

    def run(self, name: str, arguments: Sequence[str]) -> int:
        """Run a real command with the streams of this process; return its exit code."""
        return _run(self.required_program(name), arguments, self.environment())

    def required_program(self, name: str) -> str:
        """Return the path of a real command. CommandError if this host has none."""
        path = self.program(name)
        if path is None:
            if os.access(self.config, os.R_OK) and may_be_changed(self.config):
                problem = f"others may change {self.config} of cluster {self.name}"
                raise CommandError(f"{name}: error: {problem}; use no sudo, or give it to root")
            place = f"this host has no {name} for cluster {self.name}"
            raise CommandError(f"{name}: error: {place}; ask its admin for it")
        return path


class NativeClusters:
    """All clusters of the site. With `first_id` 1, all ids are taken for those of metasched."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.first_id: int = answer["first_id"]
        self.tag_prefixes = tuple(f"ms-{instance}-" for instance in answer["instances"])
        self.clusters = [NativeCluster(row) for row in answer["clusters"]]

    def is_native(self, word: str) -> bool:
        """Return whether an id, such as `17`, `17_3` or `17.0`, is one of a cluster's own."""
        digits = word.partition(".")[0].partition("_")[0]
        return digits.isascii() and digits.isdecimal() and 0 < int(digits[:18]) < self.first_id

    def choose(self, command: str, names: str | None) -> list[NativeCluster] | None:
        """Return the clusters that `--clusters` names, by either name; None without the option.

        CommandError in the words of the real commands for an unknown name.
        """
        if names is None:
            return None
        words = words_of(names) or [names]
        if "all" in words:
            return self.clusters
        chosen = []
        for word in words:
            # a name of metasched comes before the same name in Slurm
            for key in ("name", "manager_name"):
                found = [
                    c for c in self.clusters if word and getattr(c, key).lower() == word.lower()
                ]
                if found:
                    chosen.append(found[0])
                    break
            else:
                raise CommandError(
                    f"{command}: error: No cluster '{word}' known by database.\n"
                    f"{command}: error: '{word}' can't be reached now, or it is an invalid entry "
                    "for --cluster.  Use 'sacctmgr list clusters' to see available clusters."
                )
        return list(dict.fromkeys(chosen))

    def listed(self, command: str, chosen: Sequence[NativeCluster] | None) -> list[NativeCluster]:
        """Return the clusters whose own jobs a listing contains: those with a command here.

        A cluster that does not answer the daemon is left out with a warning, unless it is chosen:
        each call would wait for it.
        """
        if self.first_id <= 1 or os.environ.get(LISTED) == "0":
            return []
        listed = []
        for cluster in self.clusters if chosen is None else chosen:
            if not (cluster.lists_jobs and cluster.program(command)):
                continue
            if chosen is None and not cluster.is_up:
                problem = f"native jobs are not listed, cluster {cluster.name}: it is down"
                print(f"{command}: warning: {problem}", file=sys.stderr)
                continue
            listed.append(cluster)
        return listed


def read_clusters(connection: Connection) -> NativeClusters:
    """Return the clusters of a daemon. Raises ClientError."""
    answer, _ = connection.request("GET", "/clusters/native")
    if not isinstance(answer, dict):
        raise ClientError(f"unexpected response, socket {connection.path}; see its log")
    return NativeClusters(answer)


def slurm_clusters(command: str, chosen: Sequence[NativeCluster]) -> list[NativeCluster]:
    """Return the clusters that have Slurm. CommandError if none has."""
    slurm = [cluster for cluster in chosen if cluster.config]
    if not slurm:
        names = ", ".join(cluster.name for cluster in chosen)
        raise CommandError(f"{command}: error: no Slurm on cluster {names}")
    return slurm


def run_native(
    command: str, arguments: Sequence[str], chosen: Sequence[NativeCluster] | None, is_last: bool
) -> int:
    """Run a real command on the chosen clusters; None: on the default cluster of this host.

    Return the largest exit code. If `is_last`, a single command replaces this process.
    """
    if chosen is None:
        if is_last:
            exec_real(command, arguments)
        return _run(real_path(command), arguments, os.environ)
    slurm = slurm_clusters(command, chosen)
    if is_last and len(slurm) == 1:
        slurm[0].exec(command, arguments)
    return max(cluster.run(command, arguments) for cluster in slurm)


def _run(path: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.posix_spawn(path, [path, *arguments], real_environment(path, environment))
    _, status = os.waitpid(process, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1
