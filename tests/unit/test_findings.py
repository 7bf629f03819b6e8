"""The table of findings: its document, and the ids that the checks use."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from metasched.daemon.doctor import findings
from metasched.daemon.doctor.check_runs import Check, run_side_by_side
from metasched.daemon.doctor.findings import KINDS, Finding, found, from_error, passed

ROOT = Path(__file__).parents[2]


def test_the_document_has_every_finding() -> None:
    page = (ROOT / "docs/admin/findings.md").read_text()
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in page.splitlines()
        if line.startswith("| `")
    ]
    assert rows == [
        (f"`{kind.id}`", kind.component, kind.severity, kind.meaning, kind.remedy)
        for kind in KINDS.values()
    ]


def test_every_kind_is_found_somewhere_and_no_other() -> None:
    folder = Path(findings.__file__).parent
    code = "".join(path.read_text() for path in folder.glob("*.py") if path.name != "findings.py")
    used = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', code))
    assert set(KINDS) - used == set()


def test_what_is_printed_of_a_finding() -> None:
    assert found("job-unknown", "job 3", "unknown on a").as_json() == {
        "id": "job-unknown",
        "component": "daemon",
        "check": "job 3",
        "severity": "error",
        "ok": False,
        "text": "unknown on a",
        "mend": "metasched resolve JOB lost, or ran",
    }
    row = passed("database", "ms.db, 3 KiB").as_json()
    assert (row["id"], row["severity"], row["ok"], row["mend"]) == (None, "ok", True, "")
    assert found("licence-outside", "licence x", "1 used").ok
    error = from_error("config-invalid", "configuration", 'no key "a", f; b; add it')
    assert (error.text, error.fix) == ('no key "a", f; b', "add it")
    assert from_error("config-invalid", "configuration", "broken").text == "broken"


def test_a_check_that_hangs_or_fails_hides_no_other() -> None:
    release = threading.Event()

    def hangs() -> Iterator[Finding]:
        yield passed("slow", "its first result")
        release.wait()
        yield passed("slow", "too late")

    def fails() -> Iterator[Finding]:
        yield passed("broken", "its first result")
        raise ZeroDivisionError("a defect")

    checks = [
        Check("slow", hangs),
        Check("broken", fails),
        Check("good", lambda: [passed("good", "fine")]),
    ]
    started = time.monotonic()
    try:
        results = run_side_by_side(checks, 0.5)
    finally:
        release.set()
    assert time.monotonic() - started < 30
    assert [(f.check, f.kind.id if f.kind else "", f.text) for f in results] == [
        ("slow", "", "its first result"),
        ("slow", "check-timeout", "no result within 0.5 s"),
        ("broken", "", "its first result"),
        ("broken", "check-failed", "ZeroDivisionError: a defect"),
        ("good", "", "fine"),
    ]
