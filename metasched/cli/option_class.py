"""Commands that take their options as a data class."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")
R = TypeVar("R")


def takes_options(options_class: type[T]) -> Callable[[Callable[[T], R]], Callable[..., R]]:
    """Make a Typer command of a function whose only parameter is an `options_class`, a data class.

    Each field is an option: annotated as Typer wants a parameter, with its default.
    """
    hints = get_type_hints(options_class, include_extras=True)
    signature = inspect.Signature(
        [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in fields(options_class)  # type: ignore[arg-type]
        ]
    )

    def decorate(function: Callable[[T], R]) -> Callable[..., R]:
        @wraps(function)
        def command(**values: Any) -> R:
            return function(options_class(**values))

        del command.__wrapped__
        command.__annotations__ = {}
        command.__signature__ = signature  # type: ignore[attr-defined]
        return command

    return decorate
