"""Submission of single tasks, within the time of a call. See `PartlySubmitted`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from metasched.adapters.launcher_client import TimeBudget
from metasched.model.adapter_errors import PartlySubmitted, Refused, SiteFault, Unreachable


def submit_each(
    indices: Sequence[int], submit: Callable[[int], str], accepted: Mapping[int, str]
) -> dict[int, str]:
    """Call `submit` for each index; return the native ids, also of tasks `accepted` before.

    Raises PartlySubmitted if the time of the call is nearly over, or if a task is rejected after
    others were accepted, or gets no answer while others are accepted or remain.
    """
    native_ids, budget = dict(accepted), TimeBudget()
    for position, index in enumerate(indices):
        try:
            budget.start_step()
        except Unreachable as error:
            raise PartlySubmitted(error.reason, native_ids, indices[position:]) from None
        try:
            native_ids[index] = submit(index)
        except (Refused, SiteFault) as error:
            if not native_ids:
                raise
            raise PartlySubmitted(error.reason, native_ids, indices[position:]) from None
        except Unreachable as error:
            untried = indices[position + 1 :]
            if not (native_ids or untried):
                raise
            raise PartlySubmitted(error.reason, native_ids, untried, error.sentence) from None
    return native_ids
