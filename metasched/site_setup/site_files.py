"""All files of a site, with their texts and modes; pure but for reading templates and pages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from metasched.site_setup.choices import SiteChoices
from metasched.site_setup.configuration import daemon_text, launcher_text
from metasched.site_setup.root_files import SiteFile

SYSUSERS = "etc/sysusers.d/metasched.conf"
TMPFILES = "etc/tmpfiles.d/metasched.conf"
DAEMON_CONFIG = "etc/metasched/metasched.toml"
LAUNCHER_CONFIG = "etc/metasched/launcher.toml"
UNITS = ("metasched.service", "metasched-launcher.service")
PAGES = "usr/local/share/man/man1"
_TEMPLATES = Path(__file__).with_name("templates")
_SECRET_LINE = "z /etc/metasched/metasched.toml 0640 root {group} -\n"
# of shells, by the place where they look for those of locally installed programs
COMPLETIONS = {
    "bash": "usr/local/share/bash-completion/completions/metasched",
    "zsh": "usr/local/share/zsh/site-functions/_metasched",
    "fish": "usr/local/share/fish/vendor_completions.d/metasched.fish",
}


def site_files(
    choices: SiteChoices, completions: Mapping[str, str], pages: Sequence[str]
) -> list[SiteFile]:
    """Return the files of a site.

    `completions` are the scripts by shell, `pages` the names of the manual pages in the
    environment. The command and the pages are linked, since an upgrade replaces them there.
    """
    folders = _filled("tmpfiles.conf", choices)
    if choices.has_secret:  # the daemon reads it, users do not
        folders += _SECRET_LINE.format(group=choices.group)
    files = [
        SiteFile(SYSUSERS, _filled("sysusers.conf", choices)),
        SiteFile(TMPFILES, folders),
        SiteFile(DAEMON_CONFIG, daemon_text(choices), 0o640 if choices.has_secret else 0o644),
        SiteFile(LAUNCHER_CONFIG, launcher_text(choices)),
        *(SiteFile(f"etc/systemd/system/{name}", _filled(name, choices)) for name in UNITS),
        *(SiteFile(COMPLETIONS[shell], text) for shell, text in completions.items()),
    ]
    if choices.prefix not in ("/usr", "/usr/local"):
        files.append(_link("usr/local/bin/metasched", f"{choices.prefix}/bin/metasched"))
        files += [
            _link(f"{PAGES}/{name}", f"{choices.prefix}/share/man/man1/{name}") for name in pages
        ]
    return files


def _link(path: str, target: str) -> SiteFile:
    return SiteFile(path, target, is_link=True)


def _filled(name: str, choices: SiteChoices) -> str:
    """Return a template with the names and paths of a site, which are plain words."""
    values = {
        "account": choices.account,
        "group": choices.group,
        "package": choices.package,
        "prefix": choices.prefix,
        "python": choices.python,
    }
    template = (_TEMPLATES / name).read_text()
    return re.sub(
        r"@(account|group|package|prefix|python)@", lambda match: values[match[1]], template
    )
