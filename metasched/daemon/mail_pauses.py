"""Pauses of mails after failures: those to a recipient, and all. Pure.

A recipient is the user whom a mail concerns, or the address of an operator.
"""

from __future__ import annotations

from metasched.daemon.circuit_breaker import CircuitBreaker

FIRST_PAUSE, MAX_PAUSE = 5.0, 300.0  # seconds; a pause doubles with each failure in a row
REPORTED_AFTER = 600.0  # seconds since a failure of a recipient, if no mail is taken


class MailPauses:
    """Which mails wait, since others failed. Times are monotonic seconds.

    A failure pauses the mails to its recipient alone, since a user may choose an address that the
    program refuses. Failures of several recipients in a row pause the program.
    """

    def __init__(self) -> None:
        self.program = CircuitBreaker(FIRST_PAUSE, MAX_PAUSE)
        self._recipients: dict[str, CircuitBreaker] = {}  # with a failure, and none later taken
        # since the last mail that was taken:
        self._failed: set[str] = set()  # recipients
        self._first_failure, self._last_error = 0.0, ""

    def note_success(self, recipient: str) -> None:
        """Let all mails be tried again but those to other recipients that are paused."""
        self.program.record_success()
        self._failed.clear()
        self._recipients.pop(recipient, None)

    def note_failure(
        self, recipient: str, error: str, now: float, monotonic: float, *, blames_address: bool
    ) -> None:
        """Pause the mails to a recipient, and all if several failed. `now`: epoch seconds.

        `blames_address`: the program works, but knows no such address.
        """
        self._forget(monotonic)
        breaker = self._recipients.setdefault(recipient, CircuitBreaker(FIRST_PAUSE, MAX_PAUSE))
        breaker.record_failure(error, now, monotonic)
        if blames_address:
            return
        if not self._failed:
            self._first_failure = monotonic
        self._failed.add(recipient)
        self._last_error = error
        if len(self._failed) > 1:
            self.program.record_failure(error, now, monotonic)

    def _forget(self, monotonic: float) -> None:
        """Forget recipients with no mail for long since their pause: their number is bounded."""
        self._recipients = {
            recipient: breaker
            for recipient, breaker in self._recipients.items()
            if breaker.open_until + MAX_PAUSE > monotonic
        }

    def seconds_until_tried(self, monotonic: float) -> float:
        """Return the seconds for which no mail is tried."""
        return max(self.program.open_until - monotonic, 0.0)

    def program_error(self, monotonic: float) -> str:
        """Return why mails are not taken; "" if they are, or if a recipient may be the cause."""
        is_old = monotonic - self._first_failure >= REPORTED_AFTER
        if len(self._failed) > 1 or (self._failed and is_old):
            return self._last_error
        return ""

    def paused(self, monotonic: float) -> list[str]:
        """Return the recipients whose mails wait."""
        return [
            recipient
            for recipient, breaker in self._recipients.items()
            if breaker.open_until > monotonic
        ]

    def next_end(self, monotonic: float) -> float | None:
        """Return the seconds until the next pause of a recipient ends; None: there is none."""
        ends = (self._recipients[recipient].open_until for recipient in self.paused(monotonic))
        return min((end - monotonic for end in ends), default=None)
