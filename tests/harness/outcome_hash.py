"""What the core answers to the events of simulated runs, as one number: alike for all builds.

`python -m tests.harness.outcome_hash FILE` steps a fresh core through the events in a file, by
whichever metasched that Python has, and prints which it is and the hash.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import sys
from pathlib import Path

import metasched.core.scheduler
from metasched.core.events import CoreEvent
from metasched.simulate.engine import Simulation
from metasched.simulate.settings import read_settings, read_workload

# a build that knows an amount for a float says 6.0 where the other says 6: they are equal
WHOLE = re.compile(r"(?<=\d)\.0(?!\d)")


def recorded(
    workload: str, clusters: str | None, policy: str, settings: list[str]
) -> list[CoreEvent]:
    """The events of one run, by an engine that is not compiled."""
    events: list[CoreEvent] = []
    chosen = read_settings(policy, settings, 1)
    read, described = read_workload(workload, clusters, None, chosen)
    engine = Simulation(read, described, chosen.meta_policy, chosen.policy_factory())
    step = engine._step_core

    def heard(event: CoreEvent) -> None:
        events.append(event)
        step(event)

    engine._step_core = heard  # type: ignore[method-assign]
    engine.run()
    return events


def main() -> None:
    events = pickle.loads(Path(sys.argv[1]).read_bytes())
    found = hashlib.sha256()
    for outcome in metasched.core.scheduler.replay(events):
        found.update(WHOLE.sub("", repr(outcome)).encode())
    print(metasched.core.scheduler.__file__, found.hexdigest())


if __name__ == "__main__":
    main()
