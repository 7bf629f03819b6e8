"""Parsing of lmstat's output. The samples follow its documented format and public outputs."""

from __future__ import annotations

import re
from calendar import timegm

import pytest

from metasched.licence_servers.base import Feature, LicenceServerError, LicenceUse, UsageReport
from metasched.licence_servers.flexlm import FlexlmOptions, parse_lmstat

NOW = float(timegm((2026, 3, 10, 9, 30, 0)))  # a Tuesday


def at(*moment: int) -> float:
    return float(timegm((*moment, 0)))


HEAD = """\
lmutil - Copyright (c) somebody. All Rights Reserved.
Flexible License Manager status on Tue 3/10/2026 09:29

[Detecting lmgrd processes...]
License server status: 27000@lic1
    License file(s) on lic1: /opt/lic/all.lic:

lic1: license server UP (MASTER) v11.19.0

Vendor daemon status (on lic1):

  orbitd: UP v11.19.0
Feature usage info:

"""
COUNTS = "(Total of 5 licenses issued;  Total of 0 licenses in use)"
BODY = """\
Users of solver:  (Total of 12 licenses issued;  Total of 7 licenses in use)

  "solver" v2026.1, vendor: orbitd, expiry: 31-dec-2026
  floating license

    ada n1.site.example /dev/pts/3 (v2026.1) (lic1/27000 101), start Tue 3/10 8:15
    bob n2 n2 (v2025.2) (lic1/27000 202), start Mon 3/9 23:59, 2 licenses (linger: 3600)
    eve ws7 :0.0 (v2026.1) (lic1/27000 303), start Wed 12/31 7:00, PID: 4711
    dan ws8 :1 (v2026.1) (lic1/27000 404) queued for 3 licenses
    2 RESERVATIONs for HOST_GROUP batch (lic1/27000)
    1 RESERVATION for USER fay (lic1/27000 9)

Users of viewer:  (Total of 1 license issued;  Total of 0 licenses in use)

"""


def only(report: UsageReport) -> Feature:
    (feature,) = report.features
    return feature


def told(*lines: str, head: str = HEAD) -> UsageReport:
    return parse_lmstat(head + "\n".join(lines) + "\n", NOW)


def test_users_reservations_and_the_queue() -> None:
    report = parse_lmstat(HEAD + BODY, NOW)
    assert report == UsageReport(
        (
            Feature(
                name="solver",
                issued=12,
                used=7,
                uses=(
                    LicenceUse("ada", "n1.site.example", 1, at(2026, 3, 10, 8, 15)),
                    LicenceUse("bob", "n2", 2, at(2026, 3, 9, 23, 59), 3600.0),
                    LicenceUse("eve", "ws7", 1, at(2025, 12, 31, 7, 0)),
                ),
                reserved=3,
                queued=3,
            ),
            Feature("viewer", 1, 0, ()),
        ),
        observed=at(2026, 3, 10, 9, 29),
    )


def test_blocks_of_one_feature_are_added_up_and_a_server_counts_once() -> None:
    other = HEAD.replace("lic1", "lic2")
    report = parse_lmstat(HEAD + BODY + other + BODY + HEAD + BODY, NOW)
    solver = report.feature("solver")
    assert solver is not None
    assert (solver.issued, solver.used, solver.reserved, solver.queued) == (24, 14, 6, 6)
    assert solver.uses is not None
    assert len(solver.uses) == 6
    (trouble,) = report.troubles
    assert "27000@lic1 is listed twice" in str(trouble)


def test_a_redundant_server_is_one_section() -> None:
    head = """License server status: 27000@a,27000@b,27000@c
a: license server UP v11.16
b: license server DOWN
c: license server UP (MASTER) v11.16
Vendor daemon status (on c):
     orbitd: UP v11.16
Feature usage info:
"""
    report = parse_lmstat(head + BODY, NOW)
    assert report.features[0].issued == 12
    assert [str(trouble) for trouble in report.troubles] == ["line 3: b: license server DOWN"]


START = "start Tue 3/10 8:15"
SINCE = at(2026, 3, 10, 8, 15)
ADA = LicenceUse("ada", "n1", 1, SINCE)


@pytest.mark.parametrize(
    ("issued", "used", "lines", "expected"),
    [
        # states of features as administrators' pages and public parsers show them; the words are
        # those of lmstat, names and figures are ours
        (5, 1, (f"ada n1 /dev/tty (v6.2) (lic1/27050 42), {START}",), {"uses": (ADA,)}),
        # tokens by the count of a checkout; requests that the server has queued hold none
        (
            78,
            10,
            (
                f"ada n1 /dev/tty (v62.6) (lic1/27050 1042), {START}, 10 licenses",
                "bob n2 /dev/tty (v62.6) (lic1/27050 125) queued for 10 licenses",
                "eve n3 /dev/tty (v62.6) (lic1/27050 126) queued for 1 license",
            ),
            {"uses": (LicenceUse("ada", "n1", 10, SINCE),), "queued": 11},
        ),
        # borrowed: the seconds of the whole loan; some vendor daemons write two figures
        (
            5,
            4,
            (
                f"ada n1 n1 (v2.0) (lic1/27000 601), {START} (linger: 14437140)",
                f"bob n2 n2 (v2.0) (lic1/27000 602), {START}, 2 licenses (linger: 432000)",
                f"eve n3 /dev/tty (v2024.0610) (lic1/7188 901), {START}  (linger: 0 / 86400)",
            ),
            {
                "uses": (
                    LicenceUse("ada", "n1", 1, SINCE, 14437140.0),
                    LicenceUse("bob", "n2", 2, SINCE, 432000.0),
                    LicenceUse("eve", "n3", 1, SINCE, 86400.0),
                )
            },
        ),
        # reserved by the options file: of a user, group, host, display, project or address
        (
            20,
            8,
            (
                "1 RESERVATION for USER ada (lic1/27000)",
                "2 RESERVATIONs for GROUP physics (lic1/27000)",
                "3 RESERVATIONs for HOST_GROUP batch nodes (lic1/27000 5)",
                "1 RESERVATION for PROJECT p1 (lic1/27000)",
                "1 RESERVATION for INTERNET 10.0.0.* (lic1/27000)",
            ),
            {"reserved": 8},
        ),
        # lmstat indents reservations by a tab, others by spaces; users of a group stand beside them
        (
            50,
            12,
            (
                "\t10 RESERVATIONs for HOST n4 (lic1.site.example/27002)",
                "\t1 RESERVATION for HOST n5 (lic1.site.example/27002)",
                "    1 RESERVATION for GROUP DED (LIC1/1713)",
                "bob n2 ab12_cd3 2017.06 (v2017.06) (lic1/27002 15480) queued for 1 license",
            ),
            {"reserved": 12, "queued": 1, "uses": ()},
        ),
        # overdraft: more in use than issued
        (2, 3, (f"ada n1 n1 (v1) (lic1/1 1), {START}, 3 licenses",), {}),
        # one of several issues has expired; the header has what is left
        (
            4,
            0,
            (
                '"x" v6.0, vendor: orbitd, expiry: 1-oct-2022',
                '"x" v6.4, vendor: orbitd, expiry: permanent(no expiration date)',
            ),
            {"issued": 4},
        ),
        # displays and users with spaces: a display may be any text; such a user has no account
        (
            3,
            3,
            (
                f"ada n1 display A 203 (v22.0) (lic1/27001 100), {START}",
                f"Eve Smith ws7 ws7 (v22.0) (lic1/27001 100), {START}",
                f"""bob n2 "U,K$`Ct`0'"C iQ)8<f(&! (v61.4) (lic1/27002 4611), {START}""",
            ),
            {
                "uses": (
                    ADA,
                    LicenceUse("Eve", "Smith", 1, SINCE),
                    LicenceUse("bob", "n2", 1, SINCE),
                )
            },
        ),
    ],
)
def test_states_of_a_feature(
    issued: int, used: int, lines: tuple[str, ...], expected: dict[str, object]
) -> None:
    plural = "" if issued == 1 else "s", "" if used == 1 else "s"
    header = (
        f"Users of x:  (Total of {issued} license{plural[0]} issued;  "
        f"Total of {used} license{plural[1]} in use)"
    )
    feature = only(told(header, "", *(f"    {line}" for line in lines)))
    assert (feature.issued, feature.used) == (issued, used)
    assert {key: getattr(feature, key) for key in expected} == expected


def test_uncounted_licences_have_users_without_a_total() -> None:
    report = told(
        "Users of PERMANENT:  (Uncounted, node-locked)",
        "",
        "Users of x:  (Uncounted, node-locked)",
        "",
        '  "x" v6.0, vendor: orbitd, expiry: 1-oct-2026',
        "  vendor_string: Y,57F1198202190D83",
        "  uncounted nodelocked license locked to NOTHING (hostid=ANY)",
        "",
        f"    ada n1 /dev/pts/22 (v5.6) (lic1/4800 1408), {START}",
    )
    assert report.features == (
        Feature("PERMANENT", None, 0, ()),
        Feature("x", None, 1, (ADA,)),
    )
    assert report.troubles == ()


@pytest.mark.parametrize(
    "reason",
    [
        "Cannot get users of x: Feature has expired. (-10,32)",
        "Cannot get users of x: License server system does not support this feature. (-18,327)",
        "Cannot get users of x: Users are queued for this feature. (-24,331)",
        "Cannot get users of x: User/host not on INCLUDE list for feature. (-39,349)",
        "Cannot get users of x: No socket connection to license server manager (-7,10015)",
        "(Error: 1 licenses, unsupported by licensed server)",
    ],
)
def test_a_feature_that_the_server_refuses_to_report_is_left_out(reason: str) -> None:
    """An expired or denied feature is never one with free tokens."""
    report = told(f"Users of x: {reason}", f"Users of y:  {COUNTS}")
    assert [feature.name for feature in report.features] == ["y"]
    assert [reason in str(trouble) for trouble in report.troubles] == [True]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("Users of x: Cannot get users of x: No such feature exists. (-5,222)", "No such feature"),
        ("Users of x:  (Error: 21 licenses, unsupported by licensed server)", "Error: 21"),
        ("Users of x:  (Total of 5 licenses issued;  Total of 1 licen", "Total of 5"),
        ("Users of x:  (Total of 5 licenses issued;  Total of 1", "Total of 5"),
        ("Users of x:  (Gesamt 5 Lizenzen; 1 Lizenz in Gebrauch)", "Gesamt"),
        ("Users of x:  (Total of -5 licenses issued;  Total of 1 license in use)", "-5"),
        ("Users of x:  (Total of ٥ licenses issued;  Total of 1 license in use)", "٥"),
        ("Users of x:  (Total of 5000000000 licenses issued;  Total of 1 license in use)", "5000"),
        ("Users of x", "no counts"),
    ],
)
def test_an_invalid_header_counts_nothing(line: str, says: str) -> None:
    row = "    ada n1 n1 (v1) (lic1/27000 1), start Tue 3/10 8:15"
    report = told("Users of y:  (Uncounted, node-locked)", row, line, row)
    assert only(report) == Feature(
        "y", None, 1, (LicenceUse("ada", "n1", 1, at(2026, 3, 10, 8, 15)),)
    )
    (trouble,) = report.troubles
    assert trouble.line == 17
    assert says in trouble.text


@pytest.mark.parametrize(
    "row",
    [
        "    ada n1 n1 (v1) (lic1/27000 1), Beginn Di 10.3 8:15",
        "    ada n1 n1 (v1) (lic1/27000 1), start Tue 3/10 8:1",
        "    ada n1 n1 (v1) (lic1/27000 1), start Tue 13/10 8:15",
        "    ada n1 n1 (v1) (lic1/27000 1), start Sat 2/30 8:15",
        "    ada n1 n1 (v1) (lic1/27000 1), start Tue 3/10/2031 8:15",  # in the future
        "    ada n1 n1 (v1) (lic1/27000 1), start Tue 3/10 8:15, 0 licenses",
        "    ada (v1) (lic1/27000 1), start Tue 3/10 8:15",
        "    ada n1 n1 (v1) (lic1/27000",
    ],
)
def test_an_invalid_user_line_matches_no_job(row: str) -> None:
    report = told("Users of x:  (Total of 5 licenses issued;  Total of 1 license in use)", row)
    assert only(report) == Feature("x", 5, 1, ())
    assert [trouble.line for trouble in report.troubles] == [16]


def test_the_year_is_that_of_the_weekday() -> None:
    block = "Users of x:  (Total of 9 licenses issued;  Total of 3 licenses in use)"
    starts = ["Wed 3/11 9:00", "Thu 3/12 9:00", "Sat 2/29 10:00"]
    rows = [f"    u{n} h h (v1) (s/1 1), start {start}" for n, start in enumerate(starts)]
    report = told(block, *rows)
    assert only(report).uses == (
        LicenceUse("u0", "h", 1, at(2026, 3, 11, 9, 0)),  # the server may be in another time zone
        LicenceUse("u1", "h", 1, at(2020, 3, 12, 9, 0)),
        LicenceUse("u2", "h", 1, at(2020, 2, 29, 10, 0)),
    )


@pytest.mark.parametrize(
    ("expiries", "issued"),
    [
        (["9-mar-2026"], 0),
        (["10-mar-2026"], 5),  # valid on its last day
        (["01-JAN-0"], 5),
        (["permanent(no expiration date)"], 5),
        (["9-mar-2026", "10-mar-2027"], 5),  # one of two has expired: the server's total holds
        (["9-mär-2026"], 5),
    ],
)
def test_expired_licences_issue_no_tokens(expiries: list[str], issued: int) -> None:
    issues = [f'  "x" v1.0, vendor: orbitd, expiry: {expiry}' for expiry in expiries]
    report = told("Users of x:  (Total of 5 licenses issued;  Total of 0 licenses in use)", *issues)
    assert only(report).issued == issued
    named = ("expired", "no date")
    assert any(w in str(t) for t in report.troubles for w in named) == (
        expiries[0].startswith("9-")
    )


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("", "not the output of lmstat"),
        ("\x00\xff garbage \x1b[31m", "not the output of lmstat"),
        ("sh: lmutil: command not found", "not the output of lmstat"),
        (
            "Error getting status: Cannot connect to license server system. (-15,570)",
            "line 1: Error getting status",
        ),
        (
            "License server status: 27000@lic1\n\n"
            'lic1: Cannot connect to license server system. (-15,578:115 "in progress")\n',
            "line 3: lic1: Cannot connect",
        ),
        (
            " License server status: 27000@lic1\n    License file(s) on lic1: /opt/all.lic:\n\n"
            "lmgrd is not running: Server node is down or not responding (-96,7)\n",
            "line 4: lmgrd is not running: Server node is down",
        ),
        (
            "License server status: 27000@lic1\n\n"
            "lmgrd is not running: License server machine is down or not responding.\n",
            "line 3: lmgrd is not running: License server machine is down",
        ),
        (
            "Vendor daemon status (on lic1):\n  orbitd: The desired vendor daemon is down. "
            "(-97,121)\nFeature usage info:\n",
            "line 2: orbitd: The desired vendor daemon is down",
        ),
        ("Users of " + "x" * 10000, "a line of 10009 characters"),
    ],
)
def test_output_without_a_licence_is_an_error(answer: str, says: str) -> None:
    with pytest.raises(LicenceServerError, match=re.escape(says)):
        parse_lmstat(answer, NOW)


def test_a_time_in_another_language_is_reported() -> None:
    report = parse_lmstat(HEAD.replace("Tue 3/10/2026 09:29", "mar. 10.3.2026 9h29") + BODY, NOW)
    assert report.observed is None
    assert "no time: 'mar. 10.3.2026 9h29'" in str(report.troubles[0])


def test_many_problems_are_summarised() -> None:
    rows = ["   x (v1) (a/1 1), start never"] * 100
    report = told("Users of x:  (Total of 5 licenses issued;  Total of 1 license in use)", *rows)
    assert len(report.troubles) == 21
    assert str(report.troubles[-1]) == "and 80 more lines"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"servers": " "}, "servers is"),
        ({"servers": "-a"}, "servers is"),
        ({"servers": "1@a", "lmutil": "./lmutil"}, "absolute path"),
    ],
)
def test_invalid_options(options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        FlexlmOptions(**options)
