"""The texts of metasched.toml and launcher.toml for a site; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from metasched.site_setup.choices import (
    DEFAULT_DATABASE,
    GridEngineCell,
    LocalCluster,
    SiteChoices,
    SiteCluster,
    SlurmCluster,
)

SOCKET = "/run/metasched/metasched.sock"
LAUNCHER_SOCKET = "/run/metasched-launcher/launcher.sock"
STATE_FOLDER = "/var/lib/metasched"
_HEAD = "# Written by `metasched init site`, which keeps it once you have changed it.\n"


def daemon_text(choices: SiteChoices) -> str:
    """Return metasched.toml."""
    daemon = {"database": choices.database, "socket": SOCKET}
    if choices.database != DEFAULT_DATABASE:
        daemon["folder"] = f"{STATE_FOLDER}/clusters"
    site = {"launcher": LAUNCHER_SOCKET, "operator_groups": list(choices.operator_groups)}
    tables = [_table("[daemon]", daemon), _table("[site]", site)]
    tables += [_cluster_tables(cluster) for cluster in choices.clusters]
    note = "# The keys: docs/admin/configuration.md. The most powerful cluster comes first.\n"
    return "\n".join([_HEAD + note, *tables])


def launcher_text(choices: SiteChoices) -> str:
    """Return launcher.toml."""
    top = {"socket": LAUNCHER_SOCKET, "account": choices.account, "min_uid": 1000, "max_uid": 59999}
    tables = [_launcher_table(cluster, choices) for cluster in choices.clusters]
    note = "# This file, its programs and the folders above must belong to root.\n"
    return "\n".join([_HEAD + note, _table("", top), *tables])


def _cluster_tables(cluster: SiteCluster) -> str:
    if isinstance(cluster, LocalCluster):
        keys = {"name": cluster.name, "adapter": "local", "cpus": cluster.cpus}
        text = _table("[[cluster]]", keys)
    elif isinstance(cluster, SlurmCluster):
        keys = {
            "name": cluster.name,
            "adapter": "slurm",
            "config": cluster.config,
            "bin_dir": cluster.bin_dir,
        }
        text = _table("[[cluster]]", keys)
    else:
        keys = {
            "name": cluster.name,
            "adapter": "drmaa",
            "library": cluster.library,
            "bin_dir": cluster.bin_dir,
        }
        text = _table("[[cluster]]", keys) + _inline("environment", cluster.environment)
    for kind in ("account", "qos"):
        text += _table(f"[cluster.map.{kind}]", {"*": "*"})
    return text


def _launcher_table(cluster: SiteCluster, choices: SiteChoices) -> str:
    head = f"[cluster.{_key(cluster.name)}]"
    if isinstance(cluster, LocalCluster):
        supervise = [choices.python, "-I", "-S", f"{choices.package}/adapters/supervisor.py"]
        return _table(head, {"supervise": supervise})
    if isinstance(cluster, SlurmCluster):
        environment: Mapping[str, str] = {"SLURM_CONF": cluster.config}
    else:
        environment = cluster.environment
    text = f"{head}\n" + _inline("environment", environment)
    return text + _table("", {verb: list(argv) for verb, argv in programs(cluster).items()})


def programs(cluster: SiteCluster) -> dict[str, tuple[str, ...]]:
    """Return the programs of a manager that the launcher runs as users, by verb."""
    if isinstance(cluster, SlurmCluster):
        control = f"{cluster.bin_dir}/scontrol"
        return {
            "submit": (f"{cluster.bin_dir}/sbatch",),
            "cancel": (f"{cluster.bin_dir}/scancel",),
            "hold": (control, "hold"),
            "release": (control, "release"),
        }
    if isinstance(cluster, GridEngineCell):
        return {
            "submit": (f"{cluster.bin_dir}/qsub",),
            "cancel": (f"{cluster.bin_dir}/qdel",),
            "hold": (f"{cluster.bin_dir}/qhold", "-h", "u"),
            "release": (f"{cluster.bin_dir}/qrls", "-h", "u"),
        }
    return {}


def _table(head: str, keys: Mapping[str, object]) -> str:
    """Return a table of TOML. A JSON string of ASCII is a basic string of TOML."""
    lines = [head] if head else []
    lines += [f"{_key(key)} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def _inline(name: str, values: Mapping[str, str]) -> str:
    """Return a key whose value is an inline table."""
    pairs = ", ".join(f"{_key(key)} = {json.dumps(value)}" for key, value in values.items())
    return f"{name} = {{ {pairs} }}\n"


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else json.dumps(name)
