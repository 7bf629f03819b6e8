"""Refusals of real controllers whose sites decide by scripts of their own, with two accounts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.multi_user_site import MultiUserSite, running_site, slurm_tables
from tests.harness.accounts import A, B
from tests.harness.slurm import ClusterSpec, SlurmSite

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow("boots two controllers, and each look takes 2 s and some polls"),
]
JOB_SUBMIT = """
function slurm_job_submit(job_desc, part_list, submit_uid) return {} end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""
CLI_FILTER = """
function slurm_cli_setup_defaults(options, early_pass) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, pack_offset) return {} end
function slurm_cli_post_submit(offset, job_id, step_id) {} return slurm.SUCCESS end
return slurm.SUCCESS
"""
ACCEPTS, REFUSES = "slurm.SUCCESS", "slurm.ERROR"


def scripts(controller: str, before: str, after: str) -> tuple[tuple[str, str], ...]:
    return (
        ("job_submit.lua", JOB_SUBMIT.format(controller)),
        ("cli_filter.lua", CLI_FILTER.format(before, after)),
    )


SCRIPTED = ClusterSpec(
    "scripted",
    "s",
    nodes=1,
    cpus=8,
    settings=("JobSubmitPlugins=lua", "CliFilterPlugins=lua"),
    files=scripts(ACCEPTS, ACCEPTS, ""),
)
STRICT = ClusterSpec(
    "strict", "t", nodes=1, cpus=8, settings=("JobSubmitPlugins=require_timelimit",)
)


class Clusters:
    """Both clusters with a site in site mode; `say` writes the scripts of the first."""

    def __init__(self, site: MultiUserSite, folder: Path) -> None:
        self.site, self._folder = site, folder

    def say(self, controller: str = ACCEPTS, before: str = ACCEPTS, after: str = "") -> None:
        """`controller`, `before`: results of the scripts; `after`: what sbatch does at last."""
        for name, text in scripts(controller, before, after):
            new = self._folder / f"{name}.new"
            new.write_text(text)
            new.chmod(0o644)
            new.rename(self._folder / name)

    def submit(self, account: str, cluster: str, *options: str) -> int:
        """Submit a job that writes its id to `runs`, for a cluster or ("") for both."""
        home = self.site.folder / account
        where = ("--cluster", cluster) if cluster else ()
        wrap = f"echo $METASCHED_JOB_ID >> {home}/runs"
        return self.site.by(account).submit("-o", "/dev/null", *where, *options, "--wrap", wrap)

    def runs(self, account: str, job: int) -> int:
        path = self.site.folder / account / "runs"
        return path.read_text().split().count(str(job)) if path.exists() else 0

    def cluster(self, name: str) -> dict[str, object]:
        [row] = [row for row in self.site.by(A).cluster_rows() if row["cluster"] == name]
        return dict(row)


@pytest.fixture(scope="module")
def clusters(common_folder: Path) -> Iterator[Clusters]:
    folder = common_folder / "refusals"
    folder.mkdir(mode=0o755)
    with SlurmSite(folder / "slurm", [SCRIPTED, STRICT]) as slurm:
        tables = [slurm_tables(cluster, "settle = 2\n") for cluster in slurm]
        settings, programs = ("".join(part) for part in zip(*tables, strict=True))
        with running_site(folder / "site", settings, programs) as site:
            for account in (A, B):
                site.by(account)
            yield Clusters(site, slurm["scripted"].conf.parent)


def test_what_sbatch_itself_refuses_is_rejected(clusters: Clusters) -> None:
    user = clusters.site.by(A)
    for option, sentence in (
        ("--mem-bind=foo", 'unrecognized --mem-bind argument "foo"'),
        ("--mem=999999999", "Requested node configuration is not available"),
    ):
        job = clusters.submit(A, "scripted", "--native", f"scripted:{option}")
        after = clusters.submit(A, "scripted", "--dependency", f"afterok:{job}")
        [row] = user.until_ended(job)
        assert row["state"] == "rejected"
        assert sentence in user.run("explain", str(job)).stdout
        assert "never" in user.run("explain", str(after)).stdout
        user.run("cancel", str(after))


def test_an_answer_before_the_end_of_sbatch_counts(clusters: Clusters) -> None:
    clusters.say(after="os.exit(1)")
    jobs = [clusters.submit(A, "scripted") for _ in range(3)]
    rows = clusters.site.by(A).until_ended(*jobs)
    assert {row["state"] for row in rows} == {"completed"}
    assert [clusters.runs(A, job) for job in jobs] == [1, 1, 1]
    clusters.say()


def test_a_plug_in_that_wants_a_limit_sends_jobs_elsewhere(clusters: Clusters) -> None:
    clusters.say()
    user = clusters.site.by(B)
    only_there = clusters.submit(B, "strict")
    user.until(lambda: user.row(only_there)["reason"] == "refused")
    assert "Time limit specification required" in user.run("explain", str(only_there)).stdout
    anywhere = [clusters.submit(B, "") for _ in range(4)]
    rows = user.until_ended(*anywhere)
    assert {(row["state"], row["cluster"]) for row in rows} == {("completed", "scripted")}
    with_limit = clusters.submit(B, "strict", "-t", "5")
    assert user.until_ended(with_limit)[0]["state"] == "completed"
    assert [clusters.runs(B, job) for job in (*anywhere, with_limit)] == [1] * 5
    user.run("cancel", str(only_there))


@pytest.mark.parametrize(
    ("place", "answer", "sentence"),
    [
        ("controller", REFUSES, "Unspecified error"),
        ("controller", "1", "Operation not permitted"),  # a text of the C library
        ("before", REFUSES, "cli_filter plugin terminated"),
    ],
)
def test_a_script_that_refuses_everybody_closes_its_cluster(
    clusters: Clusters, place: str, answer: str, sentence: str
) -> None:
    clusters.say(**{place: answer})
    a, b = clusters.site.by(A), clusters.site.by(B)
    job = clusters.submit(A, "scripted")
    a.until(lambda: a.row(job)["reason"] == "refused")
    assert sentence in a.run("explain", str(job)).stdout
    other = clusters.submit(B, "scripted")
    b.until(lambda: b.row(other)["reason"] in ("refused", "limit_manager"))
    clusters.site.until(lambda: sentence in str(clusters.cluster("scripted")["refusing"]))
    elsewhere = clusters.submit(B, "", "-t", "5")
    [row] = b.until_ended(elsewhere)
    assert (row["state"], row["cluster"]) == ("completed", "strict")
    clusters.say()
    third = clusters.submit(B, "scripted")
    assert b.until_ended(third)[0]["state"] == "completed"
    a.until_ended(job)
    b.until_ended(other)
    assert [clusters.runs(A, job), *(clusters.runs(B, id) for id in (other, elsewhere, third))] == [
        1, 1, 1, 1
    ]  # fmt: skip
    assert not clusters.cluster("scripted")["refusing"]
