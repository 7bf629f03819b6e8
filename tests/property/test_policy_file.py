"""What `policy check` accepts, the daemon reads, and the other way round."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.cli.policy import check
from metasched.config.policy_words import describe_policy, differences, values_of
from metasched.config.reading import load_settings
from metasched.config.settings import ConfigError
from metasched.policies.policy import Policy
from tests.harness.examples import examples

CONFIG = '[policy]\nfile = "policy.toml"\n[[cluster]]\nname = "a"\nadapter = "local"\ncpus = 1\n'
numbers = st.one_of(
    st.integers(-2, 40),
    st.sampled_from(["0.5", "nan", "inf", "-1e-3", "1e9", "9" * 25, '"10m"', '"many"', "true"]),
)
keys = st.sampled_from(
    ("max_priority", "window", "tolerance", "pull_after", "patience", "age", "seed", "agee")
)
words = st.sampled_from(
    ['load = "paper"', 'load = "late"', 'send = "late"', "pull = false", "pull = 1", "pull = true"]
)
tables = st.builds(
    lambda name, entries: f"[{name}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()),
    st.sampled_from(["weights", "classes", "self_optimising.base", "self_optimising.weight-user"]),
    st.dictionaries(
        st.sampled_from(["user", "deadline", "licence", "regular", "gold", "history", "delta"]),
        numbers,
        max_size=3,
    ),
)
texts = st.builds(
    lambda values, choices, parts: "\n".join(
        [*(f"{key} = {value}" for key, value in values.items()), *choices, *parts]
    ),
    st.dictionaries(keys, numbers, max_size=3),
    st.lists(words, max_size=2),
    st.lists(tables, max_size=2),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "metasched.toml").write_text(CONFIG)
    return folder


@examples(300)
@given(text=st.one_of(texts, st.text(max_size=40)))
def test_check_accepts_what_the_daemon_reads(folder: Path, text: str) -> None:
    path = folder / "policy.toml"
    path.write_text(text, encoding="utf-8", errors="replace", newline="")
    loaded: Policy | None = None
    with contextlib.suppress(ConfigError):
        loaded = load_settings(folder / "metasched.toml").policy
    try:
        code: Any = check(str(path))
    except ConfigError:
        code = 2
    assert code == (2 if loaded is None else 0)
    if loaded is not None:
        assert all(sentence.endswith(".") for sentence in describe_policy(loaded))
        assert differences(values_of(loaded), values_of(loaded)) == []
