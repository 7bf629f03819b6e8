"""How many examples Hypothesis tries: as many as a test asks for, more under `explore`."""

from __future__ import annotations

from hypothesis import settings

_USUAL = 100  # examples of a test that asks for no number, under the profile `fixed`


def examples(number: int, steps: int = 50) -> settings:
    """Return settings for `number` examples under the profile `fixed`, of at most `steps` rules.

    Other profiles change the number in proportion to their `max_examples`.
    """
    scale = settings().max_examples / _USUAL
    return settings(max_examples=round(number * scale), stateful_step_count=steps)
