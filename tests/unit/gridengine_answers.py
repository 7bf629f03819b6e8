"""An answer of qstat and accounting lines of Grid Engine 8.1.9, shared by several tests."""

from __future__ import annotations

INSTANCE = "k3f9"
INSTANCES = frozenset({INSTANCE})
TAG = "ms-k3f9-42-1"
QPING = """11/22/2026 04:12:38:
SIRM version:             0.1
SIRM message id:          1
start time:               11/22/2026 04:05:43 (1795255943)
run time [s]:             415
messages in read buffer:  0
messages in write buffer: 0
no. of connected clients: 2
status:                   0
info:                     MAIN: R (414.94) | signaler000: R (414.93) | OK
Monitor:                  disabled

"""
QSTAT = """<?xml version='1.0'?>
<job_info  xmlns:xsd="http://example.org/qstat.xsd">
  <queue_info>
    <job_list state="running">
      <JB_job_number>7</JB_job_number>
      <JAT_prio>0.60500</JAT_prio>
      <JB_name>ms-k3f9-4</JB_name>
      <JB_owner>ada</JB_owner>
      <state>r</state>
      <JAT_start_time>2026-11-21T03:03:11</JAT_start_time>
      <queue_name>all.q@n1</queue_name>
      <slots>2</slots>
      <full_job_name>ms-k3f9-42-1</full_job_name>
      <requested_pe name="smp">2</requested_pe>
      <granted_pe name="smp">2</granted_pe>
      <hard_request name="h_rt" resource_contribution="0.000000">600</hard_request>
      <hard_request name="gpu" resource_contribution="0.000000">1</hard_request>
      <binding>NONE</binding>
    </job_list>
  </queue_info>
  <job_info>
    <job_list state="pending">
      <JB_job_number>11</JB_job_number>
      <JAT_prio>0.55500</JAT_prio>
      <JB_name>arr</JB_name>
      <JB_owner>bob</JB_owner>
      <state>qw</state>
      <JB_submission_time>2026-11-21T03:05:35</JB_submission_time>
      <queue_name></queue_name>
      <slots>3</slots>
      <tasks>3-20:1</tasks>
      <full_job_name>arr</full_job_name>
      <hard_request name="h_rt" resource_contribution="0.000000">1:00:00</hard_request>
    </job_list>
    <job_list state="pending">
      <JB_job_number>9</JB_job_number>
      <JB_name>badout</JB_name>
      <JB_owner>bob</JB_owner>
      <state>Eqw</state>
      <JB_submission_time>2026-11-21T03:03:11</JB_submission_time>
      <queue_name></queue_name>
      <slots>1</slots>
      <full_job_name>badout</full_job_name>
    </job_list>
  </job_info>
</job_info>
"""


def line(
    failed: str, status: int, *, name: str = TAG, start: int = 1795230191, category: str = "NONE"
) -> str:
    """Build an accounting line as 8.1.9 writes it."""
    end = start + 3 if start else 0
    return (
        f"all.q:n1:ada:ada:{name}:5:{TAG}:0:1795230191:{start}:{end}:{failed}:{status}:3:0.007073:"
        "0.000000:4108.000000:0:0:0:0:204:0:0:0.000000:16:0:0:0:3:3:NONE:defaultdepartment:NONE:1:"
        f"0:0.250000:0.000000:0.000000:{category}:0.000000:NONE:2097152.000000:0:0\n"
    )
