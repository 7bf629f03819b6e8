"""Mutants: every patch applies and has a header; the page shows the stored results."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.chaos.mutants import track_record
from tests.chaos.mutants.harnesses import (
    STRIKES,
    ChaosHarness,
    HarnessError,
    HostileHarness,
    Output,
    PytestHarness,
    Trials,
    harness_named,
)
from tests.chaos.mutants.mutant import (
    CHECKOUT,
    FOLDER,
    Mutant,
    MutantError,
    all_mutants,
    read_mutant,
)
from tests.chaos.mutants.track_record import Result
from tests.conftest import require

PATCH = """\
Defect: A sentence.
Repaired: 0123abc
Harness: pytest tests/unit/test_units.py

diff --git a/file b/file
--- a/file
+++ b/file
@@ -1 +1 @@
-old
+new
"""
LONGEST_DEFECT = 24  # words of a table cell


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.patch")), ids=lambda path: path.stem)
def test_every_patch_applies(path: Path, tmp_path: Path) -> None:
    if shutil.which("git") is None:
        require("git", "git is not installed")
    mutant = read_mutant(path)
    for name in mutant.changed_files():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(CHECKOUT / name, tmp_path / name)
    mutant.apply(tmp_path)
    for name in mutant.changed_files():
        if name.endswith(".py"):
            compile((tmp_path / name).read_text(), name, "exec")
    assert len(mutant.defect.split()) <= LONGEST_DEFECT
    if isinstance(mutant.harness, PytestHarness):
        assert (CHECKOUT / mutant.harness.node.partition("::")[0]).exists()


def test_a_patch_that_does_not_apply_is_named(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        require("git", "git is not installed")
    (tmp_path / "mine.patch").write_text(PATCH)
    (tmp_path / "file").write_text("something else\n")
    with pytest.raises(MutantError, match=r"mine\.patch does not apply"):
        read_mutant(tmp_path / "mine.patch").apply(tmp_path)
    assert (tmp_path / "file").read_text() == "something else\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Defect: A sentence.\n", "has no Defect"),
        ("Repaired: 0123abc\n", "has no Repaired"),
        ("Harness: pytest tests/unit/test_units.py\n", "has no Harness"),
    ],
)
def test_a_header_is_complete(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.patch").write_text(PATCH.replace(line, ""))
    with pytest.raises(MutantError, match=message):
        read_mutant(tmp_path / "mine.patch")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("0123abc", "last week", "hash of a commit"),
        ("pytest tests/unit/test_units.py", "hope", "neither chaos, hostile nor pytest"),
        ("pytest tests/unit/test_units.py", "chaos local: bad luck", "no fault 'bad luck'"),
    ],
)
def test_a_header_is_checked(before: str, after: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.patch").write_text(PATCH.replace(before, after))
    with pytest.raises(MutantError, match=message):
        read_mutant(tmp_path / "mine.patch")


def test_harnesses() -> None:
    assert harness_named("chaos local: disk full") == ChaosHarness("local", "disk full")
    assert harness_named("chaos local: disk full x7") == ChaosHarness("local", "disk full", 7)
    assert harness_named("hostile slurm: tags") == HostileHarness("slurm", "tags")
    assert harness_named("pytest tests/unit/test_tags.py::test_a") == PytestHarness(
        "tests/unit/test_tags.py::test_a"
    )


def test_trials_and_findings(tmp_path: Path) -> None:
    """A skipped test or a harness that cannot run is no clean trial."""
    chaos, test = ChaosHarness("local", "disk full"), PytestHarness("tests/x.py")
    finding = chaos.trials(Output(0, '{"found": "t1 began twice"}', "", tmp_path))
    assert finding == Trials(STRIKES, "t1 began twice")
    with pytest.raises(HarnessError, match="no slurmctld"):
        chaos.trials(Output(2, "", "no slurmctld\n", tmp_path))
    with pytest.raises(HarnessError, match="no tests ran"):
        test.trials(Output(5, "no tests ran\n", "", tmp_path))
    report = tmp_path / "result.xml"
    report.write_text('<s><testcase/><testcase><failure message="assert 1 == 2"/></testcase></s>')
    statistics = "  - 12 passing, 1 failing, and 3 invalid test cases\n"
    assert test.trials(Output(1, statistics, "", tmp_path)) == Trials(13, "assert 1 == 2")
    report.write_text("<s><testcase/><testcase><skipped/></testcase></s>")
    assert test.trials(Output(0, "", "", tmp_path)) == Trials(1, "")
    report.write_text("<s><testcase><skipped/></testcase></s>")
    with pytest.raises(HarnessError, match="is skipped"):
        test.trials(Output(0, "", "", tmp_path))


def test_the_page_shows_the_stored_results() -> None:
    page = track_record.PAGE.read_text()
    assert track_record.page_with(track_record.section(), page) == page


def test_results_are_of_existing_mutants_and_their_harnesses() -> None:
    mutants = {mutant.name: mutant for mutant in all_mutants()}
    for name, result in track_record.stored_results().items():
        assert result.harness == str(mutants[name].harness), f"measure {name} again"


def test_a_section_is_replaced_and_the_rest_kept() -> None:
    page = track_record.page_with("## Track record\n\nnew\n", "# Page\n\n## Track record\nold\n")
    assert page == "# Page\n\n## Track record\n\nnew\n"
    assert track_record.page_with("## Track record\n", "# Page\n") == "# Page\n\n## Track record\n"


def test_a_result_without_finding_is_not_found(tmp_path: Path) -> None:
    mutant = Mutant("m", "A sentence.", "0123abc", PytestHarness("tests/x.py"), tmp_path)
    missed = Result.measured(mutant, 100, "", 100, "", 1.0)
    assert not missed.found
    assert missed.clean
    assert "NOT FOUND" in str(missed)
    assert not Result.measured(mutant, 1, "lost", 3, "lost", 1.0).clean
    assert not Result.failed(mutant, "no slurmctld").clean
