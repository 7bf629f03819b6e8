"""A later release: this release with a migration that only tests have.

It stands for the successor of 1.0 until there is one. Then the tests of an upgrade unpack 1.0 from
the git history, and begin with that.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from alembic.config import Config

import metasched
from metasched.db import store
from metasched.db.schema import REVISION

MIGRATIONS = Path(__file__).with_name("later_migrations")
NEXT_REVISION = "t0001"
# What the migration changes for the code
_CHANGES = {
    f'REVISION = "{REVISION}"': f'REVISION = "{NEXT_REVISION}"',
    'Column("entry", SafeText': 'Column("calendar_entry", SafeText, key="entry"',
}
_own_config = store.migration_config


def migration_config() -> Config:
    """Return Alembic's configuration of the migrations of the later release."""
    config = _own_config()
    own = Path(str(config.get_main_option("script_location"))) / "versions"
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", os.pathsep.join(map(str, (own, MIGRATIONS))))
    return config


class NextRelease:
    """The later release in `folder`, run by the present interpreter and its dependencies."""

    command = (sys.executable, "-m", "metasched")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        package = folder / "metasched"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(metasched.__file__).parent, package, ignore=ignored)
        schema = package / "db/schema.py"
        code = schema.read_text()
        for present, later in _CHANGES.items():
            assert code.count(present) == 1, present
            code = code.replace(present, later)
        schema.write_text(code)
        for migration in MIGRATIONS.glob("*.py"):
            shutil.copy(migration, package / "db/migrations/versions")

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` changed so that Python imports the later release, and measures no coverage.

        The working directory must not be a checkout: `python -m` imports from there first.
        """
        variables = {k: v for k, v in base.items() if not k.startswith("COVERAGE_")}
        return variables | {"PYTHONPATH": str(self.folder)}
