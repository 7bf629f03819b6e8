"""Reads the options among the words of a command line, as getopt_long(3) does.

`metasched submit` and the drop-in commands import this module: it keeps to Python 3.9 and imports
nothing slow.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol, TypeVar

    class _Option(Protocol):
        @property
        def value(self) -> str: ...

    OptionT = TypeVar("OptionT", bound=_Option)

FLAG, VALUE, OPTIONAL = "", "=", "[=]"  # values of an option: none, required, optional


class OptionError(ValueError):
    """A word that cannot be read as an option; `name` is the option as written: `--time`, `-t`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class UnknownOption(OptionError):
    pass


class MissingValue(OptionError):
    pass


class UnexpectedValue(OptionError):
    """A value of an option that has none; `text` is the value."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name)
        self.text = text


def is_option(argument: str) -> bool:
    """Return whether a word such as `-t` or `--time=5` has options; a single dash has none."""
    return argument[:1] == "-" and len(argument) > 1


def read_options(
    argument: str, rest: list[str], find: Callable[[str], OptionT | None]
) -> list[tuple[OptionT, str | None]]:
    """Return the options of a word such as `--time=5` or `-Hn2`, with their values.

    `find` returns the option of a name such as `--time` or `-t`. A value may be the next word: it
    is taken from the end of `rest`, which holds the following words in reverse. Raise OptionError
    if the word cannot be read; `rest` is then unchanged.
    """
    if argument[:2] == "--":
        name, equals, text = argument.partition("=")
        option = find(name)
        if option is None:
            raise UnknownOption(name)
        if option.value == VALUE and not equals:
            if not rest:
                raise MissingValue(name)
            return [(option, rest.pop())]
        if option.value == FLAG and equals:
            raise UnexpectedValue(name, text)
        return [(option, text if equals else None)]
    options: list[tuple[OptionT, str | None]] = []
    for position, letter in enumerate(argument[1:], 2):
        name = f"-{letter}"
        option = find(name)
        if option is None:
            raise UnknownOption(name)
        if option.value == FLAG:
            options.append((option, None))
            continue
        value = argument[position:]
        if value or option.value == OPTIONAL:
            options.append((option, value or None))
        elif rest:
            options.append((option, rest.pop()))
        else:
            raise MissingValue(name)
        break
    return options
