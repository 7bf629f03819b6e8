"""Delivers a signed request to a webhook, after Standard Webhooks (standardwebhooks.com).

The receiver is not trusted. All of a delivery has one deadline. The addresses of its name are
checked, and the connection goes to a checked address. So a name that changes between both (DNS
rebinding) reaches no private address. Redirects are not followed, and no body of an answer is read.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import socket
import ssl
import stat
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import h11

from metasched.config.settings import WebhookSettings
from metasched.model.audit import one_line

DELIVERY_TIMEOUT = 10.0  # seconds from the look-up of the name to the status of the answer
CONNECT_TIMEOUT = 4.0  # seconds for each address of the name
MAX_HEAD = 16_384  # bytes of the answer up to its status and headers
SECRET_PREFIX = "whsec_"
MIN_SECRET, MAX_SECRET = 24, 64  # bytes, as in Standard Webhooks
_READ_SIZE = 4096  # bytes
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address

Value = TypeVar("Value")


class DeliveryFailed(Exception):
    """The receiver did not confirm the delivery; it may have got it."""


class BodyTooLarge(DeliveryFailed):
    """The receiver, or a proxy before it, takes no body of this size."""


class SecretUnusable(Exception):
    """The file of the secret cannot be used; the message says why and what to do."""


def read_secret(path: Path) -> bytes:
    """Return the key of signatures. SecretUnusable if others may read it, or it is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SecretUnusable(f"{path}: {error.strerror}; create it, mode 0600") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SecretUnusable(f"{path} is no regular file; name another")
        account = os.geteuid()  # 0: doctor, for the daemon's account
        if (account and status.st_uid not in (0, account)) or status.st_mode & 0o077:
            raise SecretUnusable(f"{path} is not the daemon's alone; chown {account}, chmod 600")
        text = os.read(descriptor, _READ_SIZE).strip()
    finally:
        os.close(descriptor)
    try:
        prefix, encoded = text[: len(SECRET_PREFIX)], text[len(SECRET_PREFIX) :]
        key = base64.b64decode(encoded, validate=True)
        if prefix != SECRET_PREFIX.encode() or not MIN_SECRET <= len(key) <= MAX_SECRET:
            raise ValueError
    except (ValueError, binascii.Error):
        fix = "write whsec_ and the output of `openssl rand -base64 32`"
        raise SecretUnusable(f"{path} holds no secret of 24 to 64 bytes; {fix}") from None
    return key


def signature(key: bytes, id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature`. `timestamp` is in epoch seconds."""
    content = f"{id}.{timestamp}.".encode() + body
    mac = hmac.new(key, content, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(mac).decode()}"


def is_public(text: str) -> bool:
    """Return whether an address is of the public internet, and so is an address that it embeds."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(str(address.ipv4_mapped))
        if address in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)))
        if address.sixtofour is not None or address.teredo is not None or address.is_site_local:
            return False  # of the past
    return address.is_global and not (address.is_multicast or address.is_reserved)


async def deliver(hook: WebhookSettings, id: str, timestamp: int, body: bytes) -> None:
    """Send a request to a webhook. DeliveryFailed unless its status is 2xx.

    BodyTooLarge if it is 413.
    """
    try:
        async with asyncio.timeout(DELIVERY_TIMEOUT):
            key = read_secret(hook.secret_file)
            status = await _post(
                hook,
                body,
                {
                    "content-type": "application/json",
                    "user-agent": "metasched",
                    "webhook-id": id,
                    "webhook-timestamp": str(timestamp),
                    "webhook-signature": signature(key, id, timestamp, body),
                },
            )
    except TimeoutError:
        raise DeliveryFailed(f"no answer in {DELIVERY_TIMEOUT:g} s") from None
    except SecretUnusable as error:
        raise DeliveryFailed(str(error)) from None
    except h11.ProtocolError as error:
        raise DeliveryFailed(one_line(f"its answer is no HTTP: {error}")) from None
    except UnicodeError as error:  # a name that cannot be looked up
        raise DeliveryFailed(one_line(f"its host is no name: {error}")) from None
    except OSError as error:  # also errors of TLS
        raise DeliveryFailed(one_line(str(error) or type(error).__name__)) from None
    if 300 <= status < 400:
        raise DeliveryFailed(f"it answered {status}: redirects are not followed")
    if status == 413:
        raise BodyTooLarge(f"it answered 413: {len(body)} bytes are too many for it")
    if not 200 <= status < 300:
        raise DeliveryFailed(f"it answered {status}")


async def _post(hook: WebhookSettings, body: bytes, headers: dict[str, str]) -> int:
    """Return the status of the answer."""
    parts = urlsplit(hook.url)
    assert parts.hostname is not None
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    addresses = await _addresses(parts.hostname, port, hook.allow_private)
    reader, writer = await _connect(addresses, port, parts.hostname if is_tls else None)
    try:
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        request = h11.Request(
            method="POST",
            target=target,
            headers=[
                ("host", parts.netloc),
                ("content-length", str(len(body))),
                ("connection", "close"),
                *headers.items(),
            ],
        )
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        # a receiver may answer before it has read all
        sending = asyncio.ensure_future(writer.drain())
        try:
            return await _read_status(reader, connection)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    finally:
        writer.transport.abort()


async def _read_status(reader: asyncio.StreamReader, connection: h11.Connection) -> int:
    received = 0
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(_READ_SIZE)
            received += len(data)
            if received > MAX_HEAD + _READ_SIZE:
                raise DeliveryFailed("its answer has no status")
            if not data and not received:
                raise DeliveryFailed("it closed the connection without an answer")
            connection.receive_data(data)
        elif isinstance(event, h11.Response):
            return event.status_code
        elif not isinstance(event, h11.InformationalResponse):
            raise DeliveryFailed("its answer has no status")


async def _addresses(host: str, port: int, allow_private: bool) -> list[str]:
    """Return the addresses of a host that may be called. DeliveryFailed if there is none."""
    loop = asyncio.get_running_loop()
    entries = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    allowed = [address for address in addresses if allow_private or is_public(address)]
    if not allowed:
        raise DeliveryFailed(
            f"{host} is at {', '.join(addresses)}: private addresses need allow_private = true"
        )
    return allowed


async def _connect(
    addresses: list[str], port: int, tls_name: str | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that answers; `tls_name` None: without TLS."""
    failure: Exception = OSError("it has no address")
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return await asyncio.open_connection(
                    address,
                    port,
                    ssl=None if tls_name is None else ssl.create_default_context(),
                    server_hostname=tls_name,
                    limit=_READ_SIZE,
                )
        except (OSError, TimeoutError) as error:
            failure = error
    if isinstance(failure, TimeoutError):
        raise DeliveryFailed(f"{addresses[-1]} does not answer")
    raise failure


class DeliveryThread:
    """A thread with an event loop: name look-ups and TLS take no time of the scheduler's thread."""

    def __init__(self, name: str) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._runs = threading.Event()
        thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name=f"webhook {name}", daemon=True
        )
        thread.start()

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._runs.set()
        await self._stopped.wait()

    async def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Run a coroutine in the thread; a cancellation cancels it, too."""
        if not self._runs.is_set():
            await asyncio.to_thread(self._runs.wait)
        assert self._loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def stop(self) -> None:
        """End the thread once its work is cancelled; do not wait for it."""
        if self._loop is not None and self._stopped is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)
