"""Manual pages: those of the tree are made from today's help, and man reads them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from metasched.cli.app import COMMANDS
from metasched.cli.man_pages import main, man_pages
from metasched.client.options import OPTIONS
from metasched.drop_in import command

FOLDER = Path(__file__).parents[2] / "man"
PAGES = man_pages()


def test_the_tree_has_the_pages_of_todays_help() -> None:
    """`make man` writes them."""
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == PAGES


def test_every_command_has_a_page() -> None:
    names = {f"metasched-{name}.1" for name in (*COMMANDS, *command.COMMANDS)}
    assert PAGES.keys() == {"metasched.1", *names}


def test_pages_of_former_commands_are_removed(tmp_path: Path) -> None:
    (tmp_path / "metasched-former.1").touch()
    main(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == PAGES.keys()


def shown(name: str) -> str:
    """Return a page as man shows it."""
    done = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", str(FOLDER / name)],
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
@pytest.mark.parametrize("name", PAGES)
def test_man_shows_a_page_without_warnings(name: str) -> None:
    assert shown(name).count("NAME") >= 1


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_the_page_of_submit_has_each_option_and_the_examples() -> None:
    text = shown("metasched-submit.1")
    assert all(name in text for option in OPTIONS for name in option.names)
    assert "metasched submit --wrap 'make -j4' -c 4 --deadline +2h --urgency 3" in text
    assert "NAME\n       metasched-submit - submit a job and print its id\n" in text
