"""What the tests of faults share: nothing of theirs outside pytest's folders, even when killed."""

from __future__ import annotations

import pytest

from tests.chaos.site import keep_temporaries_in


@pytest.fixture(scope="session", autouse=True)
def _temporaries(tmp_path_factory: pytest.TempPathFactory) -> None:
    keep_temporaries_in(tmp_path_factory.mktemp("chaos"))
