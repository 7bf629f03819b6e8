"""Room for answers: no account takes all of it, nor the disk."""

from __future__ import annotations

from itertools import pairwise

import pytest

from metasched.api.answer_room import AnswerRoom
from metasched.api.whole_answers import MEMORY, AnswerFile
from metasched.errors import ApiError

LIMIT = 1_000
NEVER_FULL = 10**12


def taken_by(room: AnswerRoom, user: str) -> int:
    """Return how many bytes an account can take, one by one."""
    errors: list[ApiError] = []
    taken = -1
    while not errors and taken < 2 * LIMIT:
        taken += 1
        try:
            room.take(user, 1)
        except ApiError as error:
            errors.append(error)
    assert errors, "it takes everything"
    assert errors[0].status == 503
    assert "no room for the answer" in str(errors[0])
    return taken


def test_a_newcomer_finds_room_beside_any_number_of_greedy_accounts() -> None:
    room = AnswerRoom(LIMIT, lambda: NEVER_FULL)
    taken = [taken_by(room, f"u{number}") for number in range(9)]
    assert taken[0] == LIMIT // 2
    assert all(earlier >= later > 0 for earlier, later in pairwise(taken))
    assert sum(taken) < LIMIT
    for number, size in enumerate(taken):
        room.give_back(f"u{number}", size)
    assert taken_by(room, "ada") == LIMIT // 2


def test_a_disk_that_fills_leaves_half_of_what_is_free() -> None:
    room = AnswerRoom(LIMIT, lambda: 100)
    assert taken_by(room, "ada") <= 50 + 50  # its own bytes are no longer free
    assert taken_by(AnswerRoom(LIMIT, lambda: 0), "ada") == 0


def test_a_short_answer_needs_no_room_and_a_long_one_gives_it_back() -> None:
    room = AnswerRoom(3 * MEMORY, lambda: NEVER_FULL)
    first, second = AnswerFile(room, "ada"), AnswerFile(room, "ada")
    first.write(b"x" * MEMORY)
    first.write(b"x")
    with pytest.raises(ApiError, match="request pages"):
        second.write(b"x" * (MEMORY + 1))
    AnswerFile(room, "ada").write(b"x" * MEMORY)
    first.close()
    first.close()
    second.write(b"x" * (MEMORY + 1))
    second.close()
    assert not room._used
