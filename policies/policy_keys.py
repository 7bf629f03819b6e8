"""What each key of a policy file means: its unit, its source and its effect.

`POLICY_KEYS` is the only text about them. `metasched policy show --explain` prints it, `policy
diff` quotes it, and docs/policy.md repeats it, which a test compares. Ranges and defaults follow
from the tables of `config.tables` and from `Policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from metasched.policies.policy import MAX_HISTORY

OURS: Final = "metasched"  # `PolicyKey.source` of what no paper describes
PLUG_IN: Final = "NAME"  # stands for the entry point of a heuristic of the site
PARAMETER: Final = "PARAMETER"  # stands for a parameter that optimises itself, in names of keys


@dataclass(frozen=True, kw_only=True)
class PolicyKey:
    """A key as it is written in the file; of a table with free names, the value of each name."""

    unit: str  # "": it has none
    source: str  # paper and section, or `OURS`
    effect: str  # a sentence
    choices: Mapping[str, str] = field(default_factory=dict)  # effect of each word it may have
    range: str = ""  # where the table does not bound it: `SelfOptimisation` checks the value


POLICY_KEYS: Final[Mapping[str, PolicyKey]] = {
    "max_priority": PolicyKey(
        unit="priority",
        source="Pasquali 2008, §3.1.1",
        effect="Priorities are 1 to this, higher first.",
    ),
    "window": PolicyKey(
        unit="jobs",
        source="Pasquali 2008, §3.1.1",
        effect="A deadline is judged beside the mean margin of the last jobs that had one.",
    ),
    "weights.deadline": PolicyKey(
        unit="",
        source="Pasquali 2008, §3.1.1",
        effect="Weight of the deadline in the priority, the weighted mean of three ratings.",
    ),
    "weights.licence": PolicyKey(
        unit="",
        source="Pasquali 2008, §3.1.1",
        effect="Weight of the number of different licences in the priority.",
    ),
    "weights.user": PolicyKey(
        unit="",
        source="Pasquali 2008, §3.1.1",
        effect="Weight of the user's class, with `--urgency`, in the priority.",
    ),
    "classes.NAME": PolicyKey(
        unit="priority",
        source="Pasquali 2008, §3.1.1",
        effect="Rating of the jobs of a user class; `regular` is the class of all other users.",
    ),
    "load": PolicyKey(
        unit="",
        source="Pasquali 2008, §3.1.2",
        effect="How the load of a cluster is measured.",
        choices={
            "observed": "all work that the cluster owes, other users' jobs included",
            "paper": "metasched's own unstarted jobs alone",
            "forecast": "the expected wait of the job; where none is known, as observed",
        },
    ),
    "ordering": PolicyKey(
        unit="",
        source="Pasquali 2008, §3.1.2",
        effect="Which own jobs of a cluster count when a job is placed.",
        choices={
            "array": "those of the job's priority or above",
            "equal": "those of the job's priority only",
        },
    ),
    "tolerance": PolicyKey(
        unit="share of a load",
        source=OURS,
        effect="Loads that differ by no more count as equal; then the fewest jobs decide.",
    ),
    "pull": PolicyKey(
        unit="",
        source=OURS,
        effect="Whether a job that is pending moves to a cluster where it starts now.",
    ),
    "pull_after": PolicyKey(
        unit="seconds",
        source=OURS,
        effect="A job is pending for so long before it may move; doubled by each move.",
    ),
    "send": PolicyKey(
        unit="",
        source="Lifka 1995",
        effect="When jobs are dispatched.",
        choices={
            "at_once": "to a cluster's own queue, soon after the submission",
            "late": "once they can start; until then they wait in one queue in metasched",
        },
    ),
    "reserve": PolicyKey(
        unit="",
        source="Kurowski 2011, §4.4.2",
        effect="Which cluster gets a reservation.",
        choices={
            "earliest": "the one that can start it first, or has most of it",
            "first": "the first in the site's order that can keep it",
        },
    ),
    "patience": PolicyKey(
        unit="seconds",
        source=OURS,
        effect="A pending licence holder may be recalled after this time; doubled by each recall.",
    ),
    "age": PolicyKey(
        unit="seconds",
        source=OURS,
        effect="Time of waiting that is worth a step of priority; 0: priorities order no queue.",
    ),
    "default_time": PolicyKey(
        unit="seconds",
        source=OURS,
        effect="Run time that a job without a limit is expected to have.",
    ),
    "seed": PolicyKey(
        unit="",
        source=OURS,
        effect="Decides the draw between equal clusters.",
    ),
    f"self_optimising.{PARAMETER}.history": PolicyKey(
        unit="jobs",
        source="Pasquali 2008, §5.1",
        effect="Number of last jobs whose priorities are compared with the target.",
        range=f"10 to {MAX_HISTORY}",
    ),
    f"self_optimising.{PARAMETER}.delta": PolicyKey(
        unit="distance",
        source="Pasquali 2008, §5.1",
        effect="Distance from the target up to which nothing changes.",
        range="above 0, at most 2",
    ),
    f"self_optimising.{PARAMETER}.norm": PolicyKey(
        unit="",
        source="Pasquali 2008, §5.1",
        effect="How the distance is measured.",
        choices={
            "l1": "the sum of the differences of shares",
            "l2": "the Euclidean distance",
        },
    ),
    f"self_optimising.{PARAMETER}.target": PolicyKey(
        unit="shares",
        source="Pasquali 2008, §5.1",
        effect="Relative numbers of jobs of priorities 1, 2, ...; none: each half of that below.",
        range="0 to 1000000 each",
    ),
    **{
        f"{table}.{PLUG_IN}.weight": PolicyKey(unit="", source=OURS, effect=effect)
        for table, effect in (
            ("heuristics", "Weight of a heuristic of the site in the priority."),
            ("placement", "Weight of a heuristic of the site that rates clusters; the load has 1."),
            ("run_times", "Weight of an estimator of the site in the run time of limited jobs."),
        )
    },
    **{
        f"{table}.{PLUG_IN}.parameters.{PARAMETER}": PolicyKey(
            unit="", source=OURS, effect=f"A parameter of {whose}: a keyword of its class."
        )
        for table, whose in (
            ("heuristics", "this heuristic"),
            ("placement", "this heuristic"),
            ("run_times", "this estimator"),
        )
    },
}
