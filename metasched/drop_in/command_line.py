"""The options of a command, read from its command line as by getopt_long(3), with its messages."""

from __future__ import annotations

from metasched.client.option_words import (
    FLAG,
    OPTIONAL,
    VALUE,
    MissingValue,
    OptionError,
    is_option,
    read_options,
)

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Option:
    """An option by its long name; `short` may be empty, `value` is FLAG, VALUE or OPTIONAL."""

    __slots__ = ("name", "short", "value")

    def __init__(self, name: str, short: str, value: str) -> None:
        self.name, self.short, self.value = name, short, value

    @classmethod
    def parse(cls, text: str, short: str) -> Option:
        """Return the option that is written as `array`, `name=` or `jobs[=]`."""
        value = next(value for value in (OPTIONAL, VALUE, FLAG) if text.endswith(value))
        return cls(text[: len(text) - len(value)], short, value)


class CommandLineError(ValueError):
    """A word that cannot be read; the message is the sentence of getopt_long(3)."""


class OptionTable:
    """The options of a command. Those with the same short name are synonyms of the first."""

    def __init__(self, options: Iterable[Option]) -> None:
        self._by_name = {option.name: option for option in options}
        self._by_short: dict[str, Option] = {}
        for option in self._by_name.values():
            if option.short:
                self._by_short.setdefault(option.short, option)

    def read(
        self, arguments: Sequence[str], *, permutes: bool
    ) -> tuple[list[tuple[str, str | None]], list[str]]:
        """Return the options by their names, None without a value, and the other words.

        A synonym is named by the option that it stands for. A long name may be shortened. If the
        command line `permutes`, options may follow other words, else the first such word ends them.
        O(n) in words. CommandLineError for an unknown option, an ambiguous name, a missing value,
        and a value of an option that has none.
        """
        parsed: list[tuple[str, str | None]] = []
        words: list[str] = []
        rest = list(arguments)
        rest.reverse()
        while rest:
            word = rest.pop()
            if word == "--":
                break
            if is_option(word):
                try:
                    options = read_options(word, rest, self._find)
                except OptionError as error:
                    raise CommandLineError(self._describe(error, word)) from None
                parsed += [(self._main_name(option), value) for option, value in options]
                continue
            words.append(word)
            if not permutes:
                break
        rest.reverse()
        return parsed, words + rest

    def _find(self, name: str) -> Option | None:
        """Return the option of a name such as `--time`, which may be shortened, or `-t`."""
        if name[:2] != "--":
            return self._by_short.get(name[1:])
        name = name[2:]
        if name in self._by_name:
            return self._by_name[name]
        candidates = [option for option in self._by_name if option.startswith(name)]
        if len({self._main_name(self._by_name[candidate]) for candidate in candidates}) > 1:
            raise _AmbiguousName(f"--{name}", candidates)
        return self._by_name[candidates[0]] if candidates else None

    def _main_name(self, option: Option) -> str:
        """Return the name of an option that its synonyms stand for."""
        return self._by_short.get(option.short, option).name

    def _describe(self, error: OptionError, word: str) -> str:
        """Return the sentence of getopt_long(3) for a word that cannot be read."""
        if isinstance(error, _AmbiguousName):
            possibilities = "".join(f" '--{candidate}'" for candidate in error.candidates)
            return f"option '{word}' is ambiguous; possibilities:{possibilities}"
        if word[:2] != "--":
            letter = error.name[1:]
            if isinstance(error, MissingValue):
                return f"option requires an argument -- '{letter}'"
            return f"invalid option -- '{letter}'"
        option = self._find(error.name)
        if option is None:
            return f"unrecognized option '{word}'"
        if isinstance(error, MissingValue):
            return f"option '--{option.name}' requires an argument"
        return f"option '--{option.name}' doesn't allow an argument"


class _AmbiguousName(OptionError):
    """A shortened name of several options, the `candidates`."""

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        super().__init__(name)
        self.candidates = candidates
