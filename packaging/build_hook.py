"""A build hook of hatchling: compiles the hot modules with mypyc if METASCHED_COMPILE is 1.

The modules are listed in pyproject.toml. They are compiled in a temporary folder and added to the
wheel beside their sources. No other module imports it.
"""

from __future__ import annotations

import os
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


class MypycBuildHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel; an editable install stays pure Python."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return list(self.config["requires"]) if os.environ.get(SWITCH) == "1" else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
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
        self._folder = TemporaryDirectory(prefix="metasched-")
        libraries = _compile(Path(self.root), self.config["modules"], Path(self._folder.name))
        build_data["force_include"].update(libraries)
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if not build_data["pure_python"]:
            self._folder.cleanup()


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
