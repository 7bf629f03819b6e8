"""Local policies of other packages, by entry points."""

from __future__ import annotations

from pathlib import Path

import pytest

from metasched.adapters.local.options import LocalOptions
from metasched.policies.local.queueing import FreeResources, JobStart, WaitingJob
from metasched.policies.local.registry import check_policy_name, keeps_order, make_policy

MODULE = """\
from metasched.policies.local.orders import FirstFit

class Last(FirstFit):
    name = "last"
    in_order = True

    def sort_queue(self, queue):
        return list(reversed(queue))
"""


def test_a_policy_of_another_package_is_chosen_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "their_policy-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-policy\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[metasched.policies]\nlast = their_policy:Last\n")
    (tmp_path / "their_policy.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    assert LocalOptions(cpus=2, policy="last").policy == "last"
    queue = [WaitingJob(1, 2, 10.0), WaitingJob(2, 2, 10.0)]
    chosen = make_policy("last").choose_starts(0.0, queue, [], FreeResources(2))
    assert chosen == [JobStart(2)]
    assert keeps_order("last")
    with pytest.raises(ValueError, match='policy last has no parameter "age"; it has none'):
        make_policy("last", {"age": 1.0})


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match='unknown policy "las"; '):
        check_policy_name("las")
