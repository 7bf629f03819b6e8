"""For any message the launcher acts only for accounts and programs that its file permits."""

from __future__ import annotations

import json
import os
import pwd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.launcher import (
    CHECK,
    ENTER,
    HIGHEST_UID,
    LOWEST_UID,
    LauncherError,
    LauncherPolicy,
    describe,
    parse_message,
    parse_request,
)

ORDINARY = [a for a in pwd.getpwall() if LOWEST_UID <= a.pw_uid <= HIGHEST_UID and a.pw_gid]
POLICY = LauncherPolicy(
    socket="/nowhere",
    account=1,
    deny=(ORDINARY[0].pw_name,) if len(ORDINARY) > 1 else (),
    programs={
        ("alpha", "submit"): ("/bin/echo",),
        ("alpha", "cancel"): ("/bin/true",),
        ("left", "supervise"): ("/bin/sh", "supervisor.py"),
    },
    environments={"alpha": {"SLURM_CONF": "/etc/slurm.conf"}},
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
UIDS = st.sampled_from([0, 1, -1, 65534, 2**32, *(a.pw_uid for a in pwd.getpwall())])
WORDS = st.sampled_from(
    ["1", "1,2_3", "--uid=0", "-D/", "/bin/sh", "../x", "1\n", "a\0b", "", "1;x"]
)
MESSAGES = st.fixed_dictionaries(
    {
        "uid": UIDS | ANY,
        "cluster": st.sampled_from(["alpha", "left", "../alpha"]) | ANY,
        "verb": st.sampled_from(["submit", "cancel", "supervise", ENTER, CHECK, "hold"]) | ANY,
        "arguments": st.lists(WORDS | st.text(), max_size=4) | ANY,
        "directory": st.sampled_from(["/", "/tmp", ".", "", "/a\0"]) | ANY,
        "umask": st.integers(-1, 0o1000) | ANY,
    },
    optional={
        "environment": ANY,
        "gid": ANY,
        "protocol": st.sampled_from([1, 2, 3]) | ANY,
        "job": st.text() | ANY,
    },
)


@given(MESSAGES | ANY)
def test_only_permitted_requests_are_executed(message: object) -> None:
    try:
        request = parse_request(parse_message(json.dumps(message).encode()), POLICY)
    except LauncherError:
        return
    assert isinstance(message, dict)
    if request is None:
        assert message["verb"] == CHECK
        return
    assert request.owner.pw_uid == message["uid"]
    assert LOWEST_UID <= request.owner.pw_uid <= HIGHEST_UID
    assert request.owner.pw_gid != 0
    assert request.owner.pw_name not in POLICY.deny
    program = POLICY.programs.get((request.cluster, request.verb), ())
    assert request.verb == ENTER or program
    assert request.command == (*program, *message["arguments"])
    if request.verb != "submit":
        assert all(
            argument[:1].isdigit() and "\n" not in argument for argument in message["arguments"]
        )
    assert not any("\0" in argument for argument in request.command)
    assert os.path.isabs(request.directory)
    own = {"PATH", "LANG", "TZ", "HOME", "SHELL", "USER", "LOGNAME"}
    assert request.environment.keys() <= own | {"SLURM_CONF"}


@given(st.binary())
def test_invalid_bytes(body: bytes) -> None:
    with pytest.raises(LauncherError):
        parse_request(parse_message(body), POLICY)


@given(MESSAGES | st.dictionaries(st.text(), ANY))
def test_a_message_is_logged_as_bounded_printable_text(message: dict[str, object]) -> None:
    text = describe(message)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) < 4000
