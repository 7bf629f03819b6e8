"""Copies of a lazy plan are plain: the manager that computes it has changed meanwhile."""

from __future__ import annotations

import math
import pickle

from metasched.laboratory.simulate.lazy_head_plan import LazyHeadPlan
from metasched.model.cluster import HeadPlan


def test_a_copy_holds_what_was_read() -> None:
    plan = HeadPlan(17.0, (), {"matlab": 2})
    lazy = LazyHeadPlan(lambda: plan)  # a function that cannot be copied
    unread = pickle.loads(pickle.dumps(lazy))
    assert (type(unread), unread.start) == (HeadPlan, math.inf)
    assert lazy.start == 17.0
    copy = pickle.loads(pickle.dumps(lazy))
    assert (type(copy), copy) == (HeadPlan, plan)
