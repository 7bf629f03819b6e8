"""Checks for authors of plug-ins: range, determinism, no clock, no I/O, speed.

In a test of pytest, `check_heuristic(MyHeuristic, full=64)`; on the command line,
`metasched policy check-plugin NAME`. Both ask it about `SAMPLE_JOBS`.
"""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from metasched.model.job import Job
from metasched.policies.heuristic import ClusterTraits
from metasched.policies.plug_in_ratings import INTERFACES, PlugIn, PlugInKind, Rating, ask

MAX_CPU_SECONDS: Final = 0.01  # per job, in the fastest of `SPEED_ROUNDS`
SPEED_ROUNDS: Final = 3
MAX_PROBLEMS: Final = 20  # that are listed
_NAMES: Final = ("", "wing", "Fl\N{LATIN SMALL LETTER U WITH DIAERESIS}gel %j; rm -rf", "x" * 255)
SAMPLE_JOBS: Final[tuple[Job, ...]] = tuple(
    Job(
        id=0,  # as at a submission
        submitted=1.7e9 + number,
        estimated=limit or 3600.0,
        time_limit=limit,
        deadline=None if margin is None else 1.7e9 + number + (limit or 3600.0) + margin,
        cpus=cpus,
        tasks=cpus if number % 2 else 1,
        name=_NAMES[number % len(_NAMES)],
        user=("ada", "ben")[number % 2],
        user_class=("regular", "gold", "unknown")[number % 3],
        owner_priority=number % 4,
        licences={"matlab": 1} if number % 3 == 0 else {},
        gres={"gpu": 2} if number % 5 == 0 else {},
        account="aero" if number % 2 else None,
        memory=4096 if number % 4 == 0 else None,
    )
    for number, (cpus, limit, margin) in enumerate(
        (cpus, limit, margin)
        for cpus in (1, 7, 100_000)
        for limit in (None, 1.0, 86400.0, 3.0e7)
        for margin in (None, -60.0, 0.0, 3600.0)
    )
)
SAMPLE_CLUSTERS: Final = (
    ClusterTraits("left", "slurm", 1.0, 128),
    ClusterTraits("right", "drmaa", 2.5, 1),
    ClusterTraits("unreported", "local", 0.1, 0),
)
# events of the interpreter's audit that are input or output
_IO: Final = ("open", "os.", "shutil.", "socket.", "sqlite3.", "subprocess.", "tempfile.", "urllib")
_CLOCKS: Final = (
    *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),
    *("process_time", "process_time_ns", "localtime", "gmtime", "ctime", "strftime", "sleep"),
)


class _Audit:
    """Acts of a plug-in while it is asked. A single instance: no audit hook can be removed."""

    def __init__(self) -> None:
        self.acts: list[str] = []
        self.watching = self._installed = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        if not self._installed:
            sys.addaudithook(self._note)
            self._installed = True
        self.acts, self.watching = [], True
        try:
            yield
        finally:
            self.watching = False

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching or not event.startswith(_IO):
            return
        self.watching = False
        try:
            if not _is_importing(sys._getframe()):
                subject = f" {arguments[0]!r}" if event == "open" else ""
                self.acts.append(f"{event}{subject}")
        finally:
            self.watching = True


_audit = _Audit()


def check_heuristic(
    heuristic: type, jobs: Sequence[Job] = SAMPLE_JOBS, **parameters: float
) -> None:
    """Raise AssertionError with a line for each rule that a plug-in breaks.

    `heuristic` is a class derived from `Heuristic`, `PlacementHeuristic` or `RunTimeEstimator`;
    `parameters` are its keywords, as in the policy file. TypeError for another class.
    """
    kinds = (kind for kind, interface in INTERFACES.items() if issubclass(heuristic, interface))
    kind = next(kinds, None)
    if kind is None:
        names = ", ".join(interface.__name__ for interface in INTERFACES.values())
        raise TypeError(f"{heuristic.__name__} is derived from none of {names}")
    plug_in = PlugIn(kind, heuristic.__name__, 10, tuple(parameters.items()))
    problems = problems_of(plug_in, lambda: heuristic(**parameters), jobs)
    if problems:
        raise AssertionError("\n".join(problems))


def problems_of(
    plug_in: PlugIn, create: Callable[[], Any], jobs: Sequence[Job] = SAMPLE_JOBS
) -> list[str]:
    """Return a line for each rule that a plug-in breaks."""
    first, second = create(), create()
    if plug_in.kind is PlugInKind.PRIORITY:
        first.max_priority = second.max_priority = plug_in.max_priority
    clocks: list[str] = []
    with _watched_clocks(type(first), clocks), _audit.watch():
        ratings = _ask_all(plug_in, first, jobs)
        again = _ask_all(plug_in, first, jobs)
        backwards = _ask_all(plug_in, second, jobs[::-1])[::-1]
        acts = list(_audit.acts)
    problems = list(dict.fromkeys(f"range: {rating.error}" for rating in ratings if rating.error))
    if ratings != again:
        problems.append("determinism: asked twice about a job, it gives two values")
    elif ratings != backwards:
        problems.append("determinism: its values depend on jobs that it was asked about before")
    problems += dict.fromkeys(f"no clock: it calls {clock}" for clock in clocks)
    problems += dict.fromkeys(f"no I/O: it does {act}" for act in acts)
    seconds = min(_cpu_seconds(plug_in, first, jobs) for _ in range(SPEED_ROUNDS))
    if seconds > MAX_CPU_SECONDS:
        problems.append(
            f"speed: {1000 * seconds:.3g} ms of processor time for a job, "
            f"at most {1000 * MAX_CPU_SECONDS:g} ms"
        )
    return problems[:MAX_PROBLEMS]


def _ask_all(plug_in: PlugIn, instance: Any, jobs: Sequence[Job]) -> list[Rating]:
    return [ask(plug_in, instance, job, SAMPLE_CLUSTERS) for job in jobs]


def _cpu_seconds(plug_in: PlugIn, instance: Any, jobs: Sequence[Job]) -> float:
    begun = time.process_time()
    _ask_all(plug_in, instance, jobs)
    return (time.process_time() - begun) / max(len(jobs), 1)


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether a module is imported for the first time: that is no act of the plug-in."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("importlib._bootstrap"):
            return True
        frame = frame.f_back
    return False


@contextmanager
def _watched_clocks(plug_in_class: type, called: list[str]) -> Iterator[None]:
    """Note calls of clocks: of module `time`, and of names that the plug-in's module imported."""

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            called.append(name)
            return original(*arguments)

        return call

    class WatchedDatetime(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            called.append("datetime.now")
            return _DATETIME.now(tz)

        @classmethod
        def today(cls) -> Any:
            called.append("datetime.today")
            return _DATETIME.today()

        @classmethod
        def utcnow(cls) -> Any:
            called.append("datetime.utcnow")
            return _DATETIME.now(datetime.UTC).replace(tzinfo=None)

    substitutes: dict[Any, Any] = {
        getattr(time, name): watched(f"time.{name}", getattr(time, name)) for name in _CLOCKS
    }
    substitutes[_DATETIME] = WatchedDatetime
    own_module = vars(sys.modules[plug_in_class.__module__])
    changed: list[tuple[dict[str, Any], str, Any]] = []
    for namespace in (vars(time), vars(datetime), own_module):
        for name, value in list(namespace.items()):
            if _is_substituted(value, substitutes):
                changed.append((namespace, name, value))
                namespace[name] = substitutes[value]
    try:
        yield
    finally:
        for namespace, name, value in changed:
            namespace[name] = value


_DATETIME: Final = datetime.datetime


def _is_substituted(value: object, substitutes: Mapping[Any, Any]) -> bool:
    try:
        return value in substitutes
    except Exception:  # a value that has no hash, or a defect in it
        return False
