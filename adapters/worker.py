"""The process that hosts one adapter: line-delimited JSON on its pipes, one call at a time.

The first line says which adapter and for which cluster; each further line is a call, answered by
one line. The process ends when its input does: it never outlives the daemon.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import structs

from metasched.adapters.base import Adapter, Order
from metasched.adapters.child_processes import die_with_parent
from metasched.adapters.claims import fenced, revoke
from metasched.adapters.errors import Refused, Unreachable
from metasched.adapters.launcher_client import Launcher
from metasched.adapters.protocol import Answer, Boot, Call, News
from metasched.adapters.registry import adapter_class
from metasched.clock import Clock
from metasched.model.cluster import Facts
from metasched.model.listing import Claim, Listing, Row
from metasched.model.survey import Window


@dataclass
class Host:
    """An adapter with the last listing that was told, so that only news travels."""

    adapter: Adapter
    _rows: dict[tuple[str, int, str], Row] = field(default_factory=dict)
    _expected: dict[tuple[str, int, str], float] = field(default_factory=dict)
    _facts: Facts | None = None
    _told: bool = False
    _broken: bool = False  # what is chained to the last submit is not to be carried out

    def answer(self, call: Call) -> Answer:
        """Carry out one call; every failure becomes an answer."""
        answer = Answer("untried") if call.chained and self._broken else self._answer(call)
        if call.call == "submit":
            self._broken = answer.again or answer.error not in ("", "refused")
        return structs.replace(answer, access=self.adapter.access)

    def _answer(self, call: Call) -> Answer:
        try:
            match call:
                case Call(call="submit", order=Order() as order):
                    return Answer(natives=self.adapter.submit(fenced(order)))
                case Call(call="withdraw"):
                    self.adapter.withdraw_all(call.withdrawals)
                    return Answer()
                case Call(call="poll"):
                    self.adapter.criticality(call.rho)
                    return self._poll(call.full)
                case Call(call="trace"):
                    return Answer(trace=self.adapter.trace(call.missing))
                case Call(call="revoke"):
                    return self._revoke(call.claims)
                case Call(call="survey"):
                    return Answer(survey=self.adapter.survey())
                case Call(call="reserve", window=Window() as window):
                    self.adapter.reserve(window)
                    return Answer()
                case Call(call="unreserve"):
                    self.adapter.unreserve(call.name)
                    return Answer()
                case _:
                    return Answer("defect", f"{call.call} came without its argument")
        except Refused as error:
            return Answer("refused", error.reason, again=error.again)
        except Unreachable as error:
            return Answer("unreachable", error.reason)
        except Exception:
            return Answer("defect", traceback.format_exc())

    def _poll(self, full: bool) -> Answer:
        """A listing during which the clock was set proves nothing: its spans are wrong."""
        clock = Clock()
        listing = self.adapter.poll()
        if by := clock.step():
            return Answer("unreachable", f"the clock was set by {by:+.0f} s meanwhile")
        return Answer(news=self._news(listing, full))

    @staticmethod
    def _revoke(claims: Sequence[Claim]) -> Answer:
        """What became of each; of one whose folder does not answer nothing is told."""
        revoked, reason = {}, ""
        for number, claim in enumerate(claims):
            try:
                revoked[number] = revoke(claim)
            except OSError as error:
                reason = str(error)
        return Answer(reason=reason, revoked=revoked)

    def _news(self, listing: Listing, full: bool) -> News:
        full = full or not self._told
        rows = {(row.tag, row.task, row.owner): row for row in listing.rows}
        expected = {key: row.expected for key, row in rows.items() if row.expected is not None}
        before = {} if full else self._expected
        news = News(
            taken=listing.taken,
            since=listing.since,
            until=listing.until,
            rows=tuple(row for key, row in rows.items() if full or self._rows.get(key) != row),
            vanished=tuple(key for key in self._rows if key not in rows),
            facts=listing.facts if full or listing.facts != self._facts else None,
            full=full,
            up_since=listing.up_since,
            expected=tuple(
                (*key, expected.get(key))
                for key in before.keys() | expected.keys()
                if before.get(key) != expected.get(key)
            ),
        )
        self._rows, self._facts, self._told = rows, listing.facts, True
        self._expected = expected
        return news


def main() -> int:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is the daemon's to act on
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # a stray print of a library must not break the protocol
    boot = msgspec.json.decode(sys.stdin.buffer.readline(), type=Boot)
    kind = adapter_class(boot.adapter)
    options = msgspec.convert(boot.options, kind.Options)
    acting = {}
    if boot.launcher:
        os.umask(0o077)  # users pass through some of its folders
        acting["launcher"] = Launcher(Path(boot.launcher), boot.cluster.name)
    host = Host(kind(boot.cluster, options, boot.instance, Path(boot.folder), **acting))
    try:
        for line in sys.stdin.buffer:
            answer = msgspec.json.encode(host.answer(msgspec.json.decode(line, type=Call)))
            try:
                answers.write(answer)
                answers.write(b"\n")
            except BrokenPipeError:  # the daemon has died; its next life looks for itself
                return 1
    finally:
        host.adapter.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
