"""The checked table [tcp], and how jobs on other hosts find the daemon."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from pathlib import Path

from metasched.client.credentials import daemon_name
from metasched.client.job_daemon import job_variables
from metasched.config.settings import ConfigError
from metasched.config.tables import TcpTable

_NAME = re.compile(r"[^\s/]+:\d+")
_URL = re.compile(r"https://(?:([^\s/:@?#]+)|\[([0-9a-fA-F:]+)\])(?::(\d{1,5}))?")
_PEM_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def checked_tcp(table: TcpTable, base_folder: Path, path: Path | None) -> TcpTable:
    """Return the table with absolute paths, and the host of `url` among the names.

    ConfigError if traffic would not be encrypted, or no authentication is allowed.
    """
    source = f"{path}, [tcp]"
    host, colon, port = table.listen.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 1 << 16):
        raise ConfigError(f'listen = "{table.listen}", {source}; write "address:port"')
    if invalid_names := [name for name in table.names if not _NAME.fullmatch(name)]:
        raise ConfigError(f'names has "{invalid_names[0]}", {source}; write "host:port"')
    if (table.certificate is None) != (table.key is None):
        raise ConfigError(f"certificate and key, {source}; give both or neither")
    if table.certificate is None and host.strip("[]") not in ("127.0.0.1", "::1", "localhost"):
        raise ConfigError(
            f'listen = "{table.listen}" without a certificate, {source}; give certificate and key, '
            "or listen on 127.0.0.1 behind a proxy that speaks TLS"
        )
    if not (table.munge or table.tokens):
        raise ConfigError(f"neither munge nor tokens, {source}; allow one, or leave the table out")
    changes: dict[str, object] = {
        name: str(base_folder / file)
        for name, file in (("certificate", table.certificate), ("key", table.key))
        if file is not None
    }
    if table.url is not None:
        urls = table.url.split(",")
        changes["names"] = (*table.names, *(_name_in_url(url, source) for url in urls))
    return table.model_copy(update=changes)


def _name_in_url(url: str, source: str) -> str:
    """Return the host and port of a daemon's URL. ConfigError if it is invalid."""
    match = _URL.fullmatch(url)
    port = int(match[3] or 443) if match else 0
    if match is None or not 0 < port < 1 << 16:
        raise ConfigError(
            f'url = "{url}", {source}; write "https://host:port", with commas for more daemons'
        )
    return daemon_name(match[1] or match[2], port)


def read_job_variables(tcp: TcpTable | None, socket: Path, path: Path | None) -> dict[str, str]:
    """Return the environment variables that lead jobs to the daemon; none without `url`.

    ConfigError if the daemon's certificate cannot be read.
    """
    if tcp is None or tcp.url is None:
        return {}
    # without a certificate a proxy speaks TLS; the nodes must trust the proxy's certificate
    fingerprint = _fingerprint(tcp.certificate, f"{path}, [tcp]") if tcp.certificate else ""
    return job_variables(tcp.url, fingerprint, os.geteuid(), str(socket))


def _fingerprint(path: str, source: str) -> str:
    """Return the SHA-256 of the first certificate in a file: that of the daemon."""
    try:
        match = _PEM_CERTIFICATE.search(Path(path).read_text("latin-1"))
        content = ssl.PEM_cert_to_DER_cert(match[0]) if match else b""
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"{reason}, certificate {path}, {source}; name readable PEM files"
        ) from None
    if not content:
        raise ConfigError(f"no certificate in {path}, {source}; name readable PEM files")
    return hashlib.sha256(content).hexdigest()
