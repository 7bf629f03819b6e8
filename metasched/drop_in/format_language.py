"""The formats of listings: `--format` by letters (`%.18i|%t`), `--Format` by names (`state:9`)."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

DEFAULT_WIDTH = 20  # of a field of --Format
_MAX_DIGITS = 5  # of a width: a larger one would take the memory of the host


class Field:
    """A field: its letter (may be empty), names of --Format, heading, and text for a row."""

    def __init__(self, letter: str, names: str, heading: str, text: Callable[[Any], str]) -> None:
        self.letter, self.names, self.heading, self.text = letter, names.split(), heading, text


class Column:
    """A field of a line, with its width and the text after it."""

    def __init__(self, field: Field, width: int, right: bool, suffix: str) -> None:
        self.field, self.width, self.right, self.suffix = field, width, right, suffix

    def cell(self, text: str) -> str:
        """Fit a text into the column; width 0 takes any text."""
        text = printable(text)
        if not self.width:
            return text + self.suffix
        text = text[: self.width]
        return (text.rjust(self.width) if self.right else text.ljust(self.width)) + self.suffix


class Format:
    """A line of a listing: the text before the first field, and the columns."""

    def __init__(self, prefix: str, columns: Sequence[Column]) -> None:
        self.prefix, self.columns = prefix, columns

    @property
    def heading(self) -> str:
        return self.prefix + "".join(column.cell(column.field.heading) for column in self.columns)

    def line(self, row: object) -> str:
        """Return the line of a row, which holds no line break of its values."""
        return self.join(column.field.text(row) for column in self.columns)

    def join(self, cells: Iterable[str]) -> str:
        """Return the line of these texts, one for each column."""
        return self.prefix + "".join(column.cell(text) for column, text in zip(self.columns, cells))


class FormatLanguage:
    """The fields of a listing, and what its real command prints for an unknown letter or name."""

    def __init__(self, fields: Sequence[Field], letter_error: str, name_error: str) -> None:
        self._by_letter = {field.letter: field for field in fields if field.letter}
        self._by_name = {name: field for field in fields for name in field.names}
        self._letter_error, self._name_error = letter_error, name_error

    def text_of(self, letter: str) -> Callable[[Any], str] | None:
        """Return how a field is written for a row; None: there is no such letter."""
        field = self._by_letter.get(letter)
        return None if field is None else field.text

    def parse(self, text: str) -> Format:
        """Parse a format such as `%.18i|%t`.

        An unknown letter is reported and stands for itself, and `%%` is `%`, as in Slurm.
        """
        prefix, *parts = text.split("%")
        columns: list[Column] = []
        for part in filter(None, parts):
            right = part.startswith(".")
            rest = part[right:]
            digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
            letter, suffix = rest[len(digits) : len(digits) + 1], rest[len(digits) + 1 :]
            field = self._by_letter.get(letter)
            if field is not None:
                columns.append(Column(field, parse_width(digits), right, suffix))
                continue
            print(self._letter_error + letter, file=sys.stderr)
            if columns:
                columns[-1].suffix += f"%{part}"
            else:
                prefix += f"%{part}"
        return Format(prefix, columns)

    def parse_long(self, text: str) -> Format:
        """Parse a --Format such as `JobID:8,State:.12,Reason`. An unknown name is left out.

        After a colon without a number a field has its own width.
        """
        columns = []
        for part in text.split(","):
            name, colon, width = part.partition(":")
            if not (name := name.strip()):
                continue
            field = self._by_name.get(name.lower())
            if field is None:
                print(self._name_error + name, file=sys.stderr)
                continue
            right = width.startswith(".")
            digits = width[right:]
            suffix = digits.lstrip("0123456789")
            digits = digits[: len(digits) - len(suffix)]
            size = parse_width(digits) if colon else DEFAULT_WIDTH
            columns.append(Column(field, size, right, suffix))
        return Format("", columns)


def parse_width(digits: str) -> int:
    """Return the width of a column; 0, that of its text, without digits or with too many."""
    return int(digits) if 0 < len(digits) <= _MAX_DIGITS else 0


def printable(text: str) -> str:
    """Replace control characters: names come from other users."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "?" for c in text)
