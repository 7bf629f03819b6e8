"""Test them with `pytest`."""

from site_heuristics import LongToFast, SmallFirst

from metasched.model import Job
from metasched.plug_ins.testing import check_heuristic


def test_the_heuristics_keep_the_rules() -> None:
    check_heuristic(SmallFirst, full=8)
    check_heuristic(LongToFast)


def test_a_small_job_is_urgent() -> None:
    job = Job(id=1, submitted=0, estimated=60, cpus=2)
    assert SmallFirst(full=8).contribution(job) == 7.5
