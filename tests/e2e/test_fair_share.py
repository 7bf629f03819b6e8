"""Fair share over two Slurm clusters: whose tasks start, what use without metasched changes.

Then reports of all these jobs agree with sacct.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.conftest import require
from tests.e2e.fair_share import ESTIMATE, QUEUE_DEPTH, WEIGHTS, SharedSite, shared_site
from tests.harness.accounts import KEEPER, A, B
from tests.harness.slurm import accounting_missing, missing

pytestmark = pytest.mark.root

STARTS = 60
AUDITED = "audited"  # an account of jobs that are compared with sacct
# a test at midnight, or on the last day of a month, sees jobs of both days
PERIOD = ("--since", "2d", "--until", (date.today() + timedelta(days=1)).isoformat())


@pytest.fixture(scope="module")
def shared(common_folder: Path) -> Iterator[SharedSite]:
    if (reason := missing() or accounting_missing()) is not None:
        require("slurm", reason)
    with shared_site(common_folder / "fair-share") as running:
        yield running


@pytest.mark.slow("boots clusters with slurmdbd, which tells of 200 processor-seconds after 20 s")
def test_two_users_get_their_shares_and_native_use_counts(shared: SharedSite) -> None:
    jobs = shared.submit_backlog(2 * STARTS)
    shared.await_sum(shared.started, jobs, STARTS)
    counts = shared.dispatched(jobs)  # the clusters start all of them
    shared.cancel(jobs)
    entitled = sum(counts.values()) * WEIGHTS[A] / sum(WEIGHTS.values())
    assert 0.8 * entitled <= counts[A] <= 1.2 * entitled, counts

    # so much more use of A that B may have some twenty tasks before A has another
    shared.run_native(A, 20 * ESTIMATE * WEIGHTS[A])
    jobs = shared.submit_backlog(STARTS)
    counts = shared.await_sum(shared.dispatched_first, jobs, QUEUE_DEPTH)
    assert counts[B] > counts[A], counts
    shared.cancel(jobs)


Sums = Counter[tuple[str, ...]]


def sacct_sums(shared: SharedSite) -> tuple[Sums, Sums]:
    """Sum what sacct has: jobs of metasched, and jobs that it did not send.

    The first counts runs by (user, cluster, state), and processor-seconds by (user, cluster); the
    second has processor-seconds by (user, cluster).
    """
    own, outside = Sums(), Sums()
    fields = "user,cluster,state,alloccpus,elapsedraw,submitline"
    selected = ("-X", "-a", "-L", "-n", "-P", "--duplicates", "-S", "now-2days", "-A", AUDITED)
    for line in shared.slurm["alpha"].run("sacct", *selected, "-o", fields).splitlines():
        user, cluster, state, cpus, seconds, command = line.split("|", 5)
        if "--comment" in command:  # the tag of metasched
            own[user, cluster, state.partition(" ")[0]] += 1
            own[user, cluster] += int(cpus) * int(seconds)
        else:
            outside[user, cluster] += int(cpus) * int(seconds)
    return own, outside


def reported_sums(shared: SharedSite) -> tuple[Sums, Sums]:
    """Return the same of `metasched report use`."""
    own, outside = Sums(), Sums()
    report = ("report", "use", "--by", "user,cluster", "--account", AUDITED, *PERIOD)
    for row in shared.site.json(*report)["rows"]:
        key = row["user"], row["cluster"]
        for state in ("completed", "failed", "cancelled"):
            own[(*key, state.upper())] = row[state]
        own[key] = row["cpu_seconds"]
        outside[key] = row["cpu_seconds_outside"]
    return own, outside


@pytest.mark.slow("slurmdbd has the use of a job ten seconds after it")
def test_the_use_of_two_accounts_is_that_of_sacct(shared: SharedSite) -> None:
    """Runs and processor-seconds are the same without rounding: slurmdbd stores whole seconds."""
    alpha = shared.slurm["alpha"]
    alpha.run("sacctmgr", "-i", "add", "account", AUDITED)
    for user in (A, B):
        alpha.run("sacctmgr", "-i", "add", "user", user, f"account={AUDITED}")
    a, b = shared.site.by(A), shared.site.by(B)
    audited = ("-A", AUDITED, "-t", "1", "-o", "/dev/null")
    native = (*audited, "--parsable", f"--uid={B}", "-n", "5", "-D", "/", "--wrap", "sleep 2")
    alpha.run("sbatch", *native)
    stopped = a.submit("-n", "2", "--cluster", "beta", *audited, "--wrap", "sleep 600")
    jobs = [
        a.submit("-n", "3", "--cluster", "alpha", *audited, "--wrap", "sleep 2"),
        b.submit("-n", "2", "--cluster", "beta", *audited, "--wrap", "sleep 1; exit 3"),
        b.submit("--array", "1-3", "--cluster", "alpha", *audited, "--wrap", "sleep 1"),
    ]
    shared.site.until_ended(*jobs)
    a.until(lambda: a.row(stopped)["elapsed"] >= 2)
    a.run("cancel", str(stopped))
    shared.site.until_ended(stopped)

    def agreed() -> tuple[Sums, Sums]:
        expected = sacct_sums(shared)
        assert reported_sums(shared) == expected
        assert expected[1][B, "alpha"] >= 10
        return expected

    own, _ = shared.site.until(agreed)
    assert own[A, "alpha", "COMPLETED"] == own[A, "beta", "CANCELLED"] == 1
    assert (own[B, "alpha", "COMPLETED"], own[B, "beta", "FAILED"]) == (3, 1)
    assert own[A, "alpha"] >= 6
    assert own[A, "beta"] >= 4
    before = reported_sums(shared)
    assert shared.site.stop() == 0
    shared.site.replayed()
    shared.site.start()
    assert reported_sums(shared) == before


def test_a_reservation_for_an_account_that_slurm_does_not_know(shared: SharedSite) -> None:
    alpha = shared.slurm["alpha"]
    operator = ("user", KEEPER, "account=project", "adminlevel=operator")
    alpha.run("sacctmgr", "-i", "add", *operator)
    terms = ("reserve", "--size", "1", "--duration", "5m", "--cluster", "alpha")
    a = shared.site.by(A)
    refusal = a.error(*terms, "--accounts", "project,unheard-of", code=3)
    assert refusal == (
        "alpha cannot keep it: its manager refused: Slurm has no account unheard-of; name others, "
        "add it with sacctmgr, or map it in [cluster.map.account]"
    )
    assert alpha.run("scontrol", "-o", "show", "reservation").startswith("No reservations")
    assert [row["state"] for row in a.json("reservations")] == ["broken"]  # it stays on record
    made = a.json(*terms, "--accounts", "project")
    assert made["state"] in ("bound", "active")
    a.run("reservation", "cancel", str(made["reservation"]))
