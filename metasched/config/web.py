"""The checked table [web], and the address of the pages."""

from __future__ import annotations

import pwd
import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

from metasched.client.credentials import is_loopback
from metasched.config.settings import ConfigError, WebSettings
from metasched.config.tables import TcpTable, WebTable
from metasched.paths import MAX_SOCKET_PATH_BYTES

_URL = re.compile(r"https?://[^\s/@?#]+/?")
_ANY_ADDRESS = ("0.0.0.0", "::")


def read_web(
    table: WebTable, tcp: TcpTable | None, base_folder: Path, path: Path | None
) -> WebSettings:
    """Return the settings of the pages. ConfigError if no browser could sign in."""
    source = f"{path}, [web]"
    by_session = tcp is not None and tcp.tokens
    if not by_session and table.proxy_socket is None:
        raise ConfigError(
            f"nobody can sign in, {source}; write [tcp] with tokens = true, or proxy_socket"
        )
    if table.url is not None:
        _check_url(table.url, source)
    if (table.proxy_socket is None) != (table.proxy_user is None):
        raise ConfigError(f"proxy_socket and proxy_user, {source}; give both or neither")
    proxy_socket = proxy_uid = None
    if table.proxy_socket is not None and table.proxy_user is not None:
        proxy_socket = base_folder / table.proxy_socket
        if len(bytes(proxy_socket)) > MAX_SOCKET_PATH_BYTES:
            raise ConfigError(
                f"proxy_socket {proxy_socket} is too long, {source}; name a shorter one"
            )
        try:
            proxy_uid = pwd.getpwnam(table.proxy_user).pw_uid
        except KeyError:
            raise ConfigError(
                f'no account "{table.proxy_user}", {source}, proxy_user; name that of the proxy'
            ) from None
    url = ""
    if by_session and tcp is not None:
        url = (table.url or _default_url(tcp, source)).rstrip("/")
    return WebSettings(url, proxy_socket, proxy_uid, table.user_header)


def _check_url(url: str, source: str) -> None:
    """Raise ConfigError for no URL, or for a URL that lets others read the secret of a session."""
    remedy = f'url = "{url}", {source}; write "https://host:port"'
    if not _URL.fullmatch(url):
        raise ConfigError(remedy)
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        raise ConfigError(remedy) from None
    if url.startswith("http:") and not is_loopback(host):
        raise ConfigError(f"{remedy}, since http is for 127.0.0.1 and localhost alone")


def _default_url(tcp: TcpTable, source: str) -> str:
    """Return the address of the listener for browsers, or of the proxy before it.

    ConfigError if there are several: a standby would send browsers to the other daemon.
    """
    if tcp.url is not None:
        if "," in tcp.url:
            raise ConfigError(f"url is missing, {source}; write one of those in url of [tcp]")
        return tcp.url
    host, _, port = tcp.listen.rpartition(":")
    if host.strip("[]") in _ANY_ADDRESS:
        host = socket.getfqdn()
    return f"{'https' if tcp.certificate else 'http'}://{host}:{port}"
