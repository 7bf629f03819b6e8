"""Authentication of callers, and their rights."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from fastapi import Request

from metasched.adapters.launcher_client import user_name_of
from metasched.api.daemon_names import accepted_daemon_names
from metasched.api.job_tokens import JobTokens
from metasched.api.lookups import Lookups
from metasched.client.credentials import MUNGE_TIMEOUT, request_digest
from metasched.config.settings import Settings, primary_group_of
from metasched.config.tables import TcpTable
from metasched.daemon.service import Daemon
from metasched.db.ledger import Ledger
from metasched.db.store import StorageFailed
from metasched.errors import ApiError
from metasched.model.job_token import is_job_token
from metasched.model.token_scope import TokenScope, ValidToken

CALLER_LIFETIME = 5.0  # seconds for which an account's name and rights are used again
MAX_CALLERS = 10_000  # that are remembered
BEARER_SCOPES = (TokenScope.USER, TokenScope.METRICS)  # of the tokens in `Authorization`
MAX_SCRAPERS = 100  # tokens for metrics that are remembered

# UnauthenticatedError if a body is not that for which the credential was made
BodyCheck = Callable[[bytes], None]


class UnauthenticatedError(Exception):
    """The caller cannot be identified. The message gives problem and remedy."""


class ForbiddenError(Exception):
    """The caller may not do this. The message gives problem and remedy."""


@dataclass(frozen=True)
class Caller:
    """An authenticated account and its rights."""

    user: str
    operator: bool = False  # may see and change the jobs of all users
    sees_all: bool = False  # may list the jobs of all users
    by_token: bool = False  # authenticated by a token
    user_class: str = "regular"
    limited_groups: tuple[str, ...] = ()  # the user's groups that have limits
    group: str = ""  # the user's primary group; "": it has no name
    scrapes_only: bool = False  # authenticated by a token that reads metrics alone

    @property
    def visible_owner(self) -> str | None:
        """The user whose jobs, reservations and series alone exist for the caller; None: all do."""
        return None if self.sees_all else self.user

    def may_list(self, owner: str) -> bool:
        """Return whether the caller may see whose object this is."""
        return self.visible_owner in (None, owner)

    def may_read(self, owner: str) -> bool:
        """Return whether the caller may read and change all that is stored of an object."""
        return self.operator or owner == self.user

    def require_operator(self, action: str) -> None:
        """Raise ForbiddenError unless the caller is an operator."""
        if not self.operator:
            raise ForbiddenError(
                f"only operators may {action}, and you are {self.user}; ask one of them"
            )

    def require_owner(self, owners: Iterable[str]) -> None:
        """Raise ForbiddenError unless a job belongs to the caller, or the caller is an operator."""
        if not self.operator and (other_owners := set(owners) - {self.user}):
            owner = min(other_owners)
            raise ForbiddenError(
                f"a job of {owner}, and you are {self.user}; ask its owner or an operator"
            )

    def require_object(self, kind: str, id: int, owner: str | None, command: str) -> None:
        """Raise ApiError unless an object exists for the caller, ForbiddenError if it is not his.

        `owner`: None if there is none. An object that the site hides does not exist: the answers
        are the same. `command` lists those that the caller may see.
        """
        if owner is None or not self.may_list(owner):
            raise ApiError(404, f"no {kind} {id}; see `metasched {command}`")
        if not self.may_read(owner):
            message = f"{kind} {id} is {owner}'s, and you are {self.user}"
            raise ForbiddenError(f"{message}; ask its owner or an operator")

    def require_visible(self, owners: Iterable[str]) -> None:
        """Raise ForbiddenError if a job belongs to another user and the site hides those."""
        if not self.sees_all:
            self.require_owner(owners)


class Callers:
    """The callers of the last seconds: a directory service is not asked for each request."""

    def __init__(self, daemon: Daemon, accounts: Lookups) -> None:
        self._daemon, self._settings = daemon, daemon.settings
        self.accounts, self.credentials = accounts, Lookups("credential")
        # by user id and token's scope: the caller, and monotonic seconds of its look-up
        self._resolved: dict[tuple[int, TokenScope | None], tuple[Caller, float]] = {}
        # valid tokens for metrics, by their secret: these are good while no database answers
        self.scrapers: dict[str, ValidToken] = {}

    async def find_uid(self, user: str) -> int:
        """Return the user id of an account. UnauthenticatedError if there is none."""
        try:
            return (await self.accounts.run(user, partial(pwd.getpwnam, user))).pw_uid
        except KeyError:
            problem = f"there is no account {user} any more"
            raise UnauthenticatedError(f"{problem}; ask the site") from None

    async def resolve(self, uid: int, scope: TokenScope | None) -> Caller:
        """Return the caller with a user id. ForbiddenError if it may not use this daemon."""
        now, key, settings = time.monotonic(), (uid, scope), self._daemon.settings
        if settings is not self._settings:  # rights may have been taken away
            self._settings = settings
            self._resolved.clear()
        caller, since = self._resolved.get(key, (None, 0.0))
        if caller is None or now - since > CALLER_LIFETIME:
            caller = await self.accounts.run(
                (key, id(settings)), partial(_resolve_caller, uid, scope, settings)
            )
            if len(self._resolved) >= MAX_CALLERS:
                self._resolved.clear()
            if settings is self._settings:
                self._resolved[key] = (caller, now)
        return caller


async def authenticate(
    request: Request,
    settings: Settings,
    callers: Callers,
    get_ledger: Callable[[], Ledger],
    job_tokens: JobTokens,
) -> tuple[Caller, BodyCheck | None]:
    """Return the sender of a request, and a check of its body that is due before it counts.

    Nothing of the body is read. On a unix socket the kernel reports the account; over TCP the
    header `Authorization` does. UnauthenticatedError, or ForbiddenError for an account that may
    not use this daemon. Only a token needs the ledger, or the state of its job: StorageFailed if
    the database is away, ApiError if the state is unknown.
    """
    uid, scope, check = request.scope["state"]["connection"].uid, None, None
    if uid is None:
        uid, scope, check = await _authenticate_remote(
            request, settings, callers, get_ledger, job_tokens
        )
    return await callers.resolve(uid, scope), check


def _resolve_caller(uid: int, scope: TokenScope | None, settings: Settings) -> Caller:
    """Return the caller with a user id. ForbiddenError if it may not use this daemon.

    `scope` is that of the token that authenticated it, None without a token.
    """
    # a session that the account itself has opened is as good as its socket
    user, by_token = user_name_of(uid), scope not in (None, TokenScope.SESSION)
    if scope is TokenScope.METRICS:
        # a name of its own: the holder of the token uses up no turns of its maker
        return Caller(f"metrics of {user}", by_token=True, scrapes_only=True)
    if settings.site is None:
        if uid != os.geteuid():
            raise ForbiddenError(f"user id {uid} may not use this personal daemon; start your own")
        memberships = (*settings.memberships_of(user), primary_group_of(user))
        return Caller(user, True, True, by_token, *memberships)
    if user == str(uid):
        raise ForbiddenError(
            f"there is no account with user id {uid} on the daemon's host; ask the site"
        )
    # a token is easily copied: it gives no rights on the jobs of other users
    operator = settings.is_operator(user) and not by_token
    sees_all = operator or settings.site.others_jobs == "listed"
    memberships = (*settings.memberships_of(user), primary_group_of(user))
    return Caller(user, operator, sees_all, by_token, *memberships)


async def _authenticate_remote(
    request: Request,
    settings: Settings,
    callers: Callers,
    get_ledger: Callable[[], Ledger],
    job_tokens: JobTokens,
) -> tuple[int, TokenScope | None, BodyCheck | None]:
    """Return the user id of a caller on another host, its token's scope, and the body's check."""
    assert settings.tcp is not None
    look_up = callers.credentials.run
    scheme, _, credential = request.headers.get("authorization", "").partition(" ")
    if scheme == "Bearer" and settings.tcp.tokens:
        user: str | None
        scope = TokenScope.USER
        if is_job_token(credential):
            user = await job_tokens.user_of(credential)
            problem = "the token is of no running job, for it ends with its job; log in yourself"
        elif (
            token := await find_token(credential, callers, get_ledger)
        ) and token.scope in BEARER_SCOPES:
            user, scope = token.user, token.scope
        else:
            user, problem = None, "the token is unknown, expired or revoked; make a new one"
        if user is None:
            raise UnauthenticatedError(problem)
        return await callers.find_uid(user), scope, None
    if scheme == "MUNGE" and settings.tcp.munge:
        target = request.scope["raw_path"].decode("ascii")
        if query := request.scope["query_string"]:
            target += "?" + query.decode("ascii")
        # a key of its own: munged accepts a credential once, and so must we
        uid, digest = await look_up(object(), partial(_decode_munge, credential, settings.tcp))
        address, port = request.scope["server"]
        find_names = partial(accepted_daemon_names, settings.tcp, address, port)
        names = await look_up((address, port), find_names)

        def check(body: bytes) -> None:
            if all(request_digest(name, request.method, target, body) != digest for name in names):
                raise UnauthenticatedError(
                    "the MUNGE credential is for another request or daemon, this one is "
                    f"{names[0]}; use that name, or ask the site for more names, [tcp]"
                )

        return uid, None, check
    schemes = (("MUNGE", settings.tcp.munge), ("a token", settings.tcp.tokens))
    accepted = " or ".join(scheme for scheme, enabled in schemes if enabled)
    raise UnauthenticatedError(f"no credential that this daemon accepts; show {accepted}")


async def find_token(
    secret: str, callers: Callers, get_ledger: Callable[[], Ledger]
) -> ValidToken | None:
    """Return a token if it is valid.

    StorageFailed if no database answers, but for a token for metrics that was valid before: an
    outage is what metrics are for.
    """
    now = time.time()
    try:
        token = await callers.credentials.run(secret, partial(get_ledger().find_token, secret, now))
    except StorageFailed:
        token = callers.scrapers.get(secret)
        if token is None or token.expires <= now:
            raise
        return token
    callers.scrapers.pop(secret, None)
    if token is not None and token.scope is TokenScope.METRICS:
        if len(callers.scrapers) >= MAX_SCRAPERS:
            callers.scrapers.clear()
        callers.scrapers[secret] = token
    return token


def _decode_munge(credential: str, tcp: TcpTable) -> tuple[int, str]:
    """Return user id and payload of a MUNGE credential; munged accepts each credential once."""
    command = ["unmunge", "--numeric", "--keys=UID"]
    if tcp.munge_socket is not None:
        command.append(f"--socket={tcp.munge_socket}")
    try:
        process = subprocess.run(
            command,
            input=credential,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # the payload is any bytes; a strange payload matches no digest
            timeout=MUNGE_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnauthenticatedError(
            f"munge does not work on the daemon's host ({error}); ask the site"
        ) from None
    if process.returncode != 0:
        raise UnauthenticatedError(
            f"{process.stderr.strip() or 'MUNGE credential replayed or expired'}; try again"
        )
    match = re.match(r"UID:\s+(\d+)\n(.*)", process.stdout, re.DOTALL)
    if match is None:
        raise UnauthenticatedError("munge does not report a user id; ask the site")
    return int(match[1]), match[2].strip()
