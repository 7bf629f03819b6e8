"""The environment that a job takes from its submission, after `--export`.

The drop-in commands import this module: it keeps to Python 3.9 and imports nothing slow.
"""

from __future__ import annotations

from metasched.errors import ParseError, quote_for_error
from metasched.paths import NAMED_VARIABLES

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# variables that other managers and metasched set for their own jobs
_STRIPPED_PREFIXES = ("SLURM_", "SBATCH_", "SGE_", "PBS_", "METASCHED_")
# that name the daemon: commands in the job must call the same
_KEPT = ("METASCHED_CONFIG", "METASCHED_SOCKET")
# Marks of a submission by sudo or doas. Commands in the job are not called by those: with a mark
# they would trust none of the job's variables, see `client.sudo`.
_MARKS = ("SUDO_UID", "DOAS_USER")


def exported_environment(
    entries: Sequence[str], environ: Mapping[str, str], warnings: list[str]
) -> dict[str, str]:
    """Return the environment of a job, without other managers' variables.

    `entries` are ALL, NONE alone, NAME or NAME=value. ParseError for another entry. Variables that
    cannot be exported are named in `warnings`.
    """
    if list(entries) == ["NONE"]:
        return {}
    named: list[str] = []
    exported = {
        variable: content
        for variable, content in environ.items()
        if "ALL" in entries
        and variable not in _MARKS
        and (variable in _KEPT or not variable.startswith(_STRIPPED_PREFIXES))
    }
    for entry in entries:
        name, is_set, value = entry.partition("=")
        if entry in ("ALL", ""):
            continue
        if not name or entry == "NONE":
            raise ParseError(quote_for_error(entry), "write ALL, NONE, or NAME,NAME=value,...")
        named.append(name)
        if is_set:
            exported[name] = value
        elif name in environ:
            exported[name] = environ[name]
        else:
            warnings.append(f"--export: {name} is not set, the job will not have it")
    dropped = [
        variable
        for variable, content in exported.items()
        if not (is_utf8(variable) and is_utf8(content))
    ]
    if dropped:
        names = ", ".join(quote_for_error(variable) for variable in dropped)
        warnings.append(f"variables that are not UTF-8 text are not exported: {names}")
        exported = {name: content for name, content in exported.items() if name not in dropped}
    if exported_names := [name for name in dict.fromkeys(named) if name in exported]:
        exported[NAMED_VARIABLES] = ",".join(exported_names)
    return exported


def is_utf8(text: str) -> bool:
    """Return whether a text of the system is UTF-8, without bytes that were escaped."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def current_umask() -> int:
    """Return the umask of this process; reading it requires setting it."""
    import os

    mask = os.umask(0o077)
    os.umask(mask)
    return mask
