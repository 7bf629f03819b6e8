"""The golden lives: drawn by seed from the rules of property tests, and simulated workloads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from metasched.core.array_remainder import REMAINDER_MINIMUM
from metasched.core.events import CoreEvent, Outcome
from metasched.laboratory.simulate.engine import Simulation
from metasched.laboratory.simulate.settings import read_settings, read_workload
from tests.harness.lives import Life, Step
from tests.property.seeded_lives import draw_life

SEEDS: Final = range(200)
# workload, clusters, policy of the simulated managers, settings; no workload is of a third party
SIMULATIONS: Final[tuple[tuple[str, str | None, str, tuple[str, ...]], ...]] = (
    ("table1", None, "fb-unmod", ()),
    ("table6", None, "fb-mod", ("jobs=400", "inter_arrival=5")),
    ("lublin", "64,32,32", "easy", ("jobs=1500", "load=observed")),
    ("lublin", "4x40", "conservative", ("jobs=700", "load=paper")),
    ("lublin", "64,64", "fair-share", ("jobs=1000", "send=late")),
)


def draw_lives() -> Iterator[Life]:
    """Draw all golden lives. The engine of the simulations must not be compiled."""
    for seed in SEEDS:
        yield draw_life(seed)
    for workload, clusters, policy, settings in SIMULATIONS:
        events = _events_of_simulation(workload, clusters, policy, settings)
        yield Life(
            name=" ".join(("simulation", workload, policy, *settings)),
            remainder_minimum=REMAINDER_MINIMUM,
            steps=[Step.of(event) for event in events],
        )


def _events_of_simulation(
    workload: str, clusters: str | None, policy: str, settings: tuple[str, ...]
) -> list[CoreEvent]:
    """Simulate with an engine that is not compiled; return the events that its core received."""
    events: list[CoreEvent] = []
    parsed = read_settings(policy, settings, 1)
    jobs, simulated = read_workload(workload, clusters, None, parsed)
    engine = Simulation(jobs, simulated, parsed.meta_policy, parsed.policy_factory())
    step = engine._step_core

    def record_and_step(event: CoreEvent) -> Outcome:
        events.append(event)
        return step(event)

    engine._step_core = record_and_step  # type: ignore[method-assign]
    engine.run()
    return events
