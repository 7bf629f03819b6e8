"""Bounds of the texts and lists of a request. They are checked before any work per item.

None refuses what sbatch takes: the kernel passes no longer argument or variable to a program, and
slurmctld takes no larger script by default.
"""

from __future__ import annotations

from typing import Final

MAX_JOBS: Final = 20_000  # of a submission
MAX_SUBMITTED_TERMS: Final = 20_000  # of dependencies of all jobs of a submission
MAX_SCRIPT: Final = 4 << 20  # bytes of a script, and of all variables of an environment
MAX_WORD: Final = 131_072  # characters of an argument, a variable, or a list of tasks
MAX_ARGUMENTS: Final = 10_000  # of a script, as in the launcher
MAX_VARIABLES: Final = 20_000  # of an environment
MAX_OPTION_TEXT: Final = 32_768  # characters of all options of a job together
MAX_COMMENT: Final = 1_024  # characters
MAX_NAME: Final = 256  # characters of a name of anything that a request refers to
MAX_NAMES: Final = 1_000  # in a list of them
MAX_REASON: Final = 65_536  # characters of the reason of an act, of which the first are stored
MAX_SELECTORS: Final = 100_000  # jobs and tasks that a request may name
