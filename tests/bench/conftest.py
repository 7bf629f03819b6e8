"""What the benchmarks of the whole daemon share with the end-to-end tests."""

from tests.e2e.conftest import running, shared, site

__all__ = ["running", "shared", "site"]
