"""Heuristics of the site: which values count, what they decide, and what the simulator does."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.config.policy_file import examine_policy
from metasched.core.events import JobSubmitted
from metasched.laboratory.simulate.settings import (
    SettingError,
    read_settings,
    read_workload,
    simulate,
)
from metasched.model.job import Job
from metasched.model.ratings import SiteRatings
from metasched.policies.classify import Classifier, Deadline, RatedAtSubmission, User
from metasched.policies.dispatch import LoadOrdering
from metasched.policies.heuristic import ClusterTraits, Heuristic
from metasched.policies.plug_in_ratings import (
    PlugIn,
    PlugInError,
    PlugInKind,
    Rating,
    ask,
    ask_all,
    checked,
    load,
    load_all,
    plug_ins_of,
    rated_job,
)
from metasched.policies.policy import PlugInSettings, Policy
from tests.harness.plug_in_packages import install
from tests.unit.core_site import NOW, Site

DOCS = Path(__file__).parents[2] / "docs"
MODULE = """\
import math
from metasched.policies.heuristic import Heuristic, PlacementHeuristic, RunTimeEstimator

class Narrow(Heuristic):
    def __init__(self, full=64):
        self.full = full

    def contribution(self, job):
        return self.max_priority * max(0.0, 1 - job.cpus / self.full)

class Right(PlacementHeuristic):
    def rating(self, job, cluster):
        return 1.0 if cluster.name in ("right", "c2") else 0.0

class Half(RunTimeEstimator):
    def seconds(self, job):
        return job.estimated / 2

class Wrong(Heuristic):
    def __init__(self, how=0):
        self.how = int(how)

    def contribution(self, job):
        return (math.nan, -1, 11, "5", None, True, 10**400, 1 / (self.how - 7))[self.how]

class Odd(Heuristic):
    def contribution(self, job):
        if job.id % 2:
            raise RuntimeError("an odd\\njob")
        return self.max_priority

class Unfinished(Heuristic):
    pass

class Other:
    pass
"""
GROUPS = {
    "metasched.heuristics": {
        "narrow": "Narrow",
        "wrong": "Wrong",
        "odd": "Odd",
        "unfinished": "Unfinished",
        "other": "Other",
        "missing": "Missing",
    },
    "metasched.placement": {"right": "Right"},
    "metasched.run_times": {"half": "Half"},
}
CLUSTERS = [ClusterTraits("left", "local", 1.0, 8), ClusterTraits("right", "local", 1.0, 4)]


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "site_heuristics", MODULE, GROUPS)
    monkeypatch.syspath_prepend(tmp_path)


def plug_in(name: str, kind: PlugInKind = PlugInKind.PRIORITY, **parameters: float) -> PlugIn:
    return PlugIn(kind, name, 10, tuple(parameters.items()))


def job(id: int = 1, **fields: Any) -> Job:
    return Job(id=id, submitted=0, estimated=100.0, **fields)


def policy(**tables: dict[str, float]) -> Policy:
    """Return a policy with heuristics by table and name, with their weights."""
    named = {
        table: {name: PlugInSettings(weight=weight) for name, weight in weights.items()}
        for table, weights in tables.items()
    }
    return Policy(**named)  # type: ignore[arg-type]


def rated(submitted: Job, by: Policy) -> Job:
    return rated_job(submitted, ask_all(load_all(plug_ins_of(by)), submitted, CLUSTERS), by)


def test_a_heuristic_gets_its_parameters_and_has_a_part_in_the_priority() -> None:
    by = Policy(heuristics={"narrow": PlugInSettings(weight=2, parameters={"full": 4})})
    submitted = rated(job(cpus=1), by)
    assert submitted.ratings == SiteRatings({"narrow": 7.5})
    classifier = Classifier(
        heuristics=[User(), RatedAtSubmission("narrow")], weights={"narrow": 2.0}
    )
    assert classifier.priority(submitted) == 5  # (1 + 2 x 7.5) / 3 = 5.33
    assert [part.heuristic for part in classifier.contributions(submitted)] == ["user", "narrow"]
    assert classifier.priority(job(cpus=1)) == 1  # it was submitted before


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        (0, "its value is nan, not 0 to 10"),
        (1, "its value is -1, not 0 to 10"),
        (2, "its value is 11, not 0 to 10"),
        (3, "TypeError: its value is str, not a number"),
        (4, "TypeError: its value is NoneType, not a number"),
        (5, "TypeError: its value is bool, not a number"),
        (6, "OverflowError: int too large to convert to float"),
        (7, "ZeroDivisionError: division by zero"),
    ],
)
def test_an_invalid_value_is_excluded_with_its_reason(how: int, problem: str) -> None:
    settings = PlugInSettings(parameters={"how": how})
    submitted = rated(job(), Policy(heuristics={"wrong": settings}))
    assert submitted.ratings == SiteRatings(excluded={"wrong": problem})
    [part] = Classifier(heuristics=[User(), RatedAtSubmission("wrong")]).contributions(submitted)
    assert part.heuristic == "user"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("absent", "no entry point absent of metasched.heuristics; install its package"),
        ("other", "site_heuristics:Other is no Heuristic; derive it from that class"),
        ("unfinished", "cannot be created: TypeError"),
        ("missing", "cannot be created: AttributeError"),
    ],
)
def test_a_plug_in_that_cannot_be_loaded_is_excluded(name: str, problem: str) -> None:
    with pytest.raises(PlugInError, match=problem):
        load(plug_in(name))
    submitted = rated(job(), policy(heuristics={name: 1, "narrow": 1}))
    assert submitted.ratings is not None
    assert problem in submitted.ratings.excluded[name]
    assert "narrow" in submitted.ratings.priorities


def test_a_heuristic_may_be_excluded_for_some_jobs_only() -> None:
    by = policy(heuristics={"odd": 1})
    first, second = (rated(job(id), by).ratings for id in (1, 2))
    assert first == SiteRatings(excluded={"odd": "RuntimeError: an odd job"})
    assert second == SiteRatings({"odd": 10.0})


@given(st.floats(), st.integers(1, 100))
def test_only_finite_values_in_range_count(value: float, max_priority: int) -> None:
    asked = PlugIn(PlugInKind.PRIORITY, "any", max_priority)
    result = checked(asked, Rating(value), ())
    assert (not result.error) == (math.isfinite(value) and 0 <= value <= max_priority)
    placed = checked(
        plug_in("any", PlugInKind.PLACEMENT), Rating(by_cluster={"left": value}), CLUSTERS[:1]
    )
    assert (not placed.error) == (0 <= value <= 1)
    expected = checked(plug_in("any", PlugInKind.RUN_TIME), Rating(value), ())
    assert (not expected.error) == (math.isfinite(value) and 0.001 <= value <= 3660 * 86400)


@pytest.mark.parametrize(
    "answer",
    [
        Rating(),
        Rating(0.5),
        Rating(by_cluster={}),
        Rating(by_cluster={"left": 0.5}),
        Rating(by_cluster={"left": 0.5, "right": 0.5, "other": 0.5}),
        Rating(by_cluster={"left": 0.5, "right": math.nan}),
    ],
)
def test_a_placement_has_a_rating_of_each_cluster(answer: Rating) -> None:
    assert checked(plug_in("any", PlugInKind.PLACEMENT), answer, CLUSTERS).error
    assert checked(plug_in("any"), Rating(by_cluster={"left": 0.5}), CLUSTERS).error


def test_ratings_of_clusters_are_weighed_against_their_loads() -> None:
    ratings = SiteRatings(placements={"right": {"left": 0.0, "right": 1.0}})
    liked = job(id=2, ratings=ratings)
    for weight, load_of_right, expected in (
        (1.0, 100.0, "right"),  # left (1 + 0) / 2, right (0.1 + 1) / 2
        (0.5, 100.0, "left"),  # left 1 / 1.5, right (0.1 + 0.5) / 1.5
        (0.5, 12.0, "right"),  # left 1 / 1.5, right (10 / 12 + 0.5) / 1.5
        (0.0, 12.0, "left"),
    ):
        ordering = LoadOrdering(["left", "right"], placement_weights={"right": weight})
        ordering.assigned("left", msgspec.structs.replace(job(), estimated=10.0), 5)
        ordering.assigned("right", msgspec.structs.replace(job(), estimated=load_of_right), 5)
        assert ordering.choose(liked, 5) == expected
        assert ordering.choose(liked, 5, ["left"]) == "left"
        assert ordering.choose(job(id=3), 5) == "left"  # without ratings, the least load


def test_of_idle_clusters_the_best_rated_is_taken() -> None:
    ordering = LoadOrdering(["left", "right"], placement_weights={"right": 0.01})
    liked = job(ratings=SiteRatings(placements={"right": {"left": 0.0, "right": 1.0}}))
    assert ordering.choose(liked, 5) == "right"
    assert ordering.choose(job(), 5) == "left"
    assert ordering.preferred(liked, ["left", "right"]) == ["right", "left"]
    assert ordering.preferred(job(), ["left", "right"]) == ["left", "right"]


def test_a_heuristic_without_a_rating_of_an_eligible_cluster_does_not_count() -> None:
    ordering = LoadOrdering(["left", "right", "new"], placement_weights={"right": 1.0})
    liked = job(ratings=SiteRatings(placements={"right": {"left": 0.0, "right": 1.0}}))
    assert ordering.choose(liked, 5) == "left"
    assert ordering.choose(liked, 5, ["left", "right"]) == "right"


def test_estimates_count_for_jobs_with_a_limit_and_never_exceed_it() -> None:
    by = policy(run_times={"half": 1})
    limited = rated(job(time_limit=100.0), by)
    assert limited.ratings == SiteRatings(run_times={"half": 50.0})
    assert (limited.estimated, limited.time_limit) == (50.0, 100.0)
    assert rated(job(), by).estimated == 100.0
    long = rated_job(
        job(time_limit=100.0), {plug_in("half", PlugInKind.RUN_TIME): Rating(900.0)}, by
    )
    assert long.estimated == 100.0
    tiny = rated_job(
        job(time_limit=100.0),
        {plug_in("half", PlugInKind.RUN_TIME): Rating(0.001)},
        policy(run_times={"half": 1e-323}),
    )
    assert tiny.estimated == 0.001  # no product of the two is 0


def test_an_error_that_raises_when_it_is_described_is_an_error() -> None:
    class Defect(Exception):
        def __str__(self) -> str:
            raise SystemExit(1)

    class Raises(Heuristic):
        def contribution(self, job: Job) -> float:
            raise Defect

    assert ask(plug_in("any"), Raises(), job(), ()) == Rating(error="Defect")


def test_ratings_are_stored_with_the_job() -> None:
    submitted = rated(job(), policy(heuristics={"narrow": 1, "odd": 1}, placement={"right": 1}))
    event = JobSubmitted(1.0, submitted)
    assert msgspec.json.decode(msgspec.json.encode(event), type=JobSubmitted) == event


def test_the_core_decides_by_the_recorded_ratings_alone() -> None:
    by = policy(heuristics={"narrow": 3}, placement={"right": 5})
    site = Site(heuristics=by.heuristics, placement=by.placement)
    event = JobSubmitted(
        NOW,
        job(
            id=1,
            ratings=SiteRatings({"narrow": 10.0}, {"right": {"left": 0.0, "right": 1.0}}),
        ),
    )
    outcome = site.core.step(event)
    assert outcome.priority == 6  # (1 + 1 + 1 + 3 x 10) / 6 = 5.5, rounded half up
    [action] = outcome.actions
    assert action.cluster == "right"


def test_the_simulator_asks_in_process_by_the_same_rules(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"

    def run(text: str) -> tuple[dict[str, int], dict[int, int], dict[str, int]]:
        file.write_text(text)
        settings = read_settings(str(file), ["jobs=60", "cpus=16"], 1, "16,16")
        schedule = simulate(*read_workload("lublin", "16,16", None, settings), settings)
        used = dict.fromkeys(("c1", "c2"), 0)
        for entry in schedule.jobs:
            used[schedule.clusters[entry.cluster].name] += 1
        priorities = {entry.job.id: entry.priority for entry in schedule.jobs}
        return used, priorities, dict(schedule.excluded)

    plain, same, none = run("pull = false")
    assert none == {}
    assert plain["c1"] > 0
    liked, _, none = run("pull = false\n[placement.right]\nweight = 100")
    assert none == {}
    assert liked["c1"] == 0
    _, priorities, excluded = run("pull = false\n[heuristics.odd]\nweight = 7")
    assert excluded == {"odd": sum(id % 2 for id in priorities)}
    assert all(priorities[id] == same[id] for id in priorities if id % 2)
    assert all(priorities[id] > same[id] for id in priorities if not id % 2)
    file.write_text("[heuristics.absent]\n")
    with pytest.raises(SettingError, match=r"no entry point absent .*\[heuristics.absent\]"):
        read_settings(str(file), [], 1)


FILES = [
    ("[heuristics.user]", '"user" is there twice, p, [heuristics.user]; use another name'),
    ("[heuristics.a]\n[placement.a]", '"a" is there twice, p, [placement.a]; use another name'),
    ("[heuristics.a]\nweight = nan", "weight = nan, p, [heuristics.a]; write a number"),
    ("[heuristics.a]\nweight = -1", "weight = -1, p, [heuristics.a]; write a number"),
    ("[heuristics.a]\nweigth = 1", 'unknown key "weigth", p, [heuristics.a]; write "weight"'),
    ("[heuristics.a.parameters]\nfull = true", "full = true"),
    ("[heuristics.a.parameters]\nfull = 'x'", 'full = "x"'),
    ("[heuristics.a.parameters]\nfull = inf", "full = inf"),
    ("[heuristics.'a b']", "a b"),
    ("[weights]\nnarrow = 1\n[heuristics.narrow]", 'unknown weight "narrow"'),
    ("[weights]\nuser=0\ndeadline=0\nlicence=0\n[heuristics.narrow]", "no heuristic has a weight"),
    ("\n".join(f"[placement.p{i}]" for i in range(21)), "21 heuristics of the site, p; name"),
]


@pytest.mark.parametrize(("text", "problem"), FILES, ids=[problem for _, problem in FILES])
def test_a_mistake_in_a_policy_file_has_one_line(text: str, problem: str) -> None:
    reading = examine_policy(text, "p")
    assert reading.policy is None
    assert problem in reading.mistakes[0]
    assert all("\n" not in mistake for mistake in reading.mistakes)


def test_a_plug_in_that_is_not_installed_here_is_noted() -> None:
    text = "[heuristics.narrow]\n[heuristics.absent]\n[placement.right]\nweight = 0"
    reading = examine_policy(text, "p")
    assert reading.policy is not None
    assert plug_ins_of(reading.policy) == (plug_in("narrow"), plug_in("absent"))
    assert [note.partition(" ")[0] for note in reading.notes] == ["absent", "right"]


def test_jobs_with_an_exclusion_are_no_evidence_for_self_optimisation() -> None:
    from metasched.policies.policy import SelfOptimisation
    from metasched.policies.tuned_strategies import make_optimisers

    heuristics = [Deadline(), User(), RatedAtSubmission("narrow")]
    classifier = Classifier(heuristics=heuristics)
    [optimiser] = make_optimisers(classifier, {"weight-user": SelfOptimisation()}, {})
    assert optimiser.strategy.item(job()) is None
    rated_by_all = job(ratings=SiteRatings({"narrow": 3.0}))
    assert optimiser.strategy.item(rated_by_all) == (1, 1, 3.0)


@pytest.mark.parametrize("name", ["site_heuristics.py", "pyproject.toml", "policy.toml"])
def test_the_guide_shows_the_files_of_the_example(name: str) -> None:
    guide = (DOCS / "policy.md").read_text()
    lines = (DOCS / "examples/plug-in" / name).read_text().splitlines()
    assert "\n".join(f"    {line}" if line else "" for line in lines) in guide
