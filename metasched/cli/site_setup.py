"""`init site`: asks, shows the plan, has it carried out, and says what comes next."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
import typer

import metasched
from metasched.cli.messages import warn
from metasched.client.sudo import is_under_sudo
from metasched.config.reading import load_settings
from metasched.site_setup import activation, discovery
from metasched.site_setup.choices import (
    LocalCluster,
    SiteChoices,
    SiteCluster,
    SiteSetupError,
)
from metasched.site_setup.configuration import daemon_text
from metasched.site_setup.root_files import PlannedChange, RootFiles, SiteOptions
from metasched.site_setup.site_files import COMPLETIONS, PAGES, UNITS, site_files


def set_up_site(
    options: dict[str, object],
    *,
    dry_run: bool,
    ask: bool,
    force: bool,
    root: Path,
    prefix: str | None,
) -> int:
    """Write the files of a site; `options` are those of `SiteOptions` that were given."""
    root = root.absolute()
    on_host = root == Path("/")
    if on_host and os.geteuid() != 0 and not dry_run:
        raise SiteSetupError("not root, so no file can be written; run it by sudo, or --dry-run")
    ask = ask and not dry_run and sys.stdin.isatty() and sys.stdout.isatty()
    files = RootFiles(root)
    stored = files.read_record().options
    chosen = msgspec.structs.replace(stored or SiteOptions(), **options)
    if not (chosen.slurm or chosen.gridengine or chosen.local):
        chosen = _discovered(chosen, root, ask)
    if ask and stored is None and "operators" not in options:
        answer = typer.prompt("Group whose members are operators", default="none")
        chosen = msgspec.structs.replace(
            chosen, operators=() if answer == "none" else (answer.strip(),)
        )
    choices = _choices(chosen, root, prefix)
    choices.require_valid()
    _require_readable(choices)
    if on_host:
        for problem in activation.require_root_files(choices):
            raise SiteSetupError(
                f"{problem}; chown and chmod it, or name the other clusters by options"
            )
    site_needs = site_files(choices, _completions(), _pages())
    planned = files.plan(site_needs, force)
    changes = [change for change in planned if change.action != "same" or change.new_beside]
    effective = [change for change in changes if change.action != "keep" or change.new_beside]
    _show(changes, with_diffs=dry_run)
    if dry_run:
        print("nothing was changed (--dry-run)" if effective else "nothing would change")
        return 0
    if effective and ask and not typer.confirm("Write this?", default=True):
        print("nothing was changed")
        return 0
    with files.locked():
        if files.plan(site_needs, force) != planned:
            raise SiteSetupError("the files changed meanwhile, nothing was written; run it again")
        files.write(planned, chosen)
    if on_host:
        _activate(choices, effective)
    if not effective:
        print("nothing to change")
    elif on_host:
        print(_next_steps(choices))
    return 0


def _activate(choices: SiteChoices, changes: Sequence[PlannedChange]) -> None:
    """Have systemd take over the files, and check that of the launcher."""
    if activation.create_account(choices.account):
        print(f"created account {choices.account}")
    activation.create_folders()
    if any(change.file.path.endswith(UNITS) for change in changes):
        activation.reload_units()
    if (problem := activation.check_launcher(choices)) is not None:
        raise SiteSetupError(problem)


def _discovered(chosen: SiteOptions, root: Path, ask: bool) -> SiteOptions:
    """Return options with the clusters of this host; without any, its own processors."""
    # with `sudo -E` these variables are those of the account that called it
    variables = {} if is_under_sudo() else os.environ
    slurm = [
        f"{cluster.name}={cluster.config}"
        for cluster in discovery.find_slurm(root, variables)
        if not ask or typer.confirm(f"Use the Slurm cluster of {cluster.config}?", default=True)
    ]
    cells = [
        f"{cell.name}={cell.environment['SGE_ROOT']}:{cell.environment['SGE_CELL']}"
        for cell in discovery.find_cells(root, variables)
        if not ask
        or typer.confirm(f"Use the Grid Engine cell {cell.environment['SGE_ROOT']}?", default=True)
    ]
    local = [] if slurm or cells else [f"local={os.cpu_count() or 1}"]
    return msgspec.structs.replace(
        chosen, slurm=tuple(slurm), gridengine=tuple(cells), local=tuple(local)
    )


def _choices(chosen: SiteOptions, root: Path, prefix: str | None) -> SiteChoices:
    clusters: list[SiteCluster] = []
    for text in chosen.slurm:
        name, path = _named(text)
        clusters.append(discovery.slurm_cluster(root, path, name))
    for text in chosen.gridengine:
        name, path = _named(text)
        sge_root, _, cell = path.partition(":")
        clusters.append(discovery.grid_engine_cell(root, sge_root, cell or "default", name))
    for text in chosen.local:
        name, _, cpus = text.partition("=")
        if not cpus.isdecimal() or not 0 < int(cpus) < 1 << 20:
            raise SiteSetupError(f"--local {text}: no number of processors; write NAME=CPUS")
        clusters.append(LocalCluster(name, int(cpus)))
    package = str(Path(metasched.__file__).resolve().parent)
    if prefix is not None:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        package = f"{prefix}/lib/{version}/site-packages/metasched"
    return SiteChoices(
        prefix=prefix or sys.prefix,
        package=package,
        python=os.path.realpath(sys.executable),
        clusters=tuple(clusters),
        account=chosen.account,
        group=activation.group_of(chosen.account) if root == Path("/") else chosen.account,
        database=chosen.database,
        operator_groups=tuple(chosen.operators),
    )


def _named(text: str) -> tuple[str, str]:
    """Return the name, "" if there is none, and the path of NAME=PATH or PATH."""
    name, equals, path = text.partition("=")
    return (name, path) if equals and "/" not in name else ("", text)


def _require_readable(choices: SiteChoices) -> None:
    """Raise ConfigError if the daemon would refuse the configuration; nothing was written then."""
    with tempfile.TemporaryDirectory(prefix="metasched-init-") as folder:
        path = Path(folder, "metasched.toml")
        path.write_text(daemon_text(choices))
        load_settings(path)


@cache
def _completions() -> dict[str, str]:
    """Return the completion scripts by shell, as the command itself prints them."""
    scripts = {}
    for shell in COMPLETIONS:
        completed = subprocess.run(
            [sys.executable, "-P", "-m", "metasched"],
            env={**os.environ, "_METASCHED_COMPLETE": f"source_{shell}"},
            capture_output=True,
            text=True,
            check=False,
        )
        if completed.returncode == 0 and completed.stdout:
            scripts[shell] = completed.stdout
        else:
            warn(f"no completion for {shell}: the command does not print it")
    return scripts


def _pages() -> list[str]:
    """Return the names of the manual pages that were installed with this package."""
    return sorted(path.name for path in Path(sys.prefix, "share/man/man1").glob("metasched*.1"))


def _show(changes: Sequence[PlannedChange], with_diffs: bool) -> None:
    pages = [change for change in changes if change.file.path.startswith(f"{PAGES}/")]
    for change in changes:
        if change not in pages or change.action == "keep":
            print(change)
            if with_diffs:
                print(change.diff(), end="")
    if written := sum(change.action != "keep" for change in pages):
        print(f"{'link':8} {written} manual pages in /{PAGES}")


def _next_steps(choices: SiteChoices) -> str:
    return f"""
Next:
  1. Look at /etc/metasched/metasched.toml and /etc/metasched/launcher.toml.
  2. systemctl enable --now metasched-launcher metasched
  3. runuser -u {choices.account} -- metasched doctor
  4. As an ordinary user, in a directory of that user: metasched submit --wait --wrap hostname
A change of metasched.toml takes effect with: systemctl reload metasched"""
