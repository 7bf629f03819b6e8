"""Which nodes each of several reservations gets, so that all have theirs throughout. Pure."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from metasched.model.survey import Span


@dataclass(frozen=True)
class Need:
    """A reservation that needs `size` nodes for [start, end).

    It would rather keep those that it `has`, and can have none of those that it `leaves`.
    """

    id: int
    start: float
    end: float
    size: int
    has: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()


def assigned(
    taken: Mapping[str, Sequence[Span]],
    needs: Iterable[Need],
    group: Callable[[str], str] = lambda node: "",
) -> dict[int, tuple[str, ...]] | None:
    """Nodes for all needs, or None if none were found; `taken` says when each node is not free.

    All nodes of one are of the same group.

    First each keeps what it has, where that is still free; if this fails all are placed anew.
    In order of their starts each takes, of the group of which it leaves the least, the nodes that
    have been taken until the latest time and are wanted again the soonest (best fit). Where nothing
    is taken in advance and there is one group this succeeds whenever the amounts allow it (Kurowski
    et al. 2011, Proposition 1); else it may fail though an assignment exists.
    """
    ordered = sorted(needs, key=lambda need: (need.start, need.id))
    kept = _placed(taken, ordered, group, keep=True)
    if kept is not None or not any(need.has for need in ordered):
        return kept
    return _placed(taken, ordered, group, keep=False)


def _placed(
    taken: Mapping[str, Sequence[Span]],
    needs: Sequence[Need],
    group: Callable[[str], str],
    keep: bool,
) -> dict[int, tuple[str, ...]] | None:
    spans = {node: sorted(when) for node, when in taken.items()}
    found: dict[int, tuple[str, ...]] = {}
    for need in needs:
        if keep and need.has:
            own = [n for n in need.has if n in spans and _gap(spans[n], need) is not None]
            found[need.id] = tuple(own)
            for node in own:
                insort(spans[node], (need.start, need.end))
    for need in needs:
        own = list(found.get(need.id, ()))
        free: dict[str, list[tuple[tuple[float, float], int, str]]] = {}
        for place, (node, when) in enumerate(spans.items()):
            allowed = node not in own and node not in need.leaves
            if allowed and (gap := _gap(when, need)) is not None:
                free.setdefault(group(node), []).append((gap, place, node))
        lacking = need.size - len(own)
        among = dict.fromkeys(group(node) for node in own) or free
        enough = [here for name in among if len(here := free.get(name, [])) >= lacking]
        if lacking and not enough:
            return None
        fewest = min(enough, key=lambda here: len(here)) if lacking else []
        for _, _, node in sorted(fewest)[:lacking]:
            own.append(node)
            insort(spans[node], (need.start, need.end))
        found[need.id] = tuple(own)
    return found


def _gap(spans: Sequence[Span], need: Need) -> tuple[float, float] | None:
    """How badly the window fits between what is taken: less is better; None: it does not."""
    before, after = inf, inf
    for start, end in spans:
        if start < need.end and need.start < end:
            return None
        if end <= need.start:
            before = min(before, need.start - end)
        else:
            after = min(after, start - need.end)
    return before, after


def in_turn(now: Mapping[int, Need], then: Mapping[int, Collection[str]]) -> list[int]:
    """The order in which reservations move to their nodes, so that none needs one still taken.

    `now` is where they are, by id. Where two would have to change places at once one of them goes
    first all the same, and its manager will say no.
    """
    left, order = dict(then), []
    while left:
        ready = [id for id in left if not _blocked(id, left, now)]
        chosen = min(ready or left)
        order.append(chosen)
        del left[chosen]
    return order


def _blocked(id: int, moving: Mapping[int, Collection[str]], now: Mapping[int, Need]) -> bool:
    mine = now[id]
    return any(
        other != id
        and set(moving[id]) & set(now[other].has)
        and now[other].start < mine.end
        and mine.start < now[other].end
        for other in moving
    )
