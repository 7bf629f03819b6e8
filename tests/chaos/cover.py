"""Check that every step that changes state has a crash point.

The steps are read from the source: each call that stores an event, each transaction and each call
to a worker. They are compared with the crash points that a recorded run passes.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import get_args, get_type_hints

import psutil

import metasched
from metasched.adapters.protocol import WorkerCall
from metasched.client.connection import ClientError
from metasched.core.events import CoreEvent
from metasched.core.transitions import FINAL
from tests.chaos.points import Orders, deaths_in, passed_in
from tests.chaos.round import settle
from tests.chaos.site import PATIENCE, ChaosSite
from tests.chaos.stream import JobKind, Stream, named

SOURCES = Path(metasched.__file__).parent
EVENTS = {event_type.__name__ for event_type in get_args(CoreEvent)}

# A step: substrings that must all occur in the name of the same crash point.
Step = tuple[str, ...]


def steps() -> set[Step]:
    """Return every step that changes state, read from the current source."""
    points: set[Step] = set()
    for source in (
        *sorted((SOURCES / "daemon").glob("*.py")),
        *sorted((SOURCES / "api").glob("*.py")),
    ):
        functions = dict(_functions(source))
        for name, function in functions.items():
            if any(_stores_events(node) for node in ast.walk(function)):
                points |= {
                    (f".{name} ", f"[{event_type}]", f"{moment} the commit")
                    for event_type in _events_of(name, functions)
                    for moment in ("before", "after")
                }
    for file in ("db/ledger.py", "db/pruning.py", "adapters/local/queue_store.py"):
        for name, function in _functions(SOURCES / file):
            if any(_is_transaction(node) for node in ast.walk(function)):
                points |= {(f".{name}", f"{moment} the commit") for moment in ("before", "after")}
    for call in get_args(get_type_hints(WorkerCall)["operation"]):
        points |= {
            (f"WorkerProcess.write_call({call})", moment)
            for moment in ("before the message", "after the message")
        }
        points |= {(f"{moment} AdapterHost.execute({call})",) for moment in ("before", "after")}
    points.add(("WorkerProcess._read_replies", "after the answer"))
    return points


def _events_of(name: str, functions: Mapping[str, ast.AST]) -> set[str]:
    """Return the events named by a function or by the methods that prepare them for it."""
    function, prefix = functions[name], name.rpartition(".")[0]
    nodes = list(ast.walk(function))
    for other, body in functions.items():
        method = other.removeprefix(f"{prefix}.")
        if method == "apply_events" or not any(_calls(node, method) for node in nodes):
            continue
        if not any(_stores_events(node) for node in ast.walk(body)):
            nodes += ast.walk(body)
    return {node.id for node in nodes if isinstance(node, ast.Name)} & EVENTS


def _functions(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """Yield the innermost functions of a module with their qualified names."""

    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                below = list(inside(child, f"{name}."))
                if not isinstance(child, ast.ClassDef) and not below:
                    yield name, child
                yield from below
            else:
                yield from inside(child, prefix)

    yield from inside(ast.parse(path.read_bytes()), "")


def _calls(node: ast.AST, name: str) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    return isinstance(called, ast.Attribute | ast.Name) and name == (
        called.attr if isinstance(called, ast.Attribute) else called.id
    )


def _stores_events(node: ast.AST) -> bool:
    """Return whether this call stores events: with the group, or alone at the start."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "ledger.record":
        return True
    return _calls(node, "apply_events")


def _is_transaction(node: ast.AST) -> bool:
    """Return whether this is a `with` statement of one of the transactions named here."""
    if not isinstance(node, ast.With):
        return False
    texts = {ast.unparse(item.context_expr) for item in node.items}
    transactions = {
        "self._db",
        "self._join_group()",
        "self._transaction()",
        "self._write_transaction()",
        "self._own_transaction()",
    }
    return bool(texts & {*transactions, "connection.begin()"})


def missed(steps: set[Step], points: set[str]) -> list[str]:
    """Return the steps that no crash point covers."""
    shown = [
        re.sub(r"add_to_group\(([\w+]*)\)", lambda m: _bracketed(m[1]), point) for point in points
    ]
    return sorted(
        " ".join(step) for step in steps if not any(all(p in t for p in step) for t in shown)
    )


def _bracketed(event_types: str) -> str:
    return "add_to_group" + "".join(f"[{event_type}]" for event_type in event_types.split("+"))


def _about(event_types: Iterable[str], calls: Iterable[str]) -> set[Step]:
    steps = ("write_call", "execute")
    return {
        *((f"[{event_type}]",) for event_type in event_types),
        *((f"{s}({c})",) for c in calls for s in steps),
    }


# Steps that a `local` cluster never passes, since it has neither accounting nor reservations. A
# site over Slurm passes them.
_OVER_SLURM = _about(
    (
        *(
            "ReservationRequested",
            "ReservationBound",
            "ReservationCancelled",
            "ReservationReleased",
        ),
        *("SurveyReceived", "AccountingReceived"),
    ),
    ("survey", "reserve", "unreserve", "accounting"),
)
# A manager rejects a reservation only if its nodes were taken between the survey and the request.
# The runs cannot force that; the tests of the reservation book cover it. No reservation breaks in
# these runs, and nobody asks for mail: tests/property/test_notifications.py and
# tests/e2e/test_mail.py let the daemon die between these steps.
_BY_CHANCE: set[Step] = {
    ("[ReservationRejected]",),
    # the sites have no calendar: tests/property/test_calendar.py and test_series.py kill it between
    # any two steps, tests/e2e a real daemon
    *((f".{name}",) for name in ("CalendarRunner.", "SeriesPlanner.", "make_series ")),
    (".cancel_series ",),
    (".LicenceMonitor.",),  # the site has no licence server: tests/e2e/test_licence_servers.py
    # the sites share nothing: tests/e2e/test_fair_share.py, and for the commit test_share_uses.py
    (".UseMonitor.",),
    # the sites have no slurmdbd: tests/real/test_slurm_accounting.py, and test_database_maintenance
    (".UsageCollector.",),
    *_about((), ("use", "shares", "usage")),
    *(
        (f".Ledger.{method}", f"{side} the commit")
        for method in (
            *("mark_notified", "store_usage", "queue_broken_reservations", "give_up_notices"),
            *("mark_sending", "mark_delivered", "mark_tried", "mark_uncertain", "_close_notice"),
            "queue_limit_mails",
            "open_session",  # the sites have no pages: tests/e2e/test_web.py
            # they have no candidate policy, whose rows decide nothing: tests/unit/test_shadow.py
            *("start_shadow", "stop_shadow", "add_shadow_decisions"),
            # nor do figures of licences decide: tests/unit/test_licence_history.py
            *("add_licence_samples", "_own_transaction"),
            "sum_period",  # nor do sums of past days: tests/property/test_period_use.py
        )
        for side in ("before", "after")
    ),
}


def steps_of_local() -> set[Step]:
    """The steps that a site with local clusters must pass."""
    return {step for step in steps() if not _among(step, _OVER_SLURM | _BY_CHANCE)}


def steps_of_slurm() -> set[Step]:
    """The steps that only a site with Slurm clusters can pass."""
    return {step for step in steps() if _among(step, _OVER_SLURM) and not _among(step, _BY_CHANCE)}


def _among(step: Step, patterns: set[Step]) -> bool:
    return any(all(part in " ".join(step) for part in pattern) for pattern in patterns)


def unusual(site: ChaosSite, stream: Stream) -> None:
    """Perform the rare actions of a stream, among them a refusal, a drain and a silent cluster."""
    deeds: tuple[Callable[[], object], ...] = (
        stream.refused,
        lambda: stream.submit(1, JobKind(begin=time.time() + 0.2)),
        lambda: site.client.change(
            "cancel", [str(id) for id in stream.submit(30, JobKind(cancelled=True, seconds=1.0))]
        ),
        stream.modify,
        stream.repeat,
        stream.depend,
        stream.requeue,
        stream.drain,
        stream.set_licence,
        lambda: site.client.revoke_token(site.client.create_token(60.0)["id"]),
        lambda: _reserve(site, stream),
        lambda: _silent(site, stream),
    )
    for deed in deeds:
        with contextlib.suppress(ClientError):
            deed()


def _reserve(site: ChaosSite, stream: Stream) -> None:
    """Reserve a processor for some seconds: a local cluster stores the window."""
    now = time.time()
    request = {
        "least": 1,
        "most": 1,
        "shortest": 2.0,
        "longest": 2.0,
        "ready": now + 1.0,
        "deadline": now + 60.0,
        "clusters": [stream.clusters[0]],
    }
    site.client.reserve(request)


def _silent(site: ChaosSite, stream: Stream) -> None:
    """Lock a cluster's folder from another process until the daemon reports the cluster down.

    A job that ends there meanwhile is unknown; its licences are released.
    """
    name = stream.clusters[0]
    [job] = stream.submit(1, JobKind(seconds=1.0, clusters=(name,), licences={"ansys": 1}))
    task = named(site.client.jobs([str(job)])[0])
    site.until(lambda: stream.began()[task], PATIENCE)
    with (site.clusters / name / "lock").open("a") as lock:
        until = time.monotonic() + PATIENCE
        while True:
            for worker in site.workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            assert time.monotonic() < until, f"somebody holds {lock.name}"
        while site.alive and time.monotonic() < until:
            stream.submit(3, JobKind(clusters=(name,)))
            [row] = site.client.jobs([str(job)])
            if not site.heard() and (stream.release_licences() or row["state"] in FINAL):
                return
            time.sleep(0.05)


def record(site: ChaosSite, stream: Stream) -> set[str]:
    """Return the crash points that a site passes: runs with and without worker deaths, `forget`."""
    needed = steps_of_local()
    site.begin()
    stream.start()
    until = time.monotonic() + PATIENCE
    while True:
        unusual(site, stream)
        death_count = len(deaths_in(site.chaos))
        site.order(Orders(seed=str(death_count), mean=20, roles=("worker",)))
        site.kill()
        site.launch()
        site.serving()
        site.until(partial(_lost, site, death_count + 2), PATIENCE)
        site.order(Orders())
        site.kill()
        site.begin()
        points = {point for _, point in passed_in(site.chaos)}
        remaining = [
            step for step in missed(needed, points) if ".QueueStore.delete_ended" not in step
        ]
        if not remaining:
            break
        assert time.monotonic() < until, f"steps that no crash point stands for: {remaining}"
    stream.stop()
    settle(site, stream)
    forget(site)
    return {point for _, point in passed_in(site.chaos)}


def _lost(site: ChaosSite, number: int) -> bool:
    return len(deaths_in(site.chaos)) >= number


def forget(site: ChaosSite) -> None:
    """Run the daemon with managers that forget ended jobs at once, until a deletion is recorded."""
    whole = site.config.read_text()
    site.config.write_text(whole.replace("kill_wait", "keep = 0\nkill_wait"))
    while not any("QueueStore.delete_ended" in point for _, point in passed_in(site.chaos)):
        site.launch()
        site.serving()
        site.until(site.heard, PATIENCE)
        site.end()
    site.config.write_text(whole)
