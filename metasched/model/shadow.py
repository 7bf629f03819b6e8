"""A candidate policy beside the policy in force: its start, and how its decisions differ. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from metasched.model.policy_version import text_digest


@dataclass(frozen=True, kw_only=True)
class Shadow:
    """A candidate. Texts but `text` are single lines of bounded length."""

    number: int  # from 1, in the order of their starts
    since: float  # epoch seconds
    by: str  # operator
    reason: str  # "": none was given
    file: str  # path where its author has it
    text: str  # contents of the file
    ended: float | None = None  # epoch seconds
    end_reason: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return text_digest(self.text)


class ShadowDecision(NamedTuple):
    """What both policies decided on a task that was dispatched."""

    time: float  # epoch seconds
    job: int
    task_index: int
    user_class: str
    deadline: bool  # whether the job has a deadline
    eligible: int  # clusters
    live_priority: int
    priority: int  # by the candidate
    live_cluster: str
    cluster: str | None  # by the candidate; None: not compared

    @property
    def differs(self) -> bool:
        """Whether the candidate gives another priority, or chooses another cluster."""
        moves = self.cluster is not None and self.eligible > 1 and self.cluster != self.live_cluster
        return moves or self.priority != self.live_priority


class ShadowGroup(NamedTuple):
    """A number of decisions that agree in all that is compared."""

    user_class: str
    deadline: bool
    had_choice: bool  # several clusters were eligible, and both choices are known
    change: int  # of the priority: -1 lower by the candidate, 0 the same, 1 higher
    live_cluster: str
    cluster: str | None
    tasks: int


@dataclass
class ShadowCounts:
    """Tasks, counted by what differs."""

    tasks: int = 0
    same_priority: int = 0
    higher_priority: int = 0  # by the candidate
    lower_priority: int = 0
    choices: int = 0  # tasks with several eligible clusters
    same_cluster: int = 0  # of `choices`
    differing: int = 0  # tasks with another priority or cluster

    def add(self, group: ShadowGroup) -> None:
        """Count the tasks of a group."""
        self.tasks += group.tasks
        if group.change == 0:
            self.same_priority += group.tasks
        elif group.change > 0:
            self.higher_priority += group.tasks
        else:
            self.lower_priority += group.tasks
        keeps_cluster = not group.had_choice or group.cluster == group.live_cluster
        if group.had_choice:
            self.choices += group.tasks
            if keeps_cluster:
                self.same_cluster += group.tasks
        if group.change != 0 or not keeps_cluster:
            self.differing += group.tasks


@dataclass
class ShadowComparison:
    """How the decisions of a candidate differ from those in force."""

    all: ShadowCounts = field(default_factory=ShadowCounts)
    with_deadline: ShadowCounts = field(default_factory=ShadowCounts)
    by_class: dict[str, ShadowCounts] = field(default_factory=dict)  # in alphabetical order
    # tasks by pair of different clusters: that in force, that of the candidate; most first
    moves: dict[tuple[str, str], int] = field(default_factory=dict)


def compare(groups: Iterable[ShadowGroup]) -> ShadowComparison:
    """Return the sums of groups."""
    comparison, moves = ShadowComparison(), dict[tuple[str, str], int]()
    by_class = dict[str, ShadowCounts]()
    for group in groups:
        comparison.all.add(group)
        by_class.setdefault(group.user_class, ShadowCounts()).add(group)
        if group.deadline:
            comparison.with_deadline.add(group)
        if group.had_choice and group.cluster is not None and group.cluster != group.live_cluster:
            pair = group.live_cluster, group.cluster
            moves[pair] = moves.get(pair, 0) + group.tasks
    comparison.by_class = dict(sorted(by_class.items()))
    comparison.moves = dict(sorted(moves.items(), key=lambda item: (-item[1], item[0])))
    return comparison
