"""`serve --check`: the results of the checks, and whether a start would succeed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import require
from tests.e2e.conftest import Site
from tests.harness.postgresql import Server, missing


def checked(site: Site, code: int) -> dict[str, str]:
    """Run the check; return result and note of each subject."""
    lines = site.run("serve", "--check", code=code).stdout.splitlines()
    rows = [line.split("  ", 1) for line in lines]
    return {subject: " ".join(note.split()) for subject, note in rows}


@pytest.fixture(scope="module")
def server(common_folder: Path) -> Iterator[Server]:
    """A server that syncs to disk: `--check` does not accept another."""
    if (reason := missing()) is not None:
        require("postgresql", reason)
    with Server(common_folder / "pg-check", settings=()) as started:
        yield started


def test_a_sqlite_database_before_and_after_the_first_start(site: Site) -> None:
    site.url = f"sqlite:///{site.folder}/state/new/ms.db"  # nor do its folders exist
    site.configure()
    rows = checked(site, 0)
    assert rows["database"] == (
        f"ok {site.folder}/state/new/ms.db does not exist yet; the first start creates it"
    )
    assert rows["configuration"] == f"ok {site.config}, 2 clusters"
    assert {"filesystem", "state folder", "socket", "manager of left"} <= rows.keys()
    assert {note.partition(" ")[0] for note in rows.values()} <= {"RESULT", "ok", "note"}
    assert not (site.folder / "state").exists()
    site.start()
    site.stop()
    assert checked(site, 0)["database"].startswith(f"ok {site.folder}/state/new/ms.db, ")


@pytest.mark.slow("a start of the daemon, then three checks of the installation")
def test_a_broken_sqlite_database(site: Site) -> None:
    site.configure()
    site.start()
    site.stop()
    pages = site.database.read_bytes()
    site.database.write_bytes(pages[:4096] + b"\xff" * (len(pages) - 4096))
    assert checked(site, 1)["database"].startswith("error ")
    site.database.write_bytes(b"no database of any kind\n" * 300)
    assert "cannot be read as a metasched database" in checked(site, 1)["database"]
    site.database.unlink()
    site.database.mkdir()
    assert checked(site, 1)["database"].startswith(f"error no database {site.database}, though ")


def test_a_folder_where_the_database_cannot_be_created(site: Site) -> None:
    site.url = f"sqlite:///{site.folder}/closed/ms.db"
    site.configure()
    (site.folder / "closed").write_text("")
    row = checked(site, 1)["database"]
    assert row == (
        f"error {site.folder}/closed/ms.db cannot be created in {site.folder}/closed; "
        "give a folder you can write"
    )


@pytest.mark.slow("a start of the daemon, then a check for each release")
def test_a_database_of_another_release(site: Site) -> None:
    site.configure()
    site.start()
    site.stop()

    def set_revision(revision: str) -> None:
        with closing(sqlite3.connect(site.database)) as connection, connection:
            connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))

    set_revision("0043")
    assert "has schema 0043 of a metasched before 1.0" in checked(site, 1)["database"]
    set_revision("s9999")
    assert "newer than this metasched knows" in checked(site, 1)["database"]


def test_a_dead_cluster_prevents_no_start(site: Site) -> None:
    dead = (
        f'[[cluster]]\nname = "dead"\nadapter = "slurm"\nconfig = "{site.folder}/none.conf"\n'
        f'bin_dir = "{site.folder}"\naccess = "commands"\n'
    )
    site.configure(dead)
    assert checked(site, 0)["manager of dead"].startswith("error ")


@pytest.mark.slow("the installation is checked four times, and a server is booted")
def test_a_postgresql_database_before_and_after_the_first_start(site: Site, server: Server) -> None:
    site.url = server.create()
    name = site.url.partition("?")[0].rpartition("/")[2]
    site.configure()
    row = checked(site, 0)["database"]
    assert row.endswith(" is empty; the first start creates its tables"), row
    server.sql("ALTER SCHEMA public OWNER TO CURRENT_USER", name)
    server.sql("REVOKE ALL ON SCHEMA public FROM PUBLIC, metasched", name)
    row = checked(site, 1)["database"]
    assert row.startswith("error ")
    assert "its account may not create tables; GRANT" in row
    server.sql("GRANT ALL ON SCHEMA public TO metasched", name)
    site.start()
    site.stop()
    assert checked(site, 0)["database"].startswith("ok postgresql")
    server.sql("DROP TABLE attempt CASCADE", name)
    assert checked(site, 1)["database"].startswith("error ")


def test_a_postgresql_database_that_is_not_there(site: Site, server: Server) -> None:
    site.url = server.url("absent")
    site.configure()
    assert 'database "absent" does not exist; create it' in checked(site, 1)["database"]
