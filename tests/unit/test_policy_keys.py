"""The documentation of policy keys: complete, the same in docs/policy.md, with true ranges."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from metasched.config.policy_file import examine_policy
from metasched.config.policy_words import (
    describe_policy,
    differences,
    documented_name,
    key_reference,
    values_of,
)
from metasched.policies.policy import PlugInSettings, Policy, SelfOptimisation
from metasched.policies.policy_keys import OURS, POLICY_KEYS

GUIDE = (Path(__file__).parents[2] / "docs/policy.md").read_text()
OPTIMISED = {"base": SelfOptimisation(target=(0.9, 0.1), history=20)}


def keys_table() -> str:
    """Return the table of docs/policy.md."""
    rows = [("key", "effect", "unit", "range", "default", "source"), ("---",) * 6]
    rows += [
        (f"`{name}`", POLICY_KEYS[name].effect, unit, values, default, source)
        for name, unit, values, default, source, _ in key_reference()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def words_list() -> str:
    """Return the list of docs/policy.md."""
    return "".join(
        f'- `{name} = "{choice}"`: {meaning}.\n'
        for name, key in POLICY_KEYS.items()
        for choice, meaning in key.choices.items()
    )


def test_every_key_is_documented_once() -> None:
    plug_ins = {"a-1": PlugInSettings(parameters={"weight": 1.0})}
    policy = Policy(
        self_optimising=OPTIMISED, heuristics=plug_ins, placement=plug_ins, run_times=plug_ins
    )
    documented = [documented_name(name) for name in values_of(policy)]
    assert set(documented) == set(POLICY_KEYS)
    assert {name.partition(".")[0] for name in POLICY_KEYS} == {f.name for f in fields(Policy)}


def test_the_guide_has_the_same_text() -> None:
    assert keys_table() in GUIDE, keys_table()
    assert words_list() in GUIDE, words_list()


@pytest.mark.parametrize("row", key_reference(), ids=lambda row: row.name)
def test_a_key_has_effect_source_and_range(row: Any) -> None:
    assert row.effect.endswith(".")
    assert row.source == OURS or " " in row.source
    assert row.range, "every key is bounded"
    assert row.default


def toml_of(name: str, value: str) -> str:
    """Return a file that has one key."""
    table, _, key = name.replace("PARAMETER", "base").replace("NAME", "regular").rpartition(".")
    return f"[{table}]\n{key} = {value}\n" if table else f"{key} = {value}\n"


@pytest.mark.parametrize("row", key_reference(), ids=lambda row: row.name)
def test_the_range_is_that_which_is_enforced(row: Any) -> None:
    """The words that describe a range are read here, and tried at their ends."""
    is_list = row.name.endswith("target")

    def accepted(value: object) -> bool:
        text = f"[{value}, {value}]" if is_list else str(value)
        two_classes = "max_priority = 2\n" if is_list else ""
        return examine_policy(two_classes + toml_of(row.name, text), "p").policy is not None

    description = row.range.removesuffix(" each")
    if " or " in description:
        choices = description.split(" or ")
        quote = "" if "true" in choices else '"'
        assert all(accepted(f"{quote}{choice}{quote}") for choice in choices)
        assert not accepted('"other"')
        return
    if description.startswith("above "):
        low, _, high = description.removeprefix("above ").partition(", at most ")
        assert not accepted(low)
    else:
        low, _, high = description.partition(" to ")
        assert accepted(low) != (is_list and low == "0")  # not all shares may be 0
        assert not accepted(int(low) - 1)
    assert accepted(high)
    assert not accepted(float(high) + 1 if "." in high else int(high) + 1)
    for wrong in ("nan", "inf", "-inf", '"many"'):
        assert not accepted(wrong), wrong


WRONG = [
    ("[weights]\nuser = 0\ndeadline = 0\nlicence = 0", "no heuristic has a weight above 0"),
    ("[weights]\nusr = 1", 'unknown weight "usr", p, [weights]; write "user"'),
    ("pul = true", 'unknown key "pul", p; write "pull"'),
    ('send = "later"', 'send = "later", p; write "at_once" or "late"'),
    ("[classes]\ngold = 7", 'no class "regular", p, [classes]; add its base value'),
    ("[self_optimising.base]\n[self_optimising.base-span]", "both change the base"),
    ("pull = ", "no TOML"),
    ("pull = true\npull = false", "is there twice"),
    ("x = " + "[" * 5000, "p; "),
    ("# " + "x" * 70000, "more than 65536 bytes"),
]


@pytest.mark.parametrize(("text", "problem"), WRONG, ids=[problem for _, problem in WRONG])
def test_a_mistake_has_problem_place_and_remedy(text: str, problem: str) -> None:
    reading = examine_policy(text, "p")
    [mistake] = reading.mistakes
    assert reading.policy is None
    assert problem in mistake
    assert "\n" not in mistake
    assert "; " in mistake
    assert len(mistake) < 300


def test_all_mistakes_are_reported_at_once() -> None:
    text = 'wieghts = 1\nsend = "never"\npull = 3\n[weights]\nusr = 1\nuser = -1\n'
    mistakes = examine_policy(text, "p").mistakes
    assert len(mistakes) == 5
    for named in ("wieghts", "send", "pull", "usr", "user"):
        assert any(named in mistake.partition(",")[0] for mistake in mistakes), named


USELESS = [
    ('send = "late"\npull = true', "pull"),
    ('send = "late"\npull_after = 7', "pull_after"),
    ("pull = false\npull_after = 7", "pull_after"),
    ("window = 7\n[weights]\ndeadline = 0", "window"),
    ("[weights]\nuser = 0\n[classes]\nregular = 3", "user"),
    ("max_priority = 1\n[weights]\nuser = 3", "weights"),
    ("[weights]\ndeadline = 0\n[self_optimising.base]", "base"),
    ("[classes]\nregular = 30", "regular"),
]


@pytest.mark.parametrize(("text", "named"), USELESS, ids=[text for text, _ in USELESS])
def test_a_setting_without_effect_is_noted(text: str, named: str) -> None:
    reading = examine_policy(text, "p")
    assert reading.policy is not None
    assert named in reading.notes[0]
    assert "p" in reading.notes[0]


def test_the_defaults_and_an_empty_file_have_no_notes() -> None:
    assert examine_policy("", "p").notes == ()
    assert examine_policy("pull = false\nsend = 'late'", "p").notes == ()


def test_differences_have_both_values_and_the_effect() -> None:
    before, after = Policy(), Policy(send="late", weights={"user": 2.0}, self_optimising=OPTIMISED)
    rows = {row.name: row for row in differences(values_of(before), values_of(after))}
    assert set(rows) == {
        *("send", "weights.user"),
        *(f"self_optimising.base.{key}" for key in ("history", "delta", "norm", "target")),
    }
    assert (rows["weights.user"].before, rows["weights.user"].after) == (1.0, 2.0)
    assert rows["self_optimising.base.history"].before is None
    assert "once they can start" in rows["send"].effect
    assert differences(values_of(after), values_of(after)) == []


def test_long_targets_that_differ_at_their_end_differ() -> None:
    one, other = (
        Policy(self_optimising={"base": SelfOptimisation(target=(*(1.0,) * 9, last))})
        for last in (1.0, 2.0)
    )
    assert [row.name for row in differences(values_of(one), values_of(other))] == [
        "self_optimising.base.target"
    ]


def test_the_description_names_what_differs_from_the_defaults() -> None:
    policy = Policy(
        age=0.0, pull=False, tolerance=0.25, weights={"licence": 0.0}, self_optimising=OPTIMISED
    )
    text = " ".join(describe_policy(policy))
    for phrase in ("priorities order no queue", "They stay in the queue", "0.25", "Not rated"):
        assert phrase in text
    assert "base follows a target of priorities (0.9, 0.1) by the last 20 jobs" in text
