"""Account b works while account a attacks, and while a loads the bare manager equally."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec
import psutil

from tests.harness import accounts
from tests.harness.accounts import B
from tests.hostile import stream
from tests.hostile.attacks import Attack, Attacker, attacks_on
from tests.hostile.sites import HostileSite
from tests.hostile.stream import Stream

ROOT = str(Path(__file__).resolve().parents[2])
STARTS = 100  # of b in a large contest, in each attack and in each control
MAX_RATIO = 3.0  # of the median and of the worst delay to those of the control
PAUSE = 0.1  # seconds between two strikes
RANDOM = "all, in random order"


@dataclass(frozen=True)
class Phase:
    """A stream of b, and the strikes of a meanwhile."""

    stream: Stream
    strikes: int
    seconds: float

    @property
    def delays(self) -> list[float]:
        """Seconds from each submission to the start."""
        return [start.seconds for start in self.stream.starts if start.seconds is not None]

    @property
    def median(self) -> float:
        return statistics.median(self.delays or [float("inf")])

    @property
    def worst(self) -> float:
        return max(self.delays, default=float("inf"))

    @property
    def harm(self) -> list[str]:
        """Jobs that were lost or started twice, and requests that failed."""
        return [
            *(
                f"job {start.job} on {start.cluster}: {start.state}, {start.starts} starts"
                for start in self.stream.starts
                if (start.state, start.starts) != ("completed", 1)
            ),
            *(f"a request of b: {error}" for error in self.stream.errors),
        ]


@dataclass(frozen=True)
class Result:
    """An attack on a kind of site, compared with its control."""

    site_name: str
    attack: str
    seed: str
    attacked: Phase
    control: Phase
    harm: list[str]

    @property
    def ratios(self) -> tuple[float, float]:
        """How much longer the median and the worst start took."""
        attacked, control = self.attacked, self.control
        return attacked.median / control.median, attacked.worst / control.worst

    @property
    def exceeds(self) -> bool:
        """Whether the median or the worst start took too long."""
        return not all(ratio <= MAX_RATIO for ratio in self.ratios)  # NaN: nothing has started

    def __str__(self) -> str:
        attacked, control = self.attacked, self.control
        median, worst = self.ratios
        return (
            f"{self.site_name}, {self.attack}: {len(attacked.delays)} starts, "
            f"{attacked.strikes} strikes, "
            f"median {attacked.median:.2f} s against {control.median:.2f} s ({median:.2f}), "
            f"worst {attacked.worst:.2f} s against {control.worst:.2f} s ({worst:.2f})"
        )


def play(
    hostile: HostileSite,
    number: int,
    strikes: Iterator[Callable[[], None]],
    least: int,
    pause: Callable[[int, float], float],
) -> Phase:
    """Let b submit `number` jobs, and a strike until they have ended, `least` times at least.

    `pause` returns the seconds until the next strike, after a number of strikes and of seconds.
    """
    home = hostile.site.by(B).folder / B
    socket = hostile.site.state / "ms.sock"
    begun, struck = time.monotonic(), 0
    with subprocess.Popen(
        [
            *(sys.executable, "-m", stream.__name__, str(socket), str(home), str(number)),
            *hostile.clusters,
        ],
        env={"PYTHONPATH": ROOT, "PATH": "/usr/bin:/bin", "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        **accounts.as_(B),
    ) as process:
        try:
            while process.poll() is None or struck < least:
                next(strikes)()
                struck += 1
                time.sleep(pause(struck, time.monotonic() - begun))
            output, _ = process.communicate()
        finally:
            process.kill()
    seconds = time.monotonic() - begun
    return Phase(msgspec.json.decode(output, type=Stream), struck, seconds)


def contend(hostile: HostileSite, attack: Attack | None, seed: str, number: int) -> Result:
    """Let a attack, then load the bare manager as often; `attack` None: all, in random order."""
    draw = random.Random(seed)
    chosen = [attack] if attack is not None else list(attacks_on(hostile.site_name))
    draw.shuffle(chosen)
    endless = iter(lambda: draw.choice(chosen), None)
    order: list[Attack] = []

    def strikes(attacker: Attacker) -> Iterator[Callable[[], None]]:
        for drawn in chain(chosen, endless):  # each at least once
            order.append(drawn)
            yield lambda drawn=drawn: drawn.strike(attacker)  # type: ignore[misc]

    def loads(attacker: Attacker) -> Iterator[Callable[[], None]]:
        for drawn in chain(order, endless):
            yield lambda drawn=drawn: drawn.bare(attacker)  # type: ignore[misc]

    pid = hostile.site.pid
    attacked = _as_attacker(
        hostile, seed, lambda a: play(hostile, number, strikes(a), len(chosen), lambda *_: PAUSE)
    )
    pace = attacked.seconds / attacked.strikes  # seconds from strike to strike
    control = _as_attacker(
        hostile,
        seed,
        lambda a: play(
            hostile, number, loads(a), 0, lambda done, seconds: max(0.0, done * pace - seconds)
        ),
    )
    name = attack.name if attack is not None else RANDOM
    harm = [*attacked.harm, *control.harm]
    if not psutil.pid_exists(pid) or hostile.site.pid != pid:
        harm.append("the daemon has ended")
    return Result(hostile.site_name, name, seed, attacked, control, harm)


def _as_attacker(hostile: HostileSite, seed: str, part: Callable[[Attacker], Phase]) -> Phase:
    """Play a part of a contest; then end the jobs of a, and wait until every cluster is up."""
    attacker = Attacker(hostile, seed)
    try:
        return part(attacker)
    finally:
        attacker.undo()
        hostile.site.until(
            lambda: {row["state"] for row in hostile.site.cluster_rows()} == {"up"}, 120
        )
