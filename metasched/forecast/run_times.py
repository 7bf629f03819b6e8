"""The distribution of run time over limit, by user and class, learnt from ended jobs. Pure.

Users ask for far more time than their jobs need, each in his own way. The run times of a user's
last jobs predict his next jobs (Tsafrir, Etsion, Feitelson 2007, "Backfilling using
system-generated predictions"). So the narrowest group with enough samples decides: jobs of the
same user and limit, of the user, of the class, of the site.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence

MIN_SAMPLES = 5  # of a group, above the share that a job has run already; else a wider group
MAX_SAMPLES = 50  # last ended jobs of a group
MAX_SITE_SAMPLES = 1000  # last ended jobs of a class, or of the site
MAX_GROUPS = 20_000  # of users and limits; the group without new samples for longest is forgotten


class _RecentRatios:
    """The last ratios of a group, also in ascending order."""

    __slots__ = ("ascending", "recent")

    def __init__(self, size: int) -> None:
        self.recent: deque[float] = deque(maxlen=size)
        self.ascending: list[float] = []

    def add(self, ratio: float) -> None:
        """O(n), by moves in C."""
        if len(self.recent) == self.recent.maxlen:
            oldest = self.recent[0]
            del self.ascending[bisect_right(self.ascending, oldest) - 1]
        self.recent.append(ratio)
        insort(self.ascending, ratio)


class RunTimeModel:
    """Run time over limit of ended jobs, 0..1, in bounded memory.

    A ratio above 1 counts as 1: managers end a job at its limit.
    """

    def __init__(self) -> None:
        self._site = _RecentRatios(MAX_SITE_SAMPLES)
        self._classes: OrderedDict[Hashable, _RecentRatios] = OrderedDict()
        self._groups: OrderedDict[Hashable, _RecentRatios] = OrderedDict()

    def add(self, user: str, user_class: str, limit: float, run_time: float) -> None:
        """Learn from an ended job; times are seconds. Ignores jobs without a finite limit."""
        if not 0 < limit < float("inf") or not 0 <= run_time < float("inf"):
            return
        ratio = min(run_time / limit, 1.0)
        self._site.add(ratio)
        _group(self._classes, user_class, MAX_SITE_SAMPLES).add(ratio)
        if user:
            for key in (user, (user, limit)):
                _group(self._groups, key, MAX_SAMPLES).add(ratio)

    def ratio(
        self, share: float, user: str, user_class: str, limit: float, elapsed: float = 0.0
    ) -> float:
        """Return the quantile `share` (0..1) of run time over limit of a job, given its `elapsed`.

        `limit` and `elapsed` are seconds. Only ratios above elapsed / limit count. If no ended job
        ran for so long, the rest of the limit is as likely at any length. The result is 1 for a job
        past its limit. O(log n).
        """
        elapsed_ratio = min(max(elapsed / limit, 0.0), 1.0) if limit > 0 else 1.0
        for ascending in self._candidates(user, user_class, limit):
            first = bisect_right(ascending, elapsed_ratio) if elapsed > 0 else 0
            count = len(ascending) - first
            if count >= MIN_SAMPLES:
                return ascending[first + min(int(share * count), count - 1)]
        return elapsed_ratio + share * (1.0 - elapsed_ratio)

    def _candidates(self, user: str, user_class: str, limit: float) -> Iterator[Sequence[float]]:
        """Yield the ratios of ever wider groups."""
        for groups, key in (
            (self._groups, (user, limit)),
            (self._groups, user),
            (self._classes, user_class),
        ):
            if (group := groups.get(key)) is not None:
                yield group.ascending
        yield self._site.ascending


def _group(groups: OrderedDict[Hashable, _RecentRatios], key: Hashable, size: int) -> _RecentRatios:
    """Return the group of that key, new if it is missing; forget the oldest beyond the bound."""
    group = groups.get(key)
    if group is None:
        group = groups[key] = _RecentRatios(size)
        if len(groups) > MAX_GROUPS:
            groups.popitem(last=False)
    else:
        groups.move_to_end(key)
    return group
