"""Fixtures of all tests: optional components, real clusters, real databases."""

from __future__ import annotations

import os
import signal
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, Phase, settings
from sqlalchemy.engine import make_url

from metasched.db.sqlite import Sqlite
from metasched.db.store import Database
from tests.harness import gridengine, postgresql, slurm
from tests.harness.databases import database_from_url

# Time never decides whether a test passes. The same code is tested with the same examples, so that
# a failure is due to the last change; `make chaos` looks for new examples by the profile `explore`.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", PATIENT, derandomize=True, database=None)
settings.register_profile("explore", PATIENT, max_examples=1000, print_blob=True)
settings.register_profile("check", settings.get_profile("fixed"), max_examples=20)
# for the mutants: new examples for each seed, and the first failure as it was drawn
settings.register_profile(
    "trial",
    PATIENT,
    max_examples=50,  # half of those of `fixed`; other seeds follow
    derandomize=False,
    database=None,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("fixed")

# A shell's background job ignores these signals, and so would every command of a test.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

CRASHED = pytest.StashKey[bool]()  # whether a process of this run has crashed
SLOW = 10.0  # seconds of a test above which a mark says why


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail the collection of a slow mark without a reason."""
    report = yield
    for item in report.result or ():
        if isinstance(item, pytest.Item):
            for mark in item.iter_markers("slow"):
                if len(mark.args) != 1 or mark.args[0] == "" or mark.kwargs:
                    report.outcome = "failed"
                    report.longrepr = (
                        f"a slow mark without a reason, {item.nodeid}; "
                        'write @pytest.mark.slow("the reason")'
                    )
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have the most slow tests, so that none of them is the last."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_handlecrashitem(sched: Any) -> None:
    """Note that a process of the tests has crashed: `--last-failed` knows nothing of its test."""
    sched.config.stash[CRASHED] = True


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Exit as after an internal error if a process has crashed, so that tests/run repeats none."""
    if session.config.stash.get(CRASHED, False):
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List slow tests without a mark. They pass: time also depends on the load of the host."""
    unmarked = [
        f"{report.duration:7.1f} s  {report.nodeid}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
        and report.when == "call"
        and report.duration > SLOW
        and "slow" not in report.keywords
    ]
    if unmarked:
        terminalreporter.section(f"above {SLOW:g} s without a slow mark")
        terminalreporter.write("".join(f"{line}\n" for line in sorted(unmarked, reverse=True)))


def require(component: str, reason: str) -> NoReturn:
    """Skip a test whose component is missing; fail it if METASCHED_REQUIRE names the component."""
    required = os.environ.get("METASCHED_REQUIRE", "").replace(",", " ").split()
    if component in required:
        pytest.fail(f"METASCHED_REQUIRE names {component}, but: {reason}", pytrace=False)
    pytest.skip(f"needs {component}: {reason}")


@pytest.fixture(scope="session")
def common_folder() -> Iterator[Path]:
    """A folder that every account can enter: pytest's own folders are closed to other accounts."""
    with tempfile.TemporaryDirectory(prefix="metasched-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


@pytest.fixture(scope="session")
def slurm_site(common_folder: Path) -> Iterator[slurm.SlurmSite]:
    """Real Slurm clusters alpha (4 nodes of 16 processors) and beta (3 of 8), for all tests."""
    with _slurm_site(common_folder / "slurm") as site:
        yield site


@pytest.fixture(scope="module")
def slurm_site_for_faults(
    common_folder: Path, request: pytest.FixtureRequest
) -> Iterator[slurm.SlurmSite]:
    """Clusters like those of `slurm_site`, for a module that makes controllers lose state.

    A controller uses lost ids again. If a node still has the folder of the first job with an id,
    it cancels the second job unstarted. That must not affect the tests of other modules.
    """
    with _slurm_site(common_folder / request.module.__name__.rpartition(".")[2]) as site:
        yield site


@contextmanager
def _slurm_site(folder: Path) -> Iterator[slurm.SlurmSite]:
    if (reason := slurm.missing()) is not None:
        require("slurm", reason)
    with slurm.SlurmSite(folder) as site:
        yield site


@pytest.fixture(scope="session")
def gridengine_cell(common_folder: Path) -> Iterator[gridengine.Cell]:
    """A real Grid Engine cell of one host with 8 slots, in a network namespace, for all tests."""
    reason = gridengine.missing()
    if reason is not None:
        require("gridengine", reason)
    with gridengine.Cell(common_folder / "gridengine") as cell:
        yield cell


@pytest.fixture(scope="session")
def postgresql_server(common_folder: Path) -> Iterator[postgresql.Server]:
    """A real PostgreSQL server for all tests; each test creates its own databases."""
    reason = postgresql.missing()
    if reason is not None:
        require("postgresql", reason)
    with postgresql.Server(common_folder / "pg") as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty database, SQLite or PostgreSQL."""
    if request.param == "sqlite":
        return database_from_url("sqlite:///ms.db", tmp_path)
    server: postgresql.Server = request.getfixturevalue("postgresql_server")
    return database_from_url(server.create(), tmp_path)


@pytest.fixture
def alter(database: Database, request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return a function that runs a statement on the database without foreign key checks."""

    def altered(statement: str) -> None:
        if isinstance(database, Sqlite):
            with closing(sqlite3.connect(database.path)) as other, other:
                other.execute(statement)
        else:
            server: postgresql.Server = request.getfixturevalue("postgresql_server")
            unchecked = f"SET session_replication_role = replica; {statement}"
            server.sql(unchecked, str(make_url(str(database)).database))

    return altered
