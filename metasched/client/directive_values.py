"""Options of lines of other managers: effects, errors, and values that their dialects share.

This module keeps to Python 3.9 and imports nothing slow.
"""

from __future__ import annotations

from metasched.errors import ParseError, quote_for_error

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

# Effects of an option in the tables of the dialects.
MAPPED = "mapped"
ACCEPTED = "accepted, no effect"
IGNORED = "ignored with a warning"
REFUSED = "refused"


class DirectiveError(ParseError):
    """A directive that makes the job invalid. The message is a line: problem, place; remedy."""

    def __init__(self, problem: str, location: str, fix: str) -> None:
        super().__init__(f"{problem}, {location}", fix)


class Directive:
    """An option of a line, or a resource that it requests."""

    def __init__(self, option: str, value: str, location: str) -> None:
        self.option, self.value, self.location = option, value, location

    def __str__(self) -> str:
        return f"{self.option} {self.value}".strip()

    def refusal(self, problem: str, fix: str) -> DirectiveError:
        """Return the error for this option; the problem follows its name."""
        text = f"{quote_for_error(str(self))} {problem}" if problem else quote_for_error(str(self))
        return DirectiveError(text, self.location, fix)


class SbatchOptions:
    """Options of sbatch, by their long names, with the places that ask for them."""

    def __init__(self, script: str) -> None:
        interpreter = script.partition("\n")[0][2:].split()
        # of the script's first line; `#!/usr/bin/env bash` names bash
        self.interpreter = (
            interpreter[1]
            if interpreter[1:] and interpreter[0].endswith("/env")
            else "".join(interpreter[:1])
        )
        self.values: dict[str, tuple[str | None, str]] = {}  # None: a flag
        self.warnings: list[str] = []

    def set(self, name: str, value: str | None, source: Directive) -> None:
        self.values[name] = value, source.location

    def ignore(self, source: Directive, reason: str) -> None:
        self.warnings.append(f"{source} is ignored, {source.location}: {reason}")


_MAIL_TYPES = {"b": "BEGIN", "e": "END", "a": "FAIL", "s": "", "j": "ARRAY_TASKS"}


def set_mail(directive: Directive, options: SbatchOptions) -> None:
    """Set the kinds of mails (-m), or their address (-M): the first, if there are several."""
    letters = directive.value
    if directive.option == "-M":
        options.set("mail-user", letters.split(",")[0], directive)
    elif letters in ("n", "p"):
        options.set("mail-type", "NONE", directive)
    elif set(letters) <= _MAIL_TYPES.keys():
        types = [_MAIL_TYPES[letter] for letter in letters if _MAIL_TYPES[letter]]
        options.set("mail-type", ",".join(types) or "NONE", directive)
    else:
        options.ignore(directive, "it names no kind of mail")


def clock_time(directive: Directive, value: str) -> str:
    """Return `[[[days:]hours:]minutes:]seconds` as sbatch writes a duration."""
    fields = value.split(":")
    if len(fields) > 4 or not all(field.isascii() and field.isdecimal() for field in fields):
        raise directive.refusal("is no time", "write it as 3600 (seconds) or 1:00:00")
    units = (86400, 3600, 60, 1)[-len(fields) :]
    seconds = sum(int(field[:12]) * unit for field, unit in zip(fields, units))
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def begin_time(directive: Directive) -> str:
    """Return `[[CC]YY]MMDDhhmm[.SS]` or `hhmm` as sbatch writes a time."""
    import re
    import time

    match = re.fullmatch(
        r"(?:(\d{2})?(\d{2}))??(?:(\d{2})(\d{2}))?(\d{2})(\d{2})(?:\.(\d{2}))?",
        directive.value,
        re.ASCII,
    )
    if match is None or (match[2] and not match[3]):
        raise directive.refusal("is no time", "write it as MMDDhhmm or CCYYMMDDhhmm")
    century, year, month, day, hour, minute, second = match.groups()
    if month is None:
        return f"{hour}:{minute}"
    date = f"{century or '20'}{year}" if year else str(time.localtime().tm_year)
    return f"{date}-{month}-{day}T{hour}:{minute}:{second or '00'}"


def mebibytes(directive: Directive, value: str, units: dict[str, float]) -> int:
    """Return a size in MiB, rounded up; `units` are the bytes of each suffix."""
    import math
    import re

    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)([A-Za-z]*)", value, re.ASCII)
    if match is None or match[2] not in units:
        raise directive.refusal("is no size", "write it as 4G or 4gb")
    return max(1, math.ceil(float(match[1]) * units[match[2]] / 2**20))


def count(directive: Directive, value: str) -> int:
    if not (value.isascii() and value.isdecimal() and 0 < int(value[:12]) <= 2**31 - 1):
        raise directive.refusal("is no number", "write 1 or more")
    return int(value)


def output_path(directive: Directive, variables: dict[str, str], stream: str) -> str:
    """Return a path with patterns in the place of variables; `stream` is `o` or `e`.

    The path may be a folder: the file has the usual name of its manager there.
    """
    import os
    import re

    host, _, path = directive.value.rpartition(":")
    if host or not path:
        raise directive.refusal("names a host or nothing", "write a path alone")
    values = {**variables, "HOME": os.environ.get("HOME", "").replace("%", "%%")}

    def translate(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in values:
            raise directive.refusal(f"has an unknown variable ${name}", "write the path without it")
        return values[name]

    pattern = r"\$(?:\{(\w+)\}|(\w+))"
    path = path.replace("%", "%%").replace("^array_index^", "%a")
    path = re.sub(pattern, translate, path)
    if path.endswith("/") or os.path.isdir(path):
        path = f"{path.rstrip('/')}/%x.{stream}%A"
    return path


def check_interpreter(directive: Directive, options: SbatchOptions) -> None:
    """Refuse another interpreter than that of the script's first line."""
    if directive.value.rpartition("/")[2] != options.interpreter.rpartition("/")[2]:
        raise directive.refusal(
            "is not the interpreter of line 1", f"write #!{directive.value} there"
        )


def dependency_ids(directive: Directive, texts: Sequence[str]) -> str:
    """Return ids of jobs as sbatch writes them: `:12:13_4`."""
    import re

    ids = []
    for text in texts:
        match = re.fullmatch(r"(\d{1,18})(?:\[(\d*)\])?(?:\.[\w.\-@:]*)?", text, re.ASCII)
        if match is None:
            raise directive.refusal(
                f"names {quote_for_error(text)}, which is no id", "write ids that submit printed"
            )
        ids.append(match[1] + (f"_{match[2]}" if match[2] else ""))
    return "".join(f":{job}" for job in ids)


def set_priority(directive: Directive, options: SbatchOptions, lowest: int) -> None:
    """Map a priority from -`lowest` on; only operators of a manager raise jobs above 0."""
    import re

    if re.fullmatch(r"[+-]?\d{1,4}", directive.value, re.ASCII) is None:
        raise directive.refusal("is no priority", f"write a number from -{lowest} to 0")
    priority = int(directive.value)
    if priority < -lowest:
        raise directive.refusal("is no priority", f"write a number from -{lowest} to 0")
    if priority > 0:
        options.ignore(directive, "write #MS --urgency")
    elif priority < 0:
        options.set("nice", str(-priority), directive)


def set_host(directive: Directive, options: SbatchOptions) -> None:
    """Map the name of a host that the job must have, or with `!` must not have."""
    import re

    match = re.fullmatch(r"(!?)([A-Za-z0-9][\w.-]*)", directive.value, re.ASCII)
    if match is None:
        raise directive.refusal("is not the name of a host", "write one name, without patterns")
    options.set("exclude" if match[1] else "nodelist", match[2], directive)
