"""Lists of hosts as Slurm writes them, such as `n1,rack[1-2,07]x[1-2]`. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import lru_cache

MAX_HOSTS = 100_000  # in a list
MAX_DIGITS = 18  # of a number in a name
EMPTY_LISTS = frozenset({"", "(null)", "None", "N/A", "Unknown", "NONE"})
_LIST = re.compile(r"([^\[\],]|\[[\d,-]+\])+(,([^\[\],]|\[[\d,-]+\])+)*", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d{1,9})", re.ASCII | re.DOTALL)


def expand_hosts(host_list: str, limit: int = MAX_HOSTS) -> tuple[str, ...]:
    """Return the names in a list, at most `limit`. Raises ValueError."""
    if host_list in EMPTY_LISTS:
        return ()
    if _LIST.fullmatch(host_list) is None:
        raise ValueError(f"{host_list[:80]!r} is no list of hosts")
    names: list[str] = []
    for part in re.findall(r"(?:[^\[\],]|\[[^\]]*\])+", host_list):
        names += _expand_item(part, limit)
        if len(names) > limit:
            raise ValueError(f"{host_list[:80]!r} names more than {limit} hosts")
    return tuple(names)


@lru_cache(maxsize=32)
def cluster_hosts(host_list: str) -> frozenset[str]:
    """Return the names in the list of a cluster. Raises ValueError."""
    return frozenset(expand_hosts(host_list))


def _expand_item(item: str, limit: int) -> list[str]:
    names = [""]
    for literal, inside in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", item):
        if literal:
            names = [name + literal for name in names]
            continue
        numbers = [number for part in inside.split(",") for number in _expand_range(part, limit)]
        if len(names) * len(numbers) > limit:
            raise ValueError(f"{item[:80]!r} names more than {limit} hosts")
        names = [name + number for name in names for number in numbers]
    return names


def _expand_range(text: str, limit: int) -> list[str]:
    """Return the numbers of `07` or `1-9`, as wide as the first."""
    first, _, last = text.partition("-")
    if max(len(first), len(last)) > MAX_DIGITS:
        raise ValueError(f"{text[:40]!r} has too many digits")
    start, end = int(first), int(last or first)
    if end - start > limit:
        raise ValueError(f"{text!r} names more than {limit} hosts")
    return [f"{number:0{len(first)}}" for number in range(start, end + 1)]


def compress_hosts(names: Collection[str]) -> str:
    """Return a list of these names, with ranges for their final numbers.

    `expand_hosts` returns the names again. Names that no list can hold are left out.
    """
    numbers: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in sorted(set(names)):
        if not name or name in EMPTY_LISTS or re.search(r"[\[\],]", name):
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
