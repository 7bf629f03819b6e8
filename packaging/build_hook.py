"""A build hook of hatchling: adds the commit, and compiled modules if METASCHED_COMPILE is 1.

The hot modules are listed in pyproject.toml. mypyc compiles them in a temporary folder, and they
are added to the wheel beside their sources. No other module imports it.
"""

from __future__ import annotations

import os
import runpy
import shlex
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "METASCHED_COMPILE"
# Types are checked elsewhere; where a wheel is built the dependencies may be missing.
MYPY_OPTIONS = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports"]
COMMIT_FILE = "metasched/COMMIT"  # read by metasched/version.py; an sdist has it already


class BuildHook(BuildHookInterface[Any]):
    """Adds the commit to wheels and sdists, and compiled modules to wheels.

    An editable install stays pure Python, and reads its commit when it runs.
    """

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        compiled = self.target_name == "wheel" and os.environ.get(SWITCH) == "1"
        return list(self.config["requires"]) if compiled else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = TemporaryDirectory(prefix="metasched-")
        if version != "editable":
            build_data["force_include"].update(self._commit_file())
        if self.target_name == "wheel":
            self._add_compiled_modules(version, build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._folder.cleanup()

    def _commit_file(self) -> dict[str, str]:
        """Write the commit of the checkout, if it has one; return the path in the archive."""
        root, path = Path(self.root), Path(self._folder.name, "COMMIT")
        commit = runpy.run_path(str(root / "metasched/checkout.py"))["commit_of"](root)
        if commit is None or (root / COMMIT_FILE).exists():
            return {}
        path.write_text(f"{commit}\n")
        return {str(path): COMMIT_FILE}

    def _add_compiled_modules(self, version: str, build_data: dict[str, Any]) -> None:
        switch = os.environ.get(SWITCH, "")
        if switch in ("", "0"):
            return
        if switch != "1":
            self.app.abort(f"metasched: error: {switch!r} is not 0 or 1, {SWITCH}; say 1 or 0")
        if version == "editable":
            self.app.display_warning("an editable install is not compiled")
            return
        if missing := _missing_requirement(self.config["requires"]):
            self.app.abort(f"metasched: error: there is no {missing}, or leave it out")
        libraries = _compile(Path(self.root), self.config["modules"], Path(self._folder.name))
        build_data["force_include"].update(libraries)
        build_data["pure_python"], build_data["infer_tag"] = False, True


def _missing_requirement(requires: list[str]) -> str:
    """Return the first missing requirement of the compilation and how to install it, or ""."""
    compiler, *_ = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    header = Path(sysconfig.get_path("include"), "Python.h")
    compiler_packages = "gcc and Python's headers (Debian: gcc python3-dev)"
    python_packages = " ".join(requires)
    for name, available, package in (
        (compiler, shutil.which(compiler), compiler_packages),
        (header, header.exists(), compiler_packages),
        ("mypyc", find_spec("mypyc"), python_packages),
        ("setuptools", find_spec("setuptools"), python_packages),
    ):
        if not available:
            return f"{name}, {SWITCH}; install {package}"
    return ""


def _compile(root: Path, modules: list[str], folder: Path) -> dict[str, str]:
    """Compile modules; return the path in the wheel of each library."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    previous_folder = Path.cwd()
    os.chdir(root)  # mypy derives module names from relative paths
    try:
        extensions = mypycify(
            [*MYPY_OPTIONS, f"--cache-dir={folder / 'cache'}", *modules],
            target_dir=str(folder / "c"),
            group_name="metasched",  # the library that the modules share is metasched__mypyc
            debug_level="0",
        )
        command = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "o")
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(previous_folder)
    return {output: os.path.relpath(output, folder / "lib") for output in command.get_outputs()}
