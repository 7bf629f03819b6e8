"""A cluster accessed by pyslurm: the reported access, and workers that hang or crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import require
from tests.e2e.conftest import Site
from tests.harness import pyslurm
from tests.harness.slurm import SlurmSite

ACCESSES = ["stand-in", "pyslurm"]


@pytest.fixture(params=ACCESSES)
def python_path(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Return (interpreter, PYTHONPATH) of a worker that can import pyslurm or its stand-in."""
    if request.param == "stand-in":
        return "", f"{pyslurm.stand_in(tmp_path / 'stand-in')}"
    reason = pyslurm.missing()
    if reason is not None:
        require("pyslurm", reason)
    return pyslurm.PYTHON, str(pyslurm.ROOT)


def configured(
    site: Site,
    clusters: SlurmSite,
    path: str,
    python: str = "",
    extra: str = "",
    access: str = "pyslurm",
) -> None:
    """Configure alpha with `access` and the modules in `path`, beta with the commands."""
    alpha, beta = clusters["alpha"], clusters["beta"]
    for cluster in clusters:
        cluster.empty()
    interpreter = f'python = "{python}"\n' if python else ""
    site.configure(
        alpha.table(
            f'access = "{access}"\npoll_interval = 0.5\n{interpreter}{extra}'
            f'environment = {{ PYTHONPATH = "{path}" }}\n'
        )
        + beta.table('access = "commands"\npoll_interval = 0.5\n')
    )


def state(site: Site, cluster: str) -> str:
    return next(str(c["state"]) for c in site.cluster_rows() if c["cluster"] == cluster)


def used(site: Site, cluster: str) -> str:
    """Return the access that the daemon uses for a cluster."""
    return next(str(c["access"]) for c in site.json("clusters") if c["cluster"] == cluster)


def causes(site: Site, job: int) -> list[str]:
    return [line["cause"] for line in site.json("story", str(job))]


def test_clusters_and_story_name_the_access_used(
    site: Site, slurm_site: SlurmSite, python_path: tuple[str, str]
) -> None:
    python, path = python_path
    configured(site, slurm_site, path, python)
    site.start()
    assert used(site, "alpha").startswith("pyslurm 2")
    assert used(site, "beta") == "commands"
    run_log = site.folder / "ran"
    jobs = {
        name: site.submit(
            "--wrap", f"echo {name} >> {run_log}; exit {code}", "-t", "5", "--cluster", name
        )
        for name, code in (("alpha", 0), ("beta", 200))
    }
    rows = {row["cluster"]: row for row in site.until_ended()}
    assert {name: row["exit_code"] for name, row in rows.items()} == {"alpha": 0, "beta": 200}
    assert sorted(run_log.read_text().split()) == ["alpha", "beta"]
    for name, job in jobs.items():
        assert f"the manager accepted it, by {used(site, name)}" in causes(site, job)
    waiting = site.submit("--wrap", "sleep 600", "-t", "5", "--cluster", "alpha")
    site.until(lambda: site.row(waiting)["state"] == "running")
    site.run("cancel", str(waiting))
    assert site.until_ended(waiting)[0]["state"] == "cancelled"
    assert site.stop() == 0
    site.replayed()


@pytest.mark.slow("a call that hangs is given up after its time")
@pytest.mark.parametrize("way", ["crash", "hang"])
def test_a_pyslurm_that_fails_in_c_loses_and_repeats_nothing(
    site: Site, slurm_site: SlurmSite, tmp_path: Path, way: str
) -> None:
    stand_in = pyslurm.stand_in(tmp_path / "stand-in")
    configured(site, slurm_site, str(stand_in), extra="call_timeout = 8\nsettle = 1\n")
    site.start()
    run_log = site.folder / "ran"
    request = stand_in / f"{way}-submit"
    request.touch()
    job = site.submit("--wrap", f"echo once >> {run_log}", "-t", "5", "--cluster", "alpha")
    site.until(lambda: not request.exists())
    request = stand_in / "crash-list"
    request.touch()
    site.until(lambda: not request.exists())
    elsewhere = site.submit("--wrap", "true", "-t", "5", "--cluster", "beta")
    rows = site.until_ended(job, elsewhere)
    assert [row["state"] for row in rows] == ["completed", "completed"]
    assert run_log.read_text() == "once\n"
    expected = "its worker died of signal 11" if way == "crash" else "no answer to submit in 8 s"
    history = causes(site, job)
    assert any(cause.startswith(f"no answer: {expected}") for cause in history), history
    site.until(lambda: state(site, "alpha") == "up")
    assert site.stop() == 0


@pytest.mark.slow("an import that hangs is given up after its time")
@pytest.mark.parametrize("way", ["crash", "hang"])
def test_a_pyslurm_that_cannot_be_imported_is_a_reason_and_the_daemon_goes_on(
    site: Site, slurm_site: SlurmSite, tmp_path: Path, way: str
) -> None:
    stand_in = pyslurm.stand_in(tmp_path / "stand-in")
    source = (stand_in / "pyslurm.py").read_text()
    (stand_in / "pyslurm.py").write_text(source.replace("unlink()", "touch()"))  # every time
    (stand_in / f"{way}-import").touch()
    configured(site, slurm_site, str(stand_in), extra="timeout = 2\n")
    site.start("down:")
    expected = "was killed by signal 11" if way == "crash" else "has not imported it in "
    site.until(lambda: expected in state(site, "alpha"))
    assert 'access is "pyslurm"' in state(site, "alpha")
    site.until(lambda: state(site, "beta") == "up")
    job = site.submit("--wrap", "true", "-t", "5")
    [row] = site.until_ended(job)
    assert (row["state"], row["cluster"]) == ("completed", "beta")
    (stand_in / f"{way}-import").unlink()
    site.until(lambda: state(site, "alpha") == "up")  # a hanging import is killed and repeated
    assert site.stop() == 0


def test_a_pyslurm_that_a_busy_host_imports_slowly_is_used_once_it_is_there(
    site: Site, slurm_site: SlurmSite, tmp_path: Path
) -> None:
    stand_in = pyslurm.stand_in(tmp_path / "stand-in")
    (stand_in / "busy").touch()
    configured(site, slurm_site, str(stand_in), extra="timeout = 3\n", access="auto")
    site.start("down:")
    site.until(lambda: used(site, "alpha") == "commands")  # until pyslurm is imported
    job = site.submit("--wrap", "true", "-t", "5", "--cluster", "alpha")
    assert site.until_ended(job)[0]["state"] == "completed"
    assert "the manager accepted it, by commands" in causes(site, job)
    (stand_in / "busy").unlink()
    site.until(lambda: used(site, "alpha").startswith("pyslurm 2"))
    job = site.submit("--wrap", "true", "-t", "5", "--cluster", "alpha")
    assert site.until_ended(job)[0]["state"] == "completed"
    assert f"the manager accepted it, by {used(site, 'alpha')}" in causes(site, job)
    assert site.stop() == 0
