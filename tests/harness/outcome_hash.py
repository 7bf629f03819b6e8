"""Hash of the outcomes of the core for recorded events: the same for all builds.

`python -m tests.harness.outcome_hash FILE` steps a fresh core through the events in a file, with
the metasched of that Python, and prints the path of its scheduler and the hash.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import sys
from pathlib import Path

import metasched.core.scheduler
from metasched.core.events import CoreEvent, Outcome
from metasched.laboratory.simulate.engine import Simulation
from metasched.laboratory.simulate.settings import read_settings, read_workload

# a build that types an amount as a float prints 6.0 where another prints 6: they are equal
WHOLE = re.compile(r"(?<=\d)\.0(?!\d)")


def events_of_run(
    workload: str, clusters: str | None, policy: str, settings: list[str]
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


def main() -> None:
    events = pickle.loads(Path(sys.argv[1]).read_bytes())
    digest = hashlib.sha256()
    for outcome in metasched.core.scheduler.replay(events):
        digest.update(WHOLE.sub("", repr(outcome)).encode())
    print(metasched.core.scheduler.__file__, digest.hexdigest())


if __name__ == "__main__":
    main()
