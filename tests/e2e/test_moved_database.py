"""`metasched db move`: a ledger goes to another database, and no daemon uses the old one."""

from __future__ import annotations

import signal

import pytest

from metasched.db import moving
from metasched.db.store import DatabaseInUse, StoreError
from tests.e2e.conftest import TWO_LOCAL, Site
from tests.harness.databases import database_from_url
from tests.harness.postgresql import Server


def over(site: Site, url: str) -> None:
    """Let the configuration name another database; the clusters keep their folder."""
    site.url = url
    site.configure(TWO_LOCAL)


@pytest.mark.slow("moves a database twice; starts and replays on each")
def test_jobs_run_on_under_their_ids_after_a_move_and_a_move_back(
    site: Site, postgresql_server: Server
) -> None:
    ran = site.folder / "ran"
    old, new = site.url, postgresql_server.create()
    site.start()
    ended = site.submit("--name", "Ärger \N{SNOWMAN}", "--wrap", f"echo a >> '{ran}'; exit 3")
    site.until_ended(ended)
    running = site.submit("--wrap", f"echo b >> '{ran}'; sleep 4")
    held = site.submit("--hold", "--array", "1-200", "--wrap", f"echo c >> '{ran}'")
    site.until(lambda: site.row(running)["state"] == "running")
    before = {row["job"]: row["name"] for row in site.json("status", "--all")}
    assert "is active" in site.error("db", "move", new, code=1)
    site.stop()
    answer = site.json("db", "move", new)
    assert answer["rows"] > 200
    refusal = site.error("serve", code=1)
    assert "was moved to another database" in refusal
    assert "was moved" in site.error("db", "check", code=1)
    over(site, new)
    site.start()
    assert {row["job"]: row["name"] for row in site.json("status", "--all")} == before
    assert site.until_ended(running)[0]["state"] == "completed"
    assert site.row(ended)["exit_code"] == 3
    after = site.submit("--wrap", "true")  # rows get ids after the highest
    assert after > held
    site.until_ended(after)
    site.run("cancel", f"{held}_[3-200]")
    site.run("release", str(held))
    site.until_ended(held)
    assert sorted(ran.read_text().split()) == ["a", "b", "c", "c"]
    site.stop()
    site.replayed()

    over(site, old)
    assert "is not empty" in site.error("db", "move", new, code=1)
    over(site, new)
    url_after = f"sqlite:///{site.folder}/back.db"
    printed = site.run("db", "move", url_after).stdout
    assert f'[daemon] of {site.config}: database = "{url_after}"\n' in printed
    over(site, url_after)
    site.start()
    assert site.rows(held)[0]["state"] == "completed"
    site.until_ended(site.submit("--wrap", "true"))
    site.stop()
    site.replayed()


@pytest.mark.slow("moves a database to PostgreSQL, in parts, around three starts")
def test_after_a_crash_the_same_move_goes_on_and_no_other(
    site: Site, postgresql_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies when the old database is marked and the new one is not committed."""
    site.start()
    site.until_ended(site.submit("--wrap", "true"))
    site.stop()
    source = database_from_url(site.url, site.folder)
    new = postgresql_server.create()
    target, other = (
        database_from_url(url, site.folder) for url in (new, postgresql_server.create())
    )
    replace = moving._replace_revision

    def die_after(*arguments: str) -> None:
        replace(*arguments)  # type: ignore[arg-type]
        if arguments[2].startswith("moved-"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(moving, "_replace_revision", die_after)
        with pytest.raises(KeyboardInterrupt):
            moving.move(source, target)
    assert "was moved" in site.error("serve", code=1)
    with pytest.raises(StoreError, match="was moved"):
        moving.move(source, other)
    assert site.json("db", "move", new)["rows"] > 0
    with pytest.raises(StoreError, match="is not empty"):
        moving.move(source, target)


def test_a_failure_leaves_the_old_database_as_it_was(
    site: Site, postgresql_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start()
    job = site.submit("--hold", "--wrap", "true")
    site.stop(signal.SIGKILL)
    source = database_from_url(site.url, site.folder)
    target = database_from_url(postgresql_server.create(), site.folder)
    with monkeypatch.context() as patch:
        count = moving._count
        # no row of the last table arrives, so it seems
        patch.setattr(
            moving, "_count", lambda c, t: 0 if c.dialect.name == "postgresql" else count(c, t)
        )
        with pytest.raises(StoreError, match="not all rows"):
            moving.move(source, target)
    with target.acquire_writer(), pytest.raises(DatabaseInUse):
        moving.move(source, target)
    site.start()
    assert site.row(job)["state"] == "held"
    with pytest.raises(StoreError, match="is active"):
        moving.move(source, target)


@pytest.mark.slow("six commands, and two starts of the daemon")
def test_a_move_to_nowhere(site: Site) -> None:
    site.start()
    site.stop()
    for code, url, message in (
        (1, f"sqlite:///{site.folder}/metasched.db", "is the database itself"),
        (1, "postgresql://127.0.0.1:1/x", "refused"),
        (2, "mysql://x/y", "is not supported"),
        (2, "nonsense", "is not a URL"),
        # the configuration would resolve it in another folder than this command
        (2, "sqlite:///new.db", f"write sqlite:///{site.folder}/new.db"),
        (2, "sqlite:///../new.db", f"write sqlite:///{site.folder}/../new.db"),
    ):
        assert message in site.error("db", "move", url, code=code)
    assert not list(site.folder.rglob("new.db*"))
    site.start()
