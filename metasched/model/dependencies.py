"""Dependencies between jobs, in sbatch's words: what they ask, and whether it has come. Pure.

`afterok:12:13,afterany:14` asks for all of its terms, `afterok:12?afterany:14` for one of them.
"""

# Imported by every `metasched submit`: nothing slow at the top.

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

import msgspec

from metasched.errors import Unreadable, shown
from metasched.model.arrays import parse_array, parse_tasks

KINDS = ("after", "afterany", "afterok", "afternotok", "aftercorr")
SINGLETON = "singleton"
_FORM = "write it as afterok:12:13,afterany:14_3, with ? instead of , for any of them"
_MOST_TERMS = 1000
_MOST_MINUTES = 10 * 366 * 24 * 60


@dataclass(frozen=True, order=True)
class Target:
    """What a term waits for: a job, or the task `index` of it."""

    job: int
    index: int | None = None

    def __str__(self) -> str:
        return str(self.job) if self.index is None else f"{self.job}_{self.index}"


@dataclass(frozen=True)
class Term:
    """One condition; `target` is None for `singleton`, `delay` seconds after the start."""

    kind: str
    target: Target | None = None
    delay: float = 0.0

    def __str__(self) -> str:
        later = f"+{self.delay / 60:g}" if self.delay else ""
        return self.kind if self.target is None else f"{self.kind}:{self.target}{later}"


@dataclass(frozen=True)
class Dependency:
    """All of the terms must hold, or any one of them."""

    terms: tuple[Term, ...]
    any: bool = False

    @property
    def targets(self) -> list[Target]:
        """Each once, in the order in which they were named."""
        return list(dict.fromkeys(t.target for t in self.terms if t.target is not None))


@lru_cache(maxsize=64)
def parse_dependency(text: str) -> Dependency:
    """What a dependency asks for. Unreadable if it is none."""
    any_of = "?" in text
    if any_of and "," in text:
        raise Unreadable(f"both , and ? in {shown(text)}", "use one of them")
    terms = [
        term
        for part in text.strip().split("?" if any_of else ",")
        for term in _terms(part.strip(), text)
    ]
    if len(terms) > _MOST_TERMS:
        raise Unreadable(f"more than {_MOST_TERMS} jobs to wait for", "wait for fewer")
    return Dependency(tuple(dict.fromkeys(terms)), any_of)


def _terms(part: str, text: str) -> list[Term]:
    kind, colon, jobs = part.partition(":")
    kind = kind.lower()
    if kind == SINGLETON and not colon:
        return [Term(kind)]
    if kind not in KINDS:
        known = ", ".join((*KINDS, SINGLETON))
        raise Unreadable(f"{shown(kind)} in {shown(text)} is no dependency", f"there are {known}")
    return [_term(kind, word, text) for word in jobs.split(":")]


def _term(kind: str, word: str, text: str) -> Term:
    word, plus, minutes = word.partition("+")
    delay = 0.0
    if plus:
        if kind != "after" or not (minutes.isascii() and minutes.isdecimal() and len(minutes) < 9):
            what = f"{shown(word + plus + minutes)} in {shown(text)} is no delay"
            raise Unreadable(what, "write after:12+5, for minutes after its start")
        delay = 60.0 * min(int(minutes), _MOST_MINUTES)
    try:
        job, indices = parse_tasks(word)
    except Unreadable:
        indices, job = None, 0
    if job < 1 or (indices is not None and len(indices) != 1):
        raise Unreadable(f"{shown(word)} in {shown(text)} is no job to wait for", _FORM)
    return Term(kind, Target(job, None if indices is None else indices[0]), delay)


# Whether it has come.


class Prospect(Enum):
    """Of a term, or of a whole dependency."""

    WAIT = "has not come yet"
    MET = "has come"
    NEVER = "can never come"


class Fate(msgspec.Struct, frozen=True):
    """What had become of a target's tasks, as ranges; "" for none.

    `ok` and `bad` are those that had ended, with and without success; `size` counts all,
    `begun` is the last time at which one of the ended began, or ended without having begun.
    """

    target: Target
    size: int
    array: bool = False
    ok: str = ""
    bad: str = ""
    begun: float = 0.0


@dataclass
class Progress:
    """How far the tasks of one target are."""

    target: Target
    size: int
    array: bool = False
    ok: set[int] = field(default_factory=set)
    bad: set[int] = field(default_factory=set)
    begun: dict[int, float] = field(default_factory=dict)

    @classmethod
    def since(cls, fate: Fate) -> Progress:
        ok, bad = (set(parse_array(t).indices) if t else set() for t in (fate.ok, fate.bad))
        return cls(fate.target, fate.size, fate.array, ok, bad, dict.fromkeys(ok | bad, fate.begun))

    def restart(self) -> None:
        """Know as much as `since` would: of the ended only when the last of them began."""
        ended = self.ok | self.bad
        last = max((self.begun[index] for index in ended), default=0.0)
        self.begun = dict.fromkeys(ended, last)

    def tell(self, index: int, ended: bool | None, begun: float | None) -> None:
        """What became of a task: it ended well, badly or not yet (None), and began when. O(1)."""
        for kind, reached in ((self.ok, ended is True), (self.bad, ended is False)):
            kind.add(index) if reached else kind.discard(index)
        if begun is None:
            self.begun.pop(index, None)
        else:
            self.begun[index] = begun

    def judge(self, term: Term, index: int | None, now: float) -> tuple[Prospect, float | None]:
        """Whether the term has come for the task `index` (None: of no array), at `now` seconds.

        And when it will have come, where the clock alone decides that.
        """
        ended = len(self.ok) + len(self.bad) == self.size
        match term.kind:
            case "after" if len(self.begun) < self.size:
                return Prospect.WAIT, None
            case "after":
                due = max(self.begun.values()) + term.delay
                return (Prospect.MET, None) if now >= due else (Prospect.WAIT, due)
            case "afterany":
                return (Prospect.MET if ended else Prospect.WAIT), None
            case "afternotok":
                final = Prospect.MET if self.bad else Prospect.NEVER
                return (final if ended else Prospect.WAIT), None
            case "aftercorr" if index is not None and self.target.index is None and self.array:
                bad, ok = index in self.bad, index in self.ok
            case _:
                bad, ok = bool(self.bad), ended
        return (Prospect.NEVER if bad else Prospect.MET if ok else Prospect.WAIT), None

    def told(self) -> str:
        """How far it is, in words. O(1): each of many tasks may be told so."""
        if self.size == 1:
            done = "completed" if self.ok else "ended without success" if self.bad else ""
            return f"{self.target} {done or ('has begun' if self.begun else 'has not begun')}"
        bad = f", {len(self.bad)} without success" if self.bad else ""
        ended = len(self.ok) + len(self.bad)
        return f"of {self.size} tasks {len(self.begun)} have begun and {ended} ended{bad}"


def combined(prospects: Iterable[Prospect], any_of: bool) -> Prospect:
    """What the prospects on all terms come to."""
    found = set(prospects)
    decisive, otherwise = (
        (Prospect.MET, Prospect.NEVER) if any_of else (Prospect.NEVER, Prospect.MET)
    )
    if decisive in found:
        return decisive
    return Prospect.WAIT if Prospect.WAIT in found else otherwise
