"""Groups of ineligible tasks change no decision: a core that examines every task decides alike."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
from msgspec import structs

from metasched.core.events import CoreEvent, DaemonStarted, Outcome
from metasched.core.scheduler import Core
from metasched.core.task_groups import QueuesOfGroups
from metasched.core.tasks import Task
from metasched.policies.policy import Policy
from tests.harness.examples import examples
from tests.property.core_rules import Deeds


def without_groups(core: Core) -> Core:
    """Return the core, changed to examine each task of a group after any change of a limit.

    What waits for licences is not examined then, as in the core: it would leave their queue, and
    lose its turn there, while no cluster has room.
    """
    gates, placement = core._gates, core._placement
    take_candidates = gates.take_candidates

    def take_all() -> tuple[list[Task], QueuesOfGroups]:
        ineligible = gates.ineligible
        if not (ineligible._rechecks or core.state.refills):
            return take_candidates()
        take_rechecked = ineligible.take_rechecked
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ineligible, "take_rechecked", lambda every: take_rechecked(every=True))
            return take_candidates()

    gates.take_candidates = take_all  # type: ignore[method-assign]
    placement._group_key = lambda task: task.task_id  # type: ignore[method-assign]
    return core


class Compared(Deeds):
    """Each event goes to a core with groups and to a core without."""

    def begin(self, policy: Policy, fences: Sequence[str]) -> None:
        super().begin(policy, fences)
        self.plain = without_groups(self.new_core())

    def restored(self) -> Core:
        self.plain = without_groups(super().restored())
        return super().restored()

    def booted(self, max_priority: int = 10) -> DaemonStarted:
        """Let few tasks be on the way to a manager, and wait there."""
        event = super().booted(max_priority)
        clusters = [
            structs.replace(cluster, max_unanswered=3, queue_depth=4) for cluster in event.clusters
        ]
        return structs.replace(event, clusters=tuple(clusters))

    def decide(self, event: CoreEvent) -> Outcome:
        outcome, expected = super().decide(event), self.plain.step(event)
        assert outcome.actions == expected.actions
        assert outcome.leases == expected.leases
        states = {key: (task.state, task.attempts) for key, task in self.core.tasks.items()}
        assert states == {
            key: (task.state, task.attempts) for key, task in self.plain.tasks.items()
        }
        share_turns(self.core, self.plain)
        return outcome


def share_turns(core: Core, plain: Core) -> None:
    """Give a core without groups the turns that users have had in a core with groups.

    Turns count only while several users compete. A core that examines all tasks also finds users
    there whose tasks no cluster takes. No turn is stored.
    """
    turns, copied = core._gates.dispatch_turns, copy.copy(core._gates.dispatch_turns)
    plain_turns = plain._gates.dispatch_turns
    copied._shares = plain_turns._shares
    for name in ("_next_turns", "_clocks", "_served_at", "_last_turns"):
        setattr(copied, name, dict(getattr(turns, name)))
    vars(plain_turns).update(vars(copied))


TestCompared = pytest.mark.slow("a hundred lives, each in two cores")(Compared.TestCase)
TestCompared.settings = examples(100, steps=40)
