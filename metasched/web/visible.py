"""Texts of users as they are shown: nothing hidden, nothing reordered."""

from __future__ import annotations

import unicodedata

from markupsafe import Markup

_JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"  # scripts and emoji need them
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(value: object) -> object:
    """Return a text with characters that are not seen, or reorder others, as escapes."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(map(_visible_character, value))


def _visible_character(character: str) -> str:
    if character in _JOINERS or unicodedata.category(character) not in _INVISIBLE:
        return character
    if character == "\n":
        return "\n"  # the style shows line breaks of messages
    return character.encode("unicode_escape").decode("ascii")
