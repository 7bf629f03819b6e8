"""Golden decisions: stored lives of the core, and what its present version decides in each step.

`python -m tests.harness.golden_decisions` compares the present decisions with the stored ones.
With `--write` it draws the lives anew and stores them; with `--show LIFE` it prints a life.
"""

from __future__ import annotations

import argparse
import lzma
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import ndiff
from pathlib import Path
from typing import Final

import msgspec

import metasched.core.scheduler
from metasched.core.events import CoreEvent
from metasched.core.recovered_state import RecoveredState
from metasched.core.scheduler import DECISION_VERSION
from tests.harness.lives import Life, hash_of

FOLDER: Final = Path(__file__).parents[1] / "golden"
SUMMARY: Final = "decisions.json"  # the hash of each life
LIVES: Final = "lives.msgpack.xz"  # events and decisions
COMMAND: Final = "python -m tests.harness.golden_decisions"
MAX_LINES: Final = 12  # of a difference that are printed
MAX_LIVES: Final = 3  # of which the first difference is printed


class LifeHash(msgspec.Struct, frozen=True, kw_only=True):
    """The hash of the decisions of a life."""

    name: str
    events: int
    sha256: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The hashes of all lives, as decided by a version of the core."""

    decision_version: int
    lives: list[LifeHash]


class GoldenError(Exception):
    """The stored decisions cannot be compared, or may not be replaced."""


@dataclass(frozen=True)
class Difference:
    """The first step of a life that is decided otherwise than stored."""

    life: str
    number: int  # of the event, from 1
    events: int  # of the life
    event: str  # description of the event
    before: Sequence[str]
    now: Sequence[str]

    def __str__(self) -> str:
        changed = [line for line in ndiff(self.before, self.now) if line[0] in "-+"]
        shown = "\n".join(f"    {line}" for line in changed[:MAX_LINES])
        omitted = len(changed) - MAX_LINES
        more = f"\n    and {omitted} more lines" if omitted > 0 else ""
        return (
            f"{self.life}: event {self.number} of {self.events}, {self.event}, is decided "
            f"otherwise (- stored, + now):\n{shown}{more}"
        )


class StoredLife(msgspec.Struct, frozen=True, kw_only=True):
    """A life with the decisions of the version that stored it."""

    life: Life
    decisions: list[list[str]]  # by event

    @property
    def hash(self) -> LifeHash:
        """The hash as it is stored in the summary."""
        return LifeHash(
            name=self.life.name, events=len(self.decisions), sha256=hash_of(self.decisions)
        )

    def first_difference(self) -> Difference | None:
        """Return the first step that the present core decides otherwise; None: there is none.

        Raises GoldenError if an event cannot be read.
        """
        number = 0
        try:
            for number, (event, lines) in enumerate(self.life.decide(), 1):
                before = self.decisions[number - 1]
                if lines != before:
                    self._check_fields()
                    return Difference(
                        self.life.name,
                        number,
                        len(self.decisions),
                        _description(event),
                        before,
                        lines,
                    )
        except msgspec.ValidationError as error:
            raise self._unreadable(number + 1, str(error)) from error
        return None

    def _check_fields(self) -> None:
        """Raise GoldenError if a stored field is ignored: its default may decide otherwise."""
        number = 1  # of the event; a state that is restored belongs to the next one
        for step in self.life.steps:
            if lost := step.lost_fields():
                raise self._unreadable(number, f"{step.kind} has no {', '.join(lost)} any more")
            number += step.kind != RecoveredState.__name__

    def _unreadable(self, number: int, reason: str) -> GoldenError:
        return GoldenError(
            f"{self.life.name}: event {number} cannot be read ({reason}); a stored field or event "
            f"was renamed? run {COMMAND} --write, which must leave all hashes as they are"
        )


def _description(event: CoreEvent) -> str:
    """Describe an event by its class and its subject."""
    for name in ("job", "cluster", "entry", "id", "name"):
        subject = getattr(event, name, None)
        if subject is not None:
            return f"{type(event).__name__} of {name} {getattr(subject, 'id', subject)}"
    return type(event).__name__


def read(folder: Path = FOLDER) -> tuple[Summary, list[StoredLife]]:
    """Return what is stored. Raises GoldenError if a file is missing, or the two disagree."""
    summary = _read_summary(folder)
    try:
        packed = lzma.decompress((folder / LIVES).read_bytes())
        lives = msgspec.msgpack.decode(packed, type=list[StoredLife])
    except (OSError, lzma.LZMAError, msgspec.DecodeError) as error:
        raise GoldenError(f"{folder / LIVES}: {error}; run {COMMAND} --write") from error
    if [stored.hash for stored in lives] != summary.lives:
        raise GoldenError(f"{SUMMARY} and {LIVES} are of different runs; run {COMMAND} --write")
    return summary, lives


def _read_summary(folder: Path) -> Summary:
    try:
        return msgspec.json.decode((folder / SUMMARY).read_bytes(), type=Summary)
    except (OSError, msgspec.DecodeError) as error:
        raise GoldenError(f"{folder / SUMMARY}: {error}; restore it from the history") from error


def differences(lives: Iterable[StoredLife]) -> list[Difference]:
    """Return the first difference of each life that the present core decides otherwise."""
    return [each for stored in lives if (each := stored.first_difference()) is not None]


def compare(folder: Path = FOLDER) -> str:
    """Return a line about the lives, which the present core decides as stored.

    Raises GoldenError with the first differences otherwise, and what to do.
    """
    summary, lives = read(folder)
    if summary.decision_version != DECISION_VERSION:
        raise GoldenError(
            f"{FOLDER.name}/{SUMMARY} has the decisions of DECISION_VERSION "
            f"{summary.decision_version}, the core has {DECISION_VERSION}; "
            + (
                f"run {COMMAND} --write"
                if summary.decision_version < DECISION_VERSION
                else "a version is never lowered: raise it, or restore the file from the history"
            )
        )
    if found := differences(lives):
        raise GoldenError(_report(found, len(lives)))
    every = hash_of([[stored.hash.sha256 for stored in lives]])
    events = sum(len(stored.decisions) for stored in lives)
    return f"{len(lives)} lives, {events} events, hash of all decisions {every}"


def _report(found: Sequence[Difference], lives: int) -> str:
    shown = "\n".join(map(str, found[:MAX_LIVES]))
    return (
        f"{len(found)} of {lives} lives are decided otherwise than by DECISION_VERSION "
        f"{DECISION_VERSION}\n{shown}\n"
        "If that was not intended, repair it. If it was, raise DECISION_VERSION in "
        f"metasched/core/scheduler.py and run {COMMAND} --write"
    )


def write(folder: Path = FOLDER) -> str:
    """Draw all lives anew and store them with their decisions; return how many hashes are kept.

    Raises GoldenError, and writes nothing, if decisions have changed within a DECISION_VERSION.
    """
    from tests.harness import golden_lives  # it takes Hypothesis

    summary, compared = _read_summary(folder), True
    if summary.decision_version > DECISION_VERSION:
        raise GoldenError(
            f"{SUMMARY} has the decisions of DECISION_VERSION {summary.decision_version}, the core "
            f"has {DECISION_VERSION}: a version is never lowered"
        )
    if summary.decision_version == DECISION_VERSION:
        try:
            _, lives = read(folder)
            found = differences(lives)
        except GoldenError:  # its fields have other names, or a merge left two halves
            compared, found, lives = False, [], []
        if found:
            raise GoldenError(_report(found, len(lives)))
    drawn = [
        StoredLife(life=life, decisions=[lines for _, lines in life.decide()])
        for life in golden_lives.draw_lives()
    ]
    hashes = [stored.hash for stored in drawn]
    if not compared and hashes != summary.lives:
        raise GoldenError(
            "the stored events cannot be read, and the lives drawn anew have other decisions; "
            "another release of Hypothesis draws other lives. Otherwise raise DECISION_VERSION, "
            "or make two changes: of fields, and of decisions"
        )
    store(drawn, folder)
    kept = len([each for each in hashes if each in summary.lives])
    return f"{len(drawn)} lives written, {kept} with the same hash as before"


def store(lives: Sequence[StoredLife], folder: Path) -> None:
    """Write lives with their decisions, and the summary."""
    summary = Summary(decision_version=DECISION_VERSION, lives=[each.hash for each in lives])
    (folder / LIVES).write_bytes(lzma.compress(msgspec.msgpack.encode(lives), preset=9))
    (folder / SUMMARY).write_bytes(msgspec.json.format(msgspec.json.encode(summary)) + b"\n")


def show(name: str, folder: Path = FOLDER) -> Iterator[str]:
    """Yield the events of a life and its present decisions."""
    _, lives = read(folder)
    chosen = [stored.life for stored in lives if stored.life.name == name]
    if not chosen:
        raise GoldenError(f"there is no life {name!r}; {SUMMARY} names all")
    for number, (event, lines) in enumerate(chosen[0].decide(), 1):
        yield f"{number}. {event}"
        yield from (f"    {line}" for line in lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=COMMAND, description="Compare the decisions of the core with the stored ones."
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--write", action="store_true", help="draw the lives anew, store decisions")
    mode.add_argument("--show", metavar="LIFE", help="print the events and decisions of a life")
    options = parser.parse_args(arguments)
    try:
        if options.show:
            print(*show(options.show), sep="\n")
        elif options.write:
            print(write())
        else:
            print(metasched.core.scheduler.__file__)
            print(compare())
    except GoldenError as error:
        print(f"golden decisions: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
