"""Advance reservations of processors of one Slurm cluster: Slurm chooses the cores itself.

Slurm reserves cores, with all their processors. It is told how many, and takes them on one node if
it can: lists of nodes with a number for each are gone from 24.11 on. Slurm 22.05, measured: cores
are taken round those of others' windows and of jobs that may still run then; they are never
changed, so that what replaces a reservation is made beside it, under another name, and jobs that
wait go over to it; one in which jobs wait or run cannot be deleted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from metasched.adapters.errors import Refused, Unreachable
from metasched.adapters.slurm import listing as text
from metasched.adapters.slurm import reservation_listing as windows
from metasched.adapters.slurm.node_reservations import (
    Reservations,
    checked,
    in_use,
    members,
    moment,
)
from metasched.adapters.slurm.reservation_listing import Kept, first_name
from metasched.model.reservation import id_of
from metasched.model.survey import Survey, Window

_MOVES = 10  # reservations that are moved at the most to make room for one


class CoreReservations(Reservations):
    """Those of one cluster, each so many cores of the default partition."""

    def survey(
        self, jobs: Iterable[text.QueueLine], places: Sequence[text.NodeLine], taken: float
    ) -> Survey:
        kept, cores = self._commands.reservations(), self._commands.cores()
        within = {one.id for one in self._commands.reserved_jobs()}
        up = [name for name, is_up in members(places).items() if is_up and name in cores]
        pools = (windows.pool(up, cores, jobs, kept, within, taken),) if up else ()
        return Survey(taken, (), windows.held(kept, self._instance), pools)

    def beside(
        self, jobs: Sequence[text.QueueLine], places: Sequence[text.NodeLine], taken: float
    ) -> Sequence[text.NodeLine]:
        if not any("reserved" in place.state.lower() for place in places):
            return places
        kept, cores = self._commands.reservations(), self._commands.cores()
        within = {one.id: one.reservation for one in self._commands.reserved_jobs()}
        return windows.beside(places, cores, jobs, kept, within, taken)

    def reserve(self, window: Window) -> None:
        """Have it made once, on nodes that are up; what was made besides is deleted."""
        places = self._commands.nodes()
        if any("unknown" in place.state.lower() for place in places):
            raise Unreachable("the controller has not heard from all of its nodes as yet")
        up = {name for name, is_up in members(places).items() if is_up}
        kept = self._commands.reservations()
        known = _named(kept, window.name)
        good = [one.name for one in known if one.cores == window.size and up.issuperset(one.nodes)]
        if len(known) > 1 and not good:
            self._replaced(known[0].name, known[-1].name)
            return self.reserve(window)
        name = good[0] if good else self._fitted(window, kept)
        for one in known:
            if one.name != name:
                self._replaced(one.name, name)
        return None

    def unreserve(self, name: str) -> None:
        for one in _named(self._commands.reservations(), name):
            super().unreserve(one.name)

    def find(self, name: str) -> str:
        """Refused, to be tried again, if there is none."""
        found = _named(self._commands.reservations(), name)
        if not found:
            raise Refused(f"no reservation {name}", again=True)
        return found[-1].name

    def _fitted(self, window: Window, kept: Sequence[Kept]) -> str:
        """Make a new one, and room for it by moving ours that have not begun; its name.

        What Slurm chose for these may be in the way although there are cores enough.
        """
        now = time.time()
        others = [
            one
            for one in sorted(kept, key=lambda one: one.start)
            if id_of(first_name(one.name), self._instance) is not None
            and first_name(one.name) != window.name
            and now < one.start < window.end
            and window.start < one.end
        ]
        refusal = Refused("")
        for one in (None, *others[:_MOVES]):
            try:
                if one is not None:
                    self._move(one, kept)
                return self._made(window, kept)
            except Refused as error:
                refusal = error
        raise refusal

    def _move(self, one: Kept, kept: Iterable[Kept]) -> None:
        """Have other cores for one. Refused if there are none."""
        name = first_name(one.name)
        same = [other.name for other in _named(kept, name)]
        if len(same) > 1:  # an earlier call has not come to its end
            new = same[-1]
        else:
            window = Window(name, one.users, one.start, one.end, (), one.cores)
            new = self._made(window, kept)
        self._replaced(same[0], new)

    def _made(self, window: Window, kept: Iterable[Kept]) -> str:
        """The name of a new one. Refused if it cannot be had."""
        known = [one.name for one in _named(kept, window.name)]
        name = windows.other_name(known[0]) if known else window.name
        said = ""
        for on in (("NodeCnt=1",), ()):
            said = self._commands.change(
                *("create", "reservation", f"ReservationName={name}", f"Users={window.user}"),
                *(f"StartTime={moment(window.start)}", f"EndTime={moment(window.end)}"),
                *(f"CoreCnt={window.size}", *on, "Flags=STATIC_ALLOC"),
            )
            if not said:
                break
        if "CoreCnt" in said:
            raise Refused('its SelectType reserves no cores; write reservation_unit = "node"')
        if "Duplicate" in said:  # an earlier call of ours has arrived after all
            raise Unreachable(f"{name}: {said}")
        checked(said)
        return name

    def _replaced(self, old: str, new: str) -> None:
        """Delete it; what waits in it goes over to the new one, what runs in it is let run."""
        inside = [one for one in self._commands.reserved_jobs() if one.reservation == old]
        waiting = [one.id.partition("_")[0] for one in inside if one.state == "PENDING"]
        for job in dict.fromkeys(waiting):
            self._commands.change("update", f"JobId={job}", f"ReservationName={new}")
        said = self._commands.change("delete", f"ReservationName={old}")
        if in_use(said):
            raise Unreachable(f"{old}: {said}")
        checked(said)


def _named(kept: Iterable[Kept], name: str) -> list[Kept]:
    """The one of that name, and what replaces it."""
    return [one for one in kept if first_name(one.name) == name]
