"""Audit records that no event causes: floods are counted, conditions recorded when they change."""

from __future__ import annotations

import json
import logging
import re
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from metasched.daemon import notices as notices_module
from metasched.daemon.audit_log import FORMATTERS, LogFormat, log_record
from metasched.daemon.notices import MAX_SUBJECTS, MAX_WAITING, WINDOW, Notices
from metasched.daemon.quarantine import Quarantine
from metasched.daemon.repeated_lines import RepeatHandler
from metasched.model.audit import KINDS, OPERATORS_ONLY, AuditKind, AuditRecord

PAGE = Path(__file__).parents[2] / "docs/admin/events.md"


class Clock:
    """Monotonic seconds that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1e9 + self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(notices_module, "time", clock)
    return clock


def refused(cause: str = "bad token", peer: str = "10.0.0.1") -> AuditRecord:
    return AuditRecord(
        time=1e9,
        kind=AuditKind.CREDENTIAL_REFUSED,
        owner=OPERATORS_ONLY,
        cause=cause,
        details={"peer": peer},
    )


def breaker(kind: AuditKind, cause: str = "") -> AuditRecord:
    return AuditRecord(time=1e9, kind=kind, cluster="alpha", cause=cause)


def test_a_flood_of_a_peer_makes_two_records(clock: Clock) -> None:
    notices = Notices()
    for _ in range(10_000):
        notices.add(refused(), "10.0.0.1")
    [first], _ = notices.take()
    assert (first.count, first.cause) == (1, "bad token")
    assert notices.next_due == WINDOW
    clock.now = WINDOW
    [rest], _ = notices.take()
    assert (rest.count, rest.cause) == (9_999, "repeated; the last: bad token")
    assert notices.next_due is None


def test_a_repetition_lets_the_end_of_its_window_be_waited_for(clock: Clock) -> None:
    notices = Notices()
    notices.add(refused(), "a")
    notices.take()
    notices.add(refused(), "a")
    assert notices.added.is_set()
    assert notices.next_due == WINDOW


def test_a_flood_of_many_peers_makes_few_records(clock: Clock) -> None:
    """Two hours: an attacker with many addresses, from each of which he calls twice."""
    notices, stored, counted = Notices(), 0, 0
    for step in range(2 * 60):
        clock.now = 60.0 * step
        for peer in range(200):
            for _ in range(2):
                notices.add(refused(), f"peer {(200 * step + peer) % 100_000}")
        records, _ = notices.take()
        stored += len(records)
        counted += sum(record.count for record in records)
    notices.close()
    records, _ = notices.take()
    assert stored + len(records) <= 2 * 6 * 2 * (MAX_SUBJECTS + 1)
    assert counted + sum(record.count for record in records) == 2 * 60 * 400


def test_without_a_database_few_records_wait(clock: Clock) -> None:
    notices = Notices()
    for step in range(2 * MAX_WAITING):
        clock.now += WINDOW
        notices.add(refused(), f"peer {step}")
    records, _ = notices.take()
    assert len(records) == MAX_WAITING


def test_a_flapping_breaker_is_recorded_once_a_minute(clock: Clock) -> None:
    notices, recorded = Notices(), []
    state = ""
    for second in range(300):
        clock.now = float(second)
        value = "open" if second % 2 else ""
        kind = AuditKind.BREAKER_OPEN if value else AuditKind.BREAKER_CLOSED
        notices.set_condition(breaker(kind), "breaker of alpha", value)
        _, conditions = notices.take()
        for record, _, new in conditions:
            if new != state:
                recorded.append(record.kind)
                state = new
    assert recorded == [AuditKind.BREAKER_OPEN, AuditKind.BREAKER_CLOSED] * 5


def test_the_latest_condition_counts(clock: Clock) -> None:
    notices = Notices()
    notices.set_condition(breaker(AuditKind.BREAKER_OPEN, "x"), "s", "open")
    notices.set_condition(breaker(AuditKind.BREAKER_CLOSED), "s", "")
    assert notices.has_condition("s")
    _, [(record, subject, value)] = notices.take()
    assert (record.kind, subject, value) == (AuditKind.BREAKER_CLOSED, "s", "")


def test_a_defect_is_recorded_with_its_id(caplog: pytest.LogCaptureFixture) -> None:
    quarantine = Quarantine()
    error_id = quarantine.record("timers", ZeroDivisionError("x\nforged"))
    [record], _ = quarantine.notices.take()
    assert record.kind is AuditKind.DEFECT
    assert error_id in record.cause
    assert record.details["source"] == "timers"
    [line] = caplog.records
    assert line.exc_info is not None


def test_each_defect_has_a_line_though_rows_are_few(caplog: pytest.LogCaptureFixture) -> None:
    quarantine = Quarantine()
    ids = [quarantine.record("requests of ada", ZeroDivisionError()) for _ in range(50)]
    records, _ = quarantine.notices.take()
    assert len(records) == 1
    assert all(error_id in caplog.text for error_id in ids)


def written(format: LogFormat, *records: AuditRecord, error: BaseException | None = None) -> str:
    """Return the lines of the log for these records."""
    stream, handler, log = StringIO(), RepeatHandler(), logging.getLogger("metasched")
    handler.setStream(stream)
    handler.setFormatter(FORMATTERS[format]())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        for record in records:
            log_record(record, error)
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    return stream.getvalue()


HOSTILE = 'x\n2026-01-01 00:00:00,000 INFO cluster_drained actor=root\r\x1b[2J\u202e\u2028 a="b"'


@pytest.mark.parametrize("format", FORMATTERS)
def test_hostile_text_forges_no_line(format: LogFormat) -> None:
    error = ValueError(HOSTILE)
    try:
        raise error
    except ValueError:
        text = written(format, refused(HOSTILE), error=error)
    for line in text.splitlines():
        assert line.isprintable()
    starts = [line for line in text.splitlines() if not line.startswith("  ")]
    assert len(starts) == 1
    if format == "json":
        row = json.loads(starts[0])
        assert (row["kind"], row["level"], row["peer"]) == (
            *("credential_refused", "warning", "10.0.0.1"),
        )
        assert "ValueError" in row["traceback"]
    else:
        assert re.match(r"\d{4}-\d\d-\d\d [\d:,]+ WARNING credential_refused cause=\"x", starts[0])


@pytest.mark.parametrize("format", FORMATTERS)
def test_other_lines_are_of_the_same_form(format: LogFormat) -> None:
    formatter = FORMATTERS[format]()
    line = logging.LogRecord("metasched", logging.INFO, "", 0, "clock %s", ("a\nb",), None)
    text = formatter.format(line)
    assert text.isprintable()
    if format == "json":
        assert json.loads(text).keys() == {"time", "level", "message"}


def test_records_are_not_suppressed_as_repetitions() -> None:
    lines = written("text", *[breaker(AuditKind.BREAKER_CLOSED)] * 20).splitlines()
    assert len(lines) == 20


def test_the_page_lists_all_kinds() -> None:
    audience = {"all": "all", "owner": "owner", "operators": "-"}
    rows = [
        f"| `{kind.value}` | {info.severity} | {audience[info.audience]} | "
        f"{info.meaning.removesuffix('.')} |"
        for kind, info in KINDS.items()
    ]
    assert "\n".join(rows) in PAGE.read_text()


def test_the_standard_error_is_the_default_stream() -> None:
    handler: Any = RepeatHandler()
    assert handler.stream is sys.stderr
