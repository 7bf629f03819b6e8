"""The documents: short sentences and cells, links that resolve, commands that exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from typer.main import get_command

from metasched.cli.app import COMMANDS, build_app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "tests/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = {"docs/benchmarks.md", "docs/experiments/tables.md"}
MEAN_SENTENCE, LONGEST_SENTENCE, LONGEST_CELL = 20, 35, 25  # words
LINK = re.compile(r"\]\(([^)\s]*)\)")
# at the start of code or of a column in it, after a prompt, a path or assignments
COMMAND = re.compile(
    r"(?:^|\$ |&& | {3}|\S/bin/)(?:[A-Z_]+=\S+ )*metasched (?=[a-z-])(.*?)(?= {3}| && | &|#|$)"
)


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    """Return the text without its code blocks."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?:^|(?<=\n\n))(?: {4}.*\n|\n(?= {4}))+", "\n", text)


def cells(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith("|"):
            yield from re.split(r"(?<!\\)\|", line.strip("| \n"))


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of paragraphs and list items; an item needs no full stop."""
    prose = "\n".join("" if line.startswith(("|", "#")) else line for line in text.splitlines())
    for paragraph in re.split(r"\n\s*\n|\n\s*(?=(?:[-*]|\d+\.) )", prose):
        for sentence in re.split(r"(?<=[.!?])[)*\"”]*\s+", " ".join(paragraph.split())):
            if re.search(r"\w", sentence):
                yield sentence


@pytest.mark.parametrize("page", [page for page in PAGES if ids(page) not in GENERATED], ids=ids)
def test_sentences_are_short(page: Path) -> None:
    lengths = {text: len(text.split()) for text in sentences(without_code(page.read_text()))}
    assert fmean(lengths.values()) < MEAN_SENTENCE
    assert {text for text, length in lengths.items() if length > LONGEST_SENTENCE} == set()


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_table_cells_are_short(page: Path) -> None:
    result = cells(without_code(page.read_text()))
    assert [cell for cell in result if len(cell.split()) > LONGEST_CELL] == []


def test_what_the_measures_count() -> None:
    text = "# Title\n\nOne two. Three\nfour five!\n\n    code code\n\n- a b\n- c\n\n| x y | z |\n"
    assert list(sentences(without_code(text))) == ["One two.", "Three four five!", "- a b", "- c"]
    assert [cell.strip() for cell in cells(text)] == ["x y", "z"]


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as Python-Markdown names them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.MULTILINE)
    plain = (re.sub(r"`|\[|\]\(.*?\)|[^\w\s-]", "", heading).strip() for heading in headings)
    return frozenset(re.sub(r"[-\s]+", "-", heading).lower() for heading in plain)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_and_anchors_resolve(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_changes_begin_with_the_present_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sections = re.findall(r"^## (.*)$", (ROOT / "docs/CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == project["version"]


def commands(text: str) -> Iterator[str]:
    """Yield the arguments of `metasched` in code blocks and inline code."""
    for line in text.splitlines():
        is_code = line.startswith("    ")
        for code in [line.strip()] if is_code else re.findall(r"`([^`]+)`", line):
            yield from COMMAND.findall(code)


@cache
def application() -> Any:
    return get_command(build_app())


def unknown_words(line: str) -> Iterator[str]:
    """Yield commands and options of a command line that `metasched` does not have."""
    arguments = _words(line)
    command: Any = application()
    alternatives: list[Any] = []
    while arguments and hasattr(command, "commands") and not arguments[0].startswith("-"):
        names = [arguments.pop(0)]
        while len(arguments) > 1 and arguments[0] == "|":
            names.append(arguments[1])
            del arguments[:2]
        unknown = [name for name in names if name not in command.commands]
        yield from unknown
        if unknown:
            return
        alternatives = [command.commands[name] for name in names]
        command = alternatives[0]
    for argument in arguments:
        option = re.match(r"\[?(--?[a-z][\w-]*)", argument)
        for each in alternatives or [command]:
            options = {"--help", "-h", "--install-completion", "--show-completion"}
            options |= {name for param in each.params for name in param.opts}
            if option and option[1] not in options:
                yield f"{each.name} {option[1]}"


def _words(line: str) -> list[str]:
    """Return the words of a command line up to the script; the script's arguments follow it."""
    try:
        arguments = shlex.split(line)
    except ValueError:
        arguments = line.split()
    script = next(
        (n for n, argument in enumerate(arguments) if argument.endswith(".sh")), len(arguments)
    )
    return arguments[: script + 1]


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_and_their_options_exist(page: Path) -> None:
    for line in commands(page.read_text()):
        assert list(unknown_words(line)) == [], line


def test_how_commands_are_found() -> None:
    line = "    A=b metasched cancel | hold 3   metasched cluster drain X --reason no # metasched x"
    assert list(commands(line)) == ["cancel | hold 3", "cluster drain X --reason no "]
    assert list(commands("    createdb --owner metasched new")) == []
    assert list(commands("metasched talks to `metasched doctor --json`")) == ["doctor --json"]
    assert list(unknown_words("cancel | hold 3")) == []
    assert list(unknown_words("cancel | hide 3")) == ["hide"]
    assert list(unknown_words("cluster drian X")) == ["drian"]
    assert list(unknown_words("cluster drain X [--resaon TEXT]")) == ["drain --resaon"]
    assert list(unknown_words("submit -n 2 job.sh --own")) == []


def test_every_command_is_shown_somewhere() -> None:
    shown = {line.split()[0] for page in PAGES for line in commands(page.read_text())}
    assert set(COMMANDS) - shown - {"hold", "release"} == set()


def test_names_of_the_code_in_the_design_exist() -> None:
    """A name in inline code occurs in the code; before a slash, it is a folder of the code."""
    files = [
        path
        for folder in ("metasched", "adapters", "policies", "db", "tests")
        for path in (ROOT / folder).resolve().rglob("*.py")
    ]
    identifiers = {
        identifier for path in files for identifier in re.findall(r"\w+", path.read_text())
    }
    prose = without_code((ROOT / "docs/design.md").read_text())
    names = [name for name in re.findall(r"`([\w./]+)`", prose) if re.search(r"[A-Z_./]", name)]
    assert len(names) > 40
    for name in names:
        *folders, last = name.rstrip("/").split("/")
        assert set(re.findall(r"\w+", last)) <= identifiers | {"py", "tests", "metasched"}, name
        for folder in folders:
            assert any(folder in path.parts for path in files), name
