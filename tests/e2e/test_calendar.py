"""`[[calendar]]` with a real daemon whose clock the tests set: each run once, late or skipped."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from metasched.client.site_answers import CalendarRow
from tests.conftest import require
from tests.e2e.conftest import COMMAND, TWO_LOCAL, Site
from tests.harness import fake_clock

ENTRIES = """
[[calendar]]
name = "night"
at = "20:00"
do = "drain"
cluster = "left"
reason = "power saving"

[[calendar]]
name = "copy"
at = "daily 20:00"
do = "backup"
folder = "copies"

[[calendar]]
name = "morning"
at = "0 6 * * *"
do = "resume"
cluster = "left"

[[calendar]]
name = "mark"
at = "1 20 * * *"
do = "resume"
cluster = "right"

[[calendar]]
name = "tidy"
at = "0 5 1 * *"
do = "prune"
"""


class ClockedSite(Site):
    """A site whose daemon has a clock of its own."""

    def set_clock(self, text: str) -> None:
        """Set the clock of the daemon, also while it runs; `text` is a time in UTC."""
        offset = datetime.fromisoformat(f"{text}+00:00").timestamp() - time.time()
        draft = self.folder / "offset.draft"
        draft.write_text(f"{offset:+.0f}")
        draft.rename(self.folder / "offset")

    def launch(self) -> None:
        clock = fake_clock.shifted_as_in(self.folder / "offset")
        with self.log.open("ab") as log:
            self._daemon = subprocess.Popen(
                [COMMAND, "serve"],
                env=self.environment | clock,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def is_drained(self) -> bool:
        [left] = [row for row in self.cluster_rows() if row["cluster"] == "left"]
        return left["drained"] is not None

    def calendar(self) -> dict[str, CalendarRow]:
        """Return the rows of `calendar --json` by name."""
        return {row["name"]: row for row in self._client.calendar() if row["name"]}

    def next_runs(self) -> dict[str, str]:
        return {name: row["next"][0][:16] for name, row in self.calendar().items()}

    def recorded(self, kind: str) -> list[tuple[str, int, str]]:
        """Return entry, count and cause of the events of a kind."""
        rows, _ = self._client.events(kind=kind, since=0.0)
        return [(row["details"]["entry"], row["count"], row["cause"] or "") for row in rows]

    def copies(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "copies").glob("*"))


@pytest.fixture
def clocked(tmp_path: Path) -> Any:
    if reason := fake_clock.missing():
        require("faketime", reason)
    site = ClockedSite(tmp_path)
    site.configure(TWO_LOCAL + ENTRIES, extra='zone = "UTC"\n')
    try:
        yield site
    finally:
        site.close()


@pytest.mark.slow("a daemon looks at its clock every ten seconds, and starts four times")
def test_each_run_happens_once_over_crashes_and_steps_of_the_clock(clocked: ClockedSite) -> None:
    clocked.set_clock("2030-01-10T19:00:00")
    clocked.start()
    clocked.until(lambda: len(clocked.calendar()) == 5)
    assert clocked.next_runs() == {
        "night": "2030-01-10T20:00",
        "copy": "2030-01-10T20:00",
        "mark": "2030-01-10T20:01",
        "morning": "2030-01-11T06:00",
        "tidy": "2030-02-01T05:00",
    }
    clocked.set_clock("2030-01-10T20:00:00")
    clocked.until(clocked.is_drained)
    clocked.until(lambda: len(clocked.recorded("calendar_ran")) == 2)
    assert clocked.copies() == ["metasched-copy-20300110T200000Z.db"]

    # a missed run happens once, late
    clocked.stop(signal.SIGKILL)
    clocked.set_clock("2030-01-11T06:30:00")
    clocked.start(state="up")
    clocked.until(lambda: not clocked.is_drained())
    ran = clocked.recorded("calendar_ran")
    assert [entry for entry, _, _ in ran[2:]] == ["morning"]
    assert ran[2][2].startswith("resume left: 18")
    assert [entry for entry, _, _ in clocked.recorded("calendar_skipped")] == ["mark"]

    # the clock is set back to before the drain, which happens no second time
    clocked.set_clock("2030-01-10T19:30:00")
    clocked.until(lambda: clocked.next_runs()["mark"] == "2030-01-10T20:01")
    clocked.stop(signal.SIGKILL)
    clocked.set_clock("2030-01-10T19:40:00")
    clocked.start()
    clocked.set_clock("2030-01-10T20:01:05")
    clocked.until(lambda: len(clocked.recorded("calendar_ran")) == 4)
    assert clocked.recorded("calendar_ran")[3] == ("mark", 1, "resume right: it was not drained")
    assert not clocked.is_drained()
    assert clocked.next_runs()["night"] == "2030-01-11T20:00"
    assert clocked.next_runs()["morning"] == "2030-01-12T06:00"
    assert len(clocked.copies()) == 1

    # after three days only the last run could be late, and it is too late
    clocked.stop(signal.SIGKILL)
    clocked.set_clock("2030-01-13T22:00:00")
    clocked.start()
    clocked.until(lambda: len(clocked.recorded("calendar_skipped")) == 5)
    skipped = {entry: number for entry, number, _ in clocked.recorded("calendar_skipped")[1:]}
    assert skipped == {"night": 3, "copy": 3, "mark": 3, "morning": 2}
    assert not clocked.is_drained()
    clocked.stop()
    assert {row["ok"] for row in clocked.json("db", "check")} == {True}
    clocked.replayed()


@pytest.mark.slow("a daemon looks at its clock every ten seconds, and starts four times")
def test_a_licence_total_and_a_policy_by_time_of_day(clocked: ClockedSite) -> None:
    pool = '[[licence]]\nname = "solver"\ntotal = 4\n'
    day = 'name = "day"\nat = "08:00"\ndo = "licence"\nlicence = "solver"\n'
    day = f'[[calendar]]\n{day}total = 1\nlasts = "10h"\n'
    night = '[[calendar]]\nname = "night"\nat = "18:00"\ndo = "policy"\nfile = "night.toml"\n'
    (clocked.folder / "night.toml").write_text("pull = false\n")
    clocked.configure(TWO_LOCAL + pool + day + night, extra='zone = "UTC"\n')
    clocked.set_clock("2030-01-10T05:00:00")
    clocked.start()
    clocked.until(lambda: len(clocked.calendar()) == 2)
    short = clocked.submit("-L", "solver:3", "-t", "01:00:00", "--wrap", "true")
    long = clocked.submit("-L", "solver:3", "-t", "08:00:00", "--wrap", "true")
    assert clocked.until_ended(short)[0]["state"] == "completed"
    assert "calendar entry day" in clocked.run("explain", str(long)).stdout
    shown = clocked.run("licences").stdout
    assert [line.split()[:3] for line in shown.splitlines() if line.startswith("day")] == [
        ["day", "solver", "3"]
    ]
    clocked.stop(signal.SIGKILL)
    clocked.set_clock("2030-01-10T12:00:00")
    clocked.start()
    clocked.until(lambda: len(clocked.recorded("calendar_ran")) == 1)
    assert clocked.rows(long)[0]["state"] == "queued"
    clocked.set_clock("2030-01-10T18:00:01")
    assert clocked.until_ended(long)[0]["state"] == "completed"

    clocked.until(lambda: len(clocked.recorded("calendar_ran")) == 2)
    file = clocked.folder / "night.toml"
    assert clocked.recorded("calendar_ran")[1] == (
        "night",
        1,
        "put night.toml in force: policy version 2",
    )
    clocked.stop(signal.SIGKILL)
    clocked.start()
    newest, first = clocked.json("policy", "history")
    assert (newest["file"], newest["by"], newest["reason"]) == (
        str(file),
        "",
        "calendar entry night",
    )
    assert newest["previous"] == first["version"] == 1
    assert clocked.json("policy", "show")["values"]["pull"] is False
    # the next day the file has a mistake: the policy in force stays, and the record names it
    file.write_text("pull = 3\n")
    clocked.set_clock("2030-01-11T18:00:01")
    clocked.until(lambda: len(clocked.recorded("calendar_failed")) == 1)
    [(entry, _, cause)] = clocked.recorded("calendar_failed")
    assert entry == "night"
    assert f"{file}" in cause
    assert "pull" in cause
    assert len(clocked.json("policy", "history")) == 2
    assert clocked.error("reload", code=1).endswith('(calendar "night")')
    assert clocked.error("serve", "--check", code=2).endswith('(calendar "night")')
    # a daemon that starts again at night goes on
    clocked.stop(signal.SIGKILL)
    clocked.start()
    assert "a policy of the calendar cannot be put in force" in clocked.log.read_text()
    findings = json.loads(clocked.run("doctor", "--json", code=1).stdout)
    assert "calendar-policy" in {row["id"] for row in findings}
    # that mistake is known: it bars no repair of something else, another mistake does
    clocked.config.write_text(clocked.config.read_text() + '[[licence]]\nname = "x"\ntotal = 1\n')
    reloaded = json.loads(clocked.run("reload", "--json").stdout)
    assert reloaded["changes"]
    assert "calendar-policy" in {row["id"] for row in reloaded["findings"]}
    file.write_text("push = 3\n")
    assert "push" in clocked.error("reload", code=1)
    file.write_text("pull = false\n")
    clocked.stop()
    assert {row["ok"] for row in clocked.json("db", "check")} == {True}
    clocked.replayed()


def test_what_a_user_sees_and_what_a_reload_changes(site: Site) -> None:
    site.configure(TWO_LOCAL + ENTRIES, extra='zone = "Europe/Berlin"\n')
    site.start()
    site.until(lambda: len(site.json("calendar")) == 5)
    berlin = site.run("calendar", env={"TZ": "Europe/Berlin"}).stdout
    tokyo = site.run("calendar", env={"TZ": "Asia/Tokyo"}).stdout
    assert "20:00 CE" in berlin
    assert "JST" in tokyo
    assert "20:00 JST" not in tokyo
    [night] = [row for row in site.json("calendar", "--runs", "3") if row["name"] == "night"]
    assert len(night["next"]) == 3
    assert night["does"] == "drain left"
    first = datetime.fromisoformat(night["next"][0])
    assert first > datetime.now(UTC)

    site.configure(TWO_LOCAL + ENTRIES.partition('[[calendar]]\nname = "tidy"')[0])
    assert 'calendar "tidy" removed' in site.run("reload").stdout
    site.until(lambda: len(site.json("calendar")) == 4)
    kinds = [row["cause"] for row in site.json("events", "--kind", "calendar_changed")]
    assert "prune the database: removed" in kinds
    site.configure(TWO_LOCAL + ENTRIES.replace('at = "20:00"', 'at = "25:00"'))
    assert '"25:00" is no rule' in site.error("reload", code=1)
    assert len(site.json("calendar")) == 4
    site.configure(TWO_LOCAL)
    assert site.stop() == 0
    assert {row["ok"] for row in site.json("db", "check")} == {True}
    site.replayed()


@pytest.mark.parametrize(
    ("options", "problem", "code"),
    [
        (("--every", "08:00"), "no --until", 2),
        (("--until", "2030-01-01"), "--until without --every", 2),
        (("--every", "08:00", "--until", "+9d", "--start", "+1h"), "--start beside --every", 2),
        (("--every", "sometimes", "--until", "+9d"), '"sometimes" is no rule', 2),
        (("--every", "0," * 50_000 + "0 * * * *", "--until", "+9d"), "100009 characters", 2),
        (("--every", "08:00", "--until", "+9d", "--zone", "Europe/Atlantis"), "no time zone", 2),
        (("--every", "0 0 * * * *", "--until", "+9d"), "is no rule", 2),
        (("--every", "08:00", "--until", "+9d", "--cluster", "moon"), "no cluster moon", 5),
    ],
)
def test_bad_series_are_one_line(
    shared: Site, options: tuple[str, ...], problem: str, code: int
) -> None:
    message = shared.error("reserve", "--size", "1", "--duration", "1h", *options, code=code)
    assert problem in message
    assert len(message) < 400


def test_a_series_that_is_not_there(shared: Site) -> None:
    message = shared.error("reservation", "cancel", "--series", "7", code=5)
    assert message == "no series 7; see `metasched calendar`"
