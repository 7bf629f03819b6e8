"""Keeps temporary files of the fault tests in pytest's folders, even if the tests are killed."""

from __future__ import annotations

import pytest

from tests.chaos.site import keep_temporaries_in


@pytest.fixture(scope="session", autouse=True)
def _temporaries(tmp_path_factory: pytest.TempPathFactory) -> None:
    keep_temporaries_in(tmp_path_factory.mktemp("chaos"))
