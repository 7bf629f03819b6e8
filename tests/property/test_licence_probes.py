"""Any output of a licence server: no traceback, and no count that the output does not contain."""

from __future__ import annotations

import contextlib
import json
import re

from hypothesis import example, given
from hypothesis import strategies as st

from metasched.licence_servers import command, flexlm
from metasched.licence_servers.base import (
    Feature,
    LicenceServerError,
    LicenceUse,
    Trouble,
    UsageReport,
)
from metasched.licence_servers.matching import LeasedTokens, count_outside, job_hosts
from metasched.model.host_lists import MAX_HOSTS

NOW = 1_773_135_000.0

names = st.sampled_from(["solver", "viewer", "a-b.c", "", "x y", "x:", "ü"])
numbers = st.one_of(st.integers(0, 20), st.integers(-5, 10**12))
days = st.sampled_from(["Tue 3/10 8:15", "3/10 8:15", "Di 10.3", "Fri 2/29/2024 0:00", "9/9 9:99"])
lines = st.one_of(
    st.builds(
        "Users of {}:  (Total of {} licenses issued;  Total of {} licenses in use)".format,
        names,
        numbers,
        numbers,
    ),
    st.builds("Users of {}:  (Uncounted, node-locked)".format, names),
    st.builds("Users of {}: (Error: {} licenses, unsupported)".format, names, numbers),
    st.builds(
        "    {} {} {} (v{}) (lic1/27000 {}), start {}, {} licenses (linger: {})".format,
        names,
        names,
        names,
        names,
        numbers,
        days,
        numbers,
        numbers,
    ),
    st.builds("    {} n1 (v1) (lic1/27000 1), start {}".format, names, days),
    st.builds("    u h d (v1) (a/1 1) queued for {} licenses".format, numbers),
    st.builds("    {} RESERVATIONs for USER {} (a/1)".format, numbers, names),
    st.builds('  "{}" v1, vendor: v, expiry: {}-jan-{}'.format, names, numbers, numbers),
    st.builds("License server status: 27000@{}".format, names),
    st.builds("Flexible License Manager status on Tue {}".format, days),
    st.sampled_from(
        ["lic1: license server DOWN", "Vendor daemon status (on a):", "  v: UP v11", "\t", ""]
    ),
    st.text(max_size=20),
)


@st.composite
def answers(draw: st.DrawFn) -> str:
    """Draw lines in any order, truncated anywhere, with some characters changed."""
    text = "\n".join(draw(st.lists(lines, max_size=12)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.text(max_size=3)) + text[at + draw(st.integers(0, 5)) :]
    return text[: draw(st.integers(0, len(text) + 1))]


def understood(answer: str) -> UsageReport | None:
    try:
        return flexlm.parse_lmstat(answer, NOW)
    except LicenceServerError:
        return None


@given(answers())
@example("Users of x:  (Total of 999999999 licenses issued;  Total of 1 license in use)\n" * 5)
def test_every_count_stands_in_the_answer(answer: str) -> None:
    report = understood(answer)
    if report is None:
        return
    numbers = [int(number) for number in re.findall("[0-9]{1,9}", answer)]
    for feature in report.features:
        counts = (feature.issued or 0, feature.used, feature.reserved, feature.queued)
        assert all(0 <= count <= sum(numbers) + len(feature.uses or ()) for count in counts)
        if answer.count("Users of ") == 1 and feature.issued:
            assert {feature.issued, feature.used} <= set(numbers)
    for trouble in report.troubles:
        assert trouble.line <= len(answer.splitlines())


@given(answers())
def test_a_cut_answer_never_frees_a_token(answer: str) -> None:
    """A truncated answer can only make fewer tokens free."""
    whole = understood(answer)
    for end in (len(answer) // 2, len(answer) * 9 // 10):
        part = understood(answer[:end])
        if part is None or whole is None:
            continue
        for feature in part.features:
            all_of_it = whole.feature(feature.name)
            if all_of_it is None or all_of_it.issued is None or feature.issued is None:
                continue
            assert feature.issued - feature.used <= max(all_of_it.issued, feature.issued)
            if feature.issued == all_of_it.issued and feature.used == all_of_it.used:
                leased = [LeasedTokens("solver", None, 0.0, 3)]
                assert count_outside(feature, leased) >= count_outside(all_of_it, leased)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["licences", "name", "total", "used", "uses", "user", "observed"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.one_of(st.text(), json_values.map(repr), json_values.map(json.dumps)))
def test_any_json_is_read_or_refused(answer: str) -> None:
    with contextlib.suppress(LicenceServerError):
        command.parse_report(answer)


@given(st.text())
def test_a_message_is_one_printable_line(text: str) -> None:
    assert str(LicenceServerError(text)).isprintable()
    assert str(Trouble(1, text)).isprintable()


@given(st.text(max_size=40) | st.from_regex(r"[a-z,]*(\[[0-9,-]{0,9}\][a-z,]?){0,3}"))
def test_any_list_of_hosts_is_read_or_refused(nodes: str) -> None:
    hosts = job_hosts(nodes)
    assert hosts is None or 0 < len(hosts) <= MAX_HOSTS


users = st.sampled_from(["ada", "bob"])
hosts = st.sampled_from(["n1", "n2", "n3"])


@given(
    st.lists(
        st.builds(LicenceUse, users, hosts, st.integers(1, 4), st.sampled_from([0.0, 500.0, None]))
    ),
    st.lists(
        st.builds(
            LeasedTokens,
            users,
            st.none() | st.frozensets(hosts, min_size=1),
            st.sampled_from([0.0, 400.0, 900.0]),
            st.integers(1, 4),
        ),
        max_size=6,
    ),
    st.integers(0, 5),
)
def test_nothing_counts_twice_and_nothing_is_lost(
    uses: list[LicenceUse], held: list[LeasedTokens], extra: int
) -> None:
    used = sum(use.count for use in uses) + extra
    remaining = count_outside(Feature("x", None, used, tuple(uses)), held)
    matched = used - remaining
    assert 0 <= matched <= sum(tokens.count for tokens in held)
    assert remaining >= extra
    outside = sum(u.count for u in uses if not any(tokens.may_match(u) for tokens in held))
    assert remaining >= outside + extra
    for user in ("ada", "bob"):  # tokens are never attributed to another user
        alone = [tokens for tokens in held if tokens.user == user]
        own = [use for use in uses if use.user == user]
        assert used - count_outside(Feature("x", None, used, tuple(uses)), alone) <= sum(
            use.count for use in own
        )
