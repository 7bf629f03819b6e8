"""Dependencies between jobs, with the syntax of `sbatch --dependency`. Pure.

`afterok:12:13,afterany:14` requires all of its terms, `afterok:12?afterany:14` any of them.
"""

# `metasched submit` imports this module: no slow imports at the top.

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from metasched.errors import ParseError, quote_for_error
from metasched.model.arrays import parse_task_selector

DEPENDENCY_TYPES = ("after", "afterany", "afterok", "afternotok", "aftercorr")
SINGLETON = "singleton"
_SYNTAX_HINT = "write it as afterok:12:13,afterany:14_3, with ? instead of , for any of them"
_MAX_TERMS = 1000
MAX_DEPENDENCY = 65_536  # characters; more than 1,000 of the longest terms have
_MAX_DELAY_MINUTES = 10 * 366 * 24 * 60


@dataclass(frozen=True, order=True)
class DependencyTarget:
    """The job or task that a term refers to."""

    job: int
    index: int | None = None  # of the task; None: the whole job

    def __str__(self) -> str:
        return str(self.job) if self.index is None else f"{self.job}_{self.index}"


@dataclass(frozen=True)
class DependencyTerm:
    """A condition on a target."""

    dependency_type: str  # of DEPENDENCY_TYPES, or SINGLETON
    target: DependencyTarget | None = None  # None for `singleton`
    delay: float = 0.0  # seconds after the start of the target; for `after`

    def __str__(self) -> str:
        if self.target is None:
            return self.dependency_type
        delay_text = f"+{self.delay / 60:g}" if self.delay else ""
        return f"{self.dependency_type}:{self.target}{delay_text}"


@dataclass(frozen=True)
class Dependency:
    """A conjunction or disjunction of terms."""

    terms: tuple[DependencyTerm, ...]
    any_term: bool = False  # True: any satisfied term is enough

    @property
    def targets(self) -> list[DependencyTarget]:
        """Distinct targets, in the order of the terms."""
        return list(dict.fromkeys(term.target for term in self.terms if term.target is not None))


@lru_cache(maxsize=64)
def parse_dependency(text: str) -> Dependency:
    """Parse a dependency. Raises ParseError if it is not valid."""
    _check_size(text)
    any_of = "?" in text
    if any_of and "," in text:
        raise ParseError(f"both , and ? in {quote_for_error(text)}", "use one of them")
    terms = [
        term
        for part in text.strip().split("?" if any_of else ",")
        for term in _parse_terms(part.strip(), text)
    ]
    if len(terms) > _MAX_TERMS:
        raise _too_many()
    return Dependency(tuple(dict.fromkeys(terms)), any_of)


def _check_size(text: str) -> None:
    """Raise ParseError if a text is too long, before it is split: it may have megabytes."""
    if len(text) > MAX_DEPENDENCY:
        raise ParseError(
            f"a dependency of {len(text)} characters, at most {MAX_DEPENDENCY}",
            "wait for fewer jobs",
        )
    if count_terms(text) > _MAX_TERMS:
        raise _too_many()


def _too_many() -> ParseError:
    return ParseError(f"more than {_MAX_TERMS} jobs to wait for", "wait for fewer")


def count_terms(text: str) -> int:
    """Return how many terms a dependency has, without parsing it; one may be missing."""
    return max(text.count(":"), text.count(",") + 1, text.count("?") + 1)


def _parse_terms(part: str, text: str) -> list[DependencyTerm]:
    dependency_type, colon, jobs = part.partition(":")
    dependency_type = dependency_type.lower()
    if dependency_type == SINGLETON and not colon:
        return [DependencyTerm(dependency_type)]
    if dependency_type not in DEPENDENCY_TYPES:
        supported = ", ".join((*DEPENDENCY_TYPES, SINGLETON))
        raise ParseError(
            f"{quote_for_error(dependency_type)} in {quote_for_error(text)} is no dependency",
            f"there are {supported}",
        )
    return [_parse_term(dependency_type, target_text, text) for target_text in jobs.split(":")]


def _parse_term(dependency_type: str, target_text: str, text: str) -> DependencyTerm:
    target_text, plus, minutes = target_text.partition("+")
    delay = 0.0
    if plus:
        if dependency_type != "after" or not (
            minutes.isascii() and minutes.isdecimal() and len(minutes) < 9
        ):
            term = quote_for_error(target_text + plus + minutes)
            problem = f"{term} in {quote_for_error(text)} is no delay"
            raise ParseError(problem, "write after:12+5, for minutes after its start")
        delay = 60.0 * min(int(minutes), _MAX_DELAY_MINUTES)
    try:
        job, indices = parse_task_selector(target_text)
    except ParseError:
        indices, job = None, 0
    if job < 1 or (indices is not None and len(indices) != 1):
        raise ParseError(
            f"{quote_for_error(target_text)} in {quote_for_error(text)} is no job to wait for",
            _SYNTAX_HINT,
        )
    return DependencyTerm(
        dependency_type, DependencyTarget(job, None if indices is None else indices[0]), delay
    )
