"""Group commit: requests and events that arrive together are stored by a single commit.

Each steps the core when it arrives, and its rows join the open transaction of the ledger. The loop
commits in its next iteration, so no request waits for others to arrive. While it commits, requests
wait in their sockets; they make up the next group. A caller goes on after the commit of its group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from metasched.core.events import Outcome

# A group that has more is committed at once, which bounds the time of a commit.
MAX_MEMBERS = 64
MAX_TASKS = 1000  # changed tasks
MAX_TEXT = 1 << 20  # characters of scripts and environments


@dataclass(frozen=True)
class _Member:
    outcomes: Sequence[Outcome]
    stored: asyncio.Future[None]  # StorageFailed if it is not


class CommitGroup:
    """The members of the open transaction."""

    def __init__(
        self, commit: Callable[[], None], on_stored: Callable[[Sequence[Outcome]], None]
    ) -> None:
        """`commit` raises StorageFailed; `on_stored` is called with the outcomes of each member."""
        self._commit, self._on_stored = commit, on_stored
        self._members: list[_Member] = []
        self._tasks = self._text = 0

    def add(self, outcomes: Sequence[Outcome], text: int) -> asyncio.Future[None]:
        """Add the rows of the open transaction; return a future that is done after its commit.

        `text` is the number of characters of scripts and environments.
        """
        loop = asyncio.get_running_loop()
        member = _Member(outcomes, loop.create_future())
        self._members.append(member)
        self._tasks += sum(len(outcome.tasks) for outcome in outcomes)
        self._text += text
        if len(self._members) >= MAX_MEMBERS or self._tasks >= MAX_TASKS or self._text >= MAX_TEXT:
            self.close()
        elif len(self._members) == 1:
            loop.call_soon(self.close)
        return member.stored

    def close(self) -> None:
        """Commit; then start the actions of all members, and let their callers go on."""
        members, self._members, self._tasks, self._text = self._members, [], 0, 0
        if not members:
            return
        failure: Exception | None = None
        try:
            self._commit()
        except Exception as error:
            failure = error
        for member in members:
            cause = failure
            if cause is None:
                try:
                    self._on_stored(member.outcomes)
                except Exception as error:  # a defect; the others go on
                    cause = error
            if member.stored.done():  # its caller was cancelled
                continue
            if cause is None:
                member.stored.set_result(None)
            else:
                member.stored.set_exception(cause)
