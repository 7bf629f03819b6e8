"""Figures of benchmarks: the record, its file, and the page that is rendered from it.

`python -m tests.bench.figures` writes docs/benchmarks.md from docs/benchmarks.json. Benchmarks
write that file through the fixture `record`; METASCHED_BENCH names another file.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from metasched.version import COMMIT

ROOT = Path(__file__).parents[2]
FILE = Path(os.environ.get("METASCHED_BENCH", ROOT / "docs/benchmarks.json"))
PAGE = ROOT / "docs/benchmarks.md"
MEASURED = ("metasched", "adapters", "policies", "db")  # folders whose code affects the figures
# file of tests/bench: title, and notes that its figures need
SECTIONS = {
    "test_daemon": (
        "Daemon",
        "Each submission of a single client is a whole call. metasched opens a connection, "
        "`sbatch` starts a process.",
    ),
    "test_clusters": (
        "Many clusters",
        "Local clusters, whose workers share the processors with the daemon.",
    ),
    "test_expected_starts": (
        "Expected starts",
        "110 jobs of 2 to 16 processors on two Slurm clusters of 64 and 24, of which 30 are of "
        "others. Run times are 8% to 83% of their limits of a minute.",
    ),
    "test_policy_try": (
        "Trying a policy",
        "`metasched policy try` on jobs of KTH-SP2 and SDSC-SP2, as a daemon would have recorded "
        "them: both policies, their comparison and the replay of all events.",
    ),
    "test_requests": (
        "Requests",
        "Processor time of the daemon without its workers. At commit 8a6966f a single submission "
        "took 4.5 to 5.6 ms.",
    ),
    "test_scrapes": (
        "Metrics",
        "Processor time of the daemon for a scrape; one of its three clusters is away.",
    ),
    "test_events": (
        "Events",
        "A month with a million records of the audit, one for each job. A page has 1,000 of them.",
    ),
    "test_reports": (
        "Reports",
        "A month with a million ended jobs of 300 users in 10 accounts, on 3 clusters. The peer "
        "reads the jobs: one SQL statement sums up their time by user, without their processors.",
    ),
    "test_web": (
        "Pages for browsers",
        "Processor time of the daemon for a page, with 10,000 tasks that wait and a million stored "
        "jobs. Peers: the same page with a thousand, and plain calls of the API.",
    ),
    "test_drop_in": (
        "Commands",
        "The lower quartile of 40 calls, median of three rounds. All commands share the processors "
        "with the daemon.",
    ),
    "test_recovery": ("Recovery", "From SIGKILL of a daemon with 10,000 and 50,000 open jobs."),
    "test_dispatch": ("Placement", "A decision of `LoadOrdering` among 50 clusters."),
    "test_queue_places": (
        "Refills of queues",
        "20 tasks start at each listing, tasks of four kinds of each user wait for their places.",
    ),
    "test_local": ("Local clusters", ""),
    "test_slurm_dispatch": (
        "Slurm: dispatch",
        "1,000 jobs to two full clusters. The peer is a bare loop of the same calls. Both run in "
        "turn, and the ratio is that of neighbours, since such a loop swings by a factor of three.",
    ),
    "test_federation": (
        "Slurm: a federation",
        "Two clusters of 16 processors, as a Slurm federation and under metasched, by loops of "
        "`sbatch`. The nodes of the origin have less memory.",
    ),
    "test_slurm": (
        "Slurm: polls",
        "A whole poll with 20,000 jobs and no news, without slurmctld's own part.",
    ),
    "test_licences": (
        "Licences",
        "A lease decision: a lease ends and waiting tasks that fit are leased; another task joins "
        "the queue. 200 licences, 10,000 waiting tasks.",
    ),
    "test_licence_line": (
        "Order of the licence queue",
        "One licence of 4 tokens, simulated. The peer is the order of arrival. A decision among "
        "200 licences has a peer that checks every waiting task.",
    ),
    "test_licence_sharing": (
        "Shared licences",
        "Two Slurm clusters and a Grid Engine cell share 4 tokens. 24 jobs of 10 s need 1, 2 or 3. "
        "The rest is the second from the end of a job until the next one starts.",
    ),
    "test_reservations": (
        "Reservations",
        "30 reservations with jobs among 200 batch jobs, two Slurm clusters and a Grid Engine "
        "cell. A node is drained, a controller and the daemon are killed, one reservation is "
        "cancelled. Nodes are reserved on one Slurm cluster, processors on the other.",
    ),
    "test_databases": (
        "SQLite and PostgreSQL",
        "The ledger with core and disk, in turn in one run. PostgreSQL runs on the same host over "
        "a unix socket, with fsync.",
    ),
    "test_pruning": (
        "Pruning",
        "A million ended jobs in SQLite, each with three events and six changes. PostgreSQL runs "
        "on the same host with fsync; a job should cost the same at both sizes.",
    ),
    "test_arrays": ("Arrays", "Arrays of 10,000 tasks on two local clusters, one round."),
    "test_simulate": (
        "The simulator",
        "Whole commands, in pure Python and [compiled](admin/install.md#compiled). jobs/s is the "
        "rate inside by the clock, without start and reading.",
    ),
    "test_local_policies": (
        "Local policies",
        "Simulations of 2,000 jobs of real traces at a load of .9, with licences and deadlines "
        "([local-policies](experiments/tables.md#local-policies)).",
    ),
    "test_plans": (
        "Plans",
        "Tabu Search and RCBO over a plan on 150 machines, jobs and machines by Pasquali 2008, "
        "Table 13.",
    ),
    "test_convergent": (
        "Convergent Scheduling",
        "Plans with their job x machine matrix, 150 machines and 20 licences (Pasquali 2008, Table "
        "4), in processor time. The peers solve the same matrix or knapsack in the same run.",
    ),
    "test_carts": (
        "CARTS: slots of advance reservations",
        "128 processors, 60% booked. The peers hold the same slots in the same run and give the "
        "same answers. `mixed`: 1 to 64 processors (log-normal), 50 minutes in the median, at most "
        "two days. `short`: 1 to 16 processors for 5 to 60 minutes, so that 96 processors are "
        "hardly ever free for an hour. At 1,000,000 a pattern of 10,000 is repeated.",
    ),
}
HEADER = """\
# Benchmarks

`make bench` measures and writes this page. `make bench BENCH_ARGS="-m cpu"` takes the part alone
that is bound by the processor. A ratio is our figure over the peer's: for times lower is better,
for rates higher. Seconds of CPU hardly depend on other load. Other times and rates swing by a
factor of two between runs on a shared machine; ratios of one run swing less.
"""


class Conditions(msgspec.Struct, frozen=True):
    """The circumstances of a run."""

    date: str  # ISO, UTC
    commit: str  # of the checkout; with "+" if measured code was changed
    python: str  # release
    machine: str  # architecture and number of processors
    load: float | None  # mean number of runnable processes in the minute before; None: unknown


class Figure(msgspec.Struct, frozen=True):
    """A measured figure."""

    test: str  # file::function[parameters] below tests/bench
    name: str
    figure: float
    unit: str
    peers: dict[str, float]  # figures of other programs or settings in the same run, by name
    target: str  # empty: none
    conditions: Conditions

    @property
    def section(self) -> str:
        return self.test.partition(".py")[0]


def current_conditions() -> Conditions:
    """Describe this machine and checkout."""
    command = ["git", "-C", str(ROOT), "status", "--porcelain", "--", *MEASURED]
    changes = subprocess.run(command, capture_output=True, check=False).stdout
    return Conditions(
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        commit=(COMMIT or "unknown") + ("+" if changes else ""),
        python=platform.python_version(),
        machine=f"{platform.machine()}, {len(os.sched_getaffinity(0))} processors",
        load=round(os.getloadavg()[0], 1),
    )


def read_figures(path: Path) -> list[Figure]:
    """Read the figures of a file; raise msgspec.ValidationError if it holds anything else."""
    return msgspec.json.decode(path.read_bytes(), type=list[Figure]) if path.exists() else []


def store_figures(path: Path, test: str, figures: Sequence[Figure]) -> None:
    """Replace the figures of a test in the file; keep those of all others."""
    order = list(SECTIONS)
    other_figures = [figure for figure in read_figures(path) if figure.test != test]
    merged = sorted([*other_figures, *figures], key=lambda figure: order.index(figure.section))
    text = msgspec.json.format(msgspec.json.encode(merged), indent=1)
    path.write_bytes(text + b"\n")


def format_figure(figure: float, unit: str) -> str:
    """Write a figure with three digits, and its unit."""
    number = f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"
    return f"{number}{unit}" if unit.startswith(("/", "%")) else f"{number} {unit}"


def render(figures: Sequence[Figure]) -> str:
    """Return the page: a section per file of tests/bench, a table row per figure."""
    parts = [HEADER]
    for section, (title, about) in SECTIONS.items():
        if rows := [figure for figure in figures if figure.section == section]:
            paragraphs = [f"## {title}", *([about] if about else []), "\n".join(_table(rows))]
            parts.append("\n\n".join([*paragraphs, _circumstances(rows)]) + "\n")
    return "\n".join(parts)


def _table(rows: Sequence[Figure]) -> Iterator[str]:
    peers = list(dict.fromkeys(name for row in rows for name in row.peers))
    has_target = any(row.target for row in rows)
    titles = ["figure", *(title for peer in peers for title in (peer, "ratio"))]
    yield "| " + " | ".join(["what", *titles, *(["target"] if has_target else [])]) + " |"
    yield "|---|" + "--:|" * (len(titles) + has_target)
    for row in rows:
        cells = [row.name, format_figure(row.figure, row.unit)]
        for peer in peers:
            cells += _peer_cells(row.figure, row.peers, peer, row.unit)
        yield "| " + " | ".join(cells + ([row.target] if has_target else [])) + " |"


def _peer_cells(figure: float, peers: Mapping[str, float], peer: str, unit: str) -> list[str]:
    if peer not in peers:
        return ["", ""]
    ratio = f"{figure / peers[peer]:.2g}" if peers[peer] else ""
    return [format_figure(peers[peer], unit.removesuffix(" of CPU")), ratio]


def _circumstances(rows: Sequence[Figure]) -> str:
    """Return the sentence on when, where and with which code a section was measured."""
    runs = [row.conditions for row in rows]
    loads = sorted({run.load for run in runs if run.load is not None})
    load = " to ".join(f"{load:g}" for load in dict.fromkeys((*loads[:1], *loads[-1:])))
    load = f", load {load}" if load else ""
    places = ", ".join(dict.fromkeys(f"{run.date} at {run.commit}" for run in runs))
    machines = ", ".join(dict.fromkeys(f"Python {run.python}, {run.machine}" for run in runs))
    return f"Measured on {places} ({machines}{load})."


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(read_figures(FILE)))


if __name__ == "__main__":
    main()
