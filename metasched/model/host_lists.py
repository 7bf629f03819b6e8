"""Lists of hosts as Slurm writes them, such as `n1,rack[1-2,07]x[1-2]`. Pure.

Only this module reads them. Commas and blanks separate items. A name may have several ranges,
whose numbers are as wide as the first.
"""

# The drop-in commands import this module: Python 3.9, and no slow imports at the top.
from __future__ import annotations

import re
from functools import lru_cache
from itertools import product
from math import prod

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    Part = str | list[tuple[range, int]]  # of names: a text, or ranges and their widths

MAX_HOSTS = 100_000  # in a list
MAX_NAME = 255  # characters in the name of a host, as in DNS
EMPTY_LISTS = frozenset({"", "(null)", "None", "N/A", "Unknown", "NONE"})
UNKNOWN_HOSTS = "Unknown"  # a list without hosts, in place of hosts that cannot be named
_TOKEN = re.compile(r"([^\[\],\s]+)|\[([\d,-]+)\]|[,\s]+", re.ASCII)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d{1,9})", re.ASCII | re.DOTALL)


def expand_hosts(host_list: str, limit: int = MAX_HOSTS) -> tuple[str, ...]:
    """Return the names in a list, in its order, at most `limit`. Raises ValueError."""
    items = list(_parse_items(host_list, limit))  # an error comes before any expansion
    return tuple("".join(name) for item in items for name in product(*map(_choices, item)))


def count_hosts(host_list: str, limit: int = MAX_HOSTS) -> int:
    """Return the number of names that `expand_hosts` returns. Raises ValueError, as it does."""
    return sum(map(_size, _parse_items(host_list, limit)))


@lru_cache(maxsize=1024)  # a listing names the same nodes again and again
def count_nodes(node: str) -> int:
    """Return the number of nodes in a manager's list; a name that is no list counts 1."""
    try:
        return count_hosts(node)
    except ValueError:
        return 1


def first_host(host_list: str) -> str:
    """Return the first name in a list; "" if it has none."""
    try:
        item = next(_parse_items(host_list, MAX_HOSTS), [])
    except ValueError:
        return ""
    return "".join(next(_choices(part)) for part in item)


@lru_cache(maxsize=32)
def cluster_hosts(host_list: str) -> frozenset[str]:
    """Return the names in the list of a cluster. Raises ValueError."""
    return frozenset(expand_hosts(host_list))


def _parse_items(host_list: str, limit: int) -> Iterator[list[Part]]:
    """Yield the parts of each item that commas or blanks separate. Raises ValueError."""
    total, position, width = 0, 0, 0
    item: list[Part] = []
    for token in _TOKEN.finditer("" if host_list in EMPTY_LISTS else f"{host_list},"):
        if token.start() != position:
            raise ValueError(f"{host_list[:80]!r} is no list of hosts")
        position = token.end()
        text, ranges = token.groups()
        if text:
            item.append(text)
            width += len(text)
        elif ranges:
            numbers = _parse_ranges(ranges, limit)
            item.append(numbers)
            width += max(map(_width, numbers))
        elif item:
            total += _size(item)
            if total > limit:
                raise ValueError(f"{host_list[:80]!r} names more than {limit} hosts")
            yield item
            item, width = [], 0
        if width > MAX_NAME:
            problem = f"has a name of more than {MAX_NAME} characters"
            raise ValueError(f"{host_list[:80]!r} {problem}")


def _parse_ranges(text: str, limit: int) -> list[tuple[range, int]]:
    """Return the ranges in a bracket, with the widths of their first numbers."""
    ranges: list[tuple[range, int]] = []
    total = 0
    for part in text.split(","):
        ranges.append(_parse_range(part, limit))
        total += len(ranges[-1][0])
        if total > limit:
            raise ValueError(f"'[{text[:80]}]' names more than {limit} hosts")
    return ranges


def _parse_range(text: str, limit: int) -> tuple[range, int]:
    """Return the numbers of `07` or `1-9` and the width of the first. Raises ValueError."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"'[{text[:40]}]' is no list of hosts")
    first, last = match[1], match[2] or match[1]
    if max(len(first), len(last)) > MAX_NAME:
        raise ValueError(f"'[{text[:40]}...' has a name of more than {MAX_NAME} characters")
    numbers = range(int(first), int(last) + 1)
    if numbers.start >= numbers.stop:
        raise ValueError(f"'[{text[:80]}]' is no list of hosts: it ends before it begins")
    if numbers.stop - numbers.start > limit:
        raise ValueError(f"'[{text[:80]}]' names more than {limit} hosts")
    return numbers, len(first)


def _size(item: list[Part]) -> int:
    return prod(sum(len(numbers) for numbers, _ in part) for part in item if type(part) is list)


def _width(numbers: tuple[range, int]) -> int:
    """Return the digits of the widest number."""
    return max(len(str(numbers[0][-1])), numbers[1])


def _choices(part: Part) -> Iterator[str]:
    if isinstance(part, str):
        yield part
        return
    for numbers, width in part:
        for number in numbers:
            yield f"{number:0{width}}"


def compress_hosts(names: Collection[str]) -> str:
    """Return a list of these names, with ranges for their final numbers.

    `expand_hosts` returns the names again. Names that no list can hold are left out.
    """
    numbers: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in sorted(set(names)):
        if name in EMPTY_LISTS or len(name) > MAX_NAME or re.search(r"[\[\],\s]", name, re.ASCII):
            continue
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain.append(name)
        else:
            numbers.setdefault((match[1], len(match[2])), []).append(int(match[2]))
    for (prefix, width), values in numbers.items():
        ranges = list(_ranges(values, width))
        is_single = len(ranges) == 1 and "-" not in ranges[0]
        plain.append(prefix + (ranges[0] if is_single else f"[{','.join(ranges)}]"))
    return ",".join(sorted(plain))


@lru_cache(maxsize=256)
def compressed_hosts(names: frozenset[str]) -> str:
    """Return `compress_hosts(names)`, kept for sets of names that are seen again."""
    return compress_hosts(names)


def shorten_hosts(host_list: str, length: int) -> str:
    """Return the beginning of a list, about `length` characters, with `,...` if it is cut."""
    if len(host_list) <= length:
        return host_list
    beginning = host_list[: max(host_list.rfind(",", 0, length), 0)]
    if beginning.count("[") > beginning.count("]"):
        beginning += "]"
    return f"{beginning},..." if beginning else "..."


def name_nodes(host_list: str) -> str:
    """Return words for the hosts in a list: `node n1`, `nodes n[1-2]`; `a node` without any."""
    number = count_nodes(host_list)
    return f"node{'s' * (number > 1)} {host_list}" if number else "a node"


def _ranges(numbers: list[int], width: int) -> Iterator[str]:
    numbers.sort()
    start = previous = numbers[0]
    for number in [*numbers[1:], -1]:
        if number != previous + 1:
            last = f"-{previous:0{width}}" if previous > start else ""
            yield f"{start:0{width}}{last}"
            start = number
        previous = number


def find_host(name: str, hosts: Collection[str]) -> str | None:
    """Return which of the hosts has a name, with or without its domain; None: no host has it."""
    if name in hosts:
        return name
    short = name.partition(".")[0]
    if short in hosts:
        return short
    if short != name:
        return None
    return next((host for host in sorted(hosts) if host.startswith(f"{name}.")), None)
