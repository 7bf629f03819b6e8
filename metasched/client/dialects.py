"""Lines of other managers in a script, `#$` and `#PBS`, as options of sbatch.

Only a script without `#SBATCH` lines is read so: its dialect is that of its lines. Each dialect has
a table of its options, which docs/directives.md shows. A line that asks for something which cannot
be mapped refuses the job. This module keeps to Python 3.9 and imports nothing slow.
"""

from __future__ import annotations

from metasched.client.directive_values import DirectiveError, SbatchOptions

GRID_ENGINE, PBS, LSF = "#$", "#PBS", "#BSUB"
PREFIXES = (GRID_ENGINE, PBS, LSF)


def dialect_lines(script: str) -> dict[str, list[tuple[int, str]]]:
    """Return the lines before the first command by prefix, with their numbers.

    The prefix `#SBATCH` is a key if there is such a line. A line has the text after its prefix.
    """
    lines: dict[str, list[tuple[int, str]]] = {}
    for number, line in enumerate(script.split("\n"), 1):
        if line.strip() and not line.startswith("#"):
            break
        for prefix in ("#SBATCH", *PREFIXES):
            rest = line[len(prefix) :]
            # `#$-cwd` is a directive, `#$Id: x$` is a comment
            if line.startswith(prefix) and (rest[:1] in (" ", "\t", "-", "") or not rest.strip()):
                lines.setdefault(prefix, []).append((number, rest))
                break
    return lines


def read_dialects(script: str, file: str) -> SbatchOptions:
    """Return the options of the lines of other managers; `file` names the script in messages.

    None are read beside `#SBATCH` lines. Raise DirectiveError for a line that refuses the job.
    """
    options = SbatchOptions(script)
    lines = dialect_lines(script)
    other_prefixes = [prefix for prefix in PREFIXES if lines.get(prefix)]
    if "#SBATCH" in lines:
        if other_prefixes:
            names = " and ".join(other_prefixes)
            options.warnings.append(f"{names} lines are not read beside #SBATCH lines, {file}")
        return options
    if LSF in other_prefixes:
        raise DirectiveError(
            "#BSUB lines are not understood",
            f"{file} line {lines[LSF][0][0]}",
            "write #SBATCH lines, or delete it",
        )
    for prefix in other_prefixes:
        arguments = [
            (argument, f"{file} line {number}")
            for number, text in lines[prefix]
            for argument in _split(text, f"{file} line {number}")
        ]
        if prefix == GRID_ENGINE:
            from metasched.client.gridengine_directives import convert_gridengine

            convert_gridengine(arguments, options)
        else:
            from metasched.client.pbs_directives import convert_pbs

            convert_pbs(arguments, options)
    return options


def _split(text: str, location: str) -> list[str]:
    import shlex

    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise DirectiveError(str(error).lower(), location, "close it") from None


def has_sbatch_lines(script: str) -> bool:
    return "#SBATCH" in dialect_lines(script)


def script_dialect(script: str) -> str:
    """Return the dialect of a script: `gridengine`, `pbs`, else `slurm`."""
    lines = dialect_lines(script)
    if "#SBATCH" in lines:
        return "slurm"
    return "gridengine" if GRID_ENGINE in lines else "pbs" if PBS in lines else "slurm"
