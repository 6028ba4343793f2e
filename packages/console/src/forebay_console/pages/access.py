"""Access control: the checks of every request, before any page sees it.

Without a token the console answers on loopback only, and only to the names of loopback: a page of
another site that resolves its own name to 127.0.0.1 gets nothing. With a token each request shows
it, as ``Authorization: Bearer`` or as the cookie that the log-in page sets.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

import attrs
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "forebay-console"
LOGIN: Final = "/login"
_STATIC: Final = "/static/"
_OPEN: Final = (LOGIN, "/static/console.css", "/static/icon.svg")
"""Pages that are shown without a token."""
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _lowered(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


@attrs.frozen(kw_only=True)
class Access:
    """The rules of one console."""

    token: str | None = attrs.field(default=None, repr=False)
    """The token that each request must show; ``None`` if none is required."""
    names: Collection[str] = attrs.field(default=(), converter=_lowered)
    """More names in ``Host`` that are answered without a token, besides loopback's."""
    behind_tls: bool = False
    """Whether browsers come through a proxy that encrypts: they keep the cookie for TLS alone."""

    def knows_host(self, host: str) -> bool:
        """Return whether requests with this ``Host`` are answered."""
        if self.token is not None:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name in self.names

    def admits(self, request: HTTPConnection) -> bool:
        """Return whether a request shows the token, if one is needed."""
        if self.token is None:
            return True
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(shown.strip()):
            return True
        return _same(request.cookies.get(COOKIE, ""), self.cookie)

    def is_token(self, shown: str) -> bool:
        """Return whether this is the token; takes the same time wherever it differs."""
        return self.token is not None and _same(shown, self.token)

    @property
    def cookie(self) -> str:
        """The content of the cookie: it proves the token without containing it."""
        key = (self.token or "").encode()
        return hmac.new(key, b"forebay-console cookie", hashlib.sha256).hexdigest()


class Guard:
    """The outermost layer of the application: refuses requests, and adds headers to answers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app: Final = app
        self._access: Final = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(MutableHeaders(scope=message), scope["path"])
            await send(message)

        await self._chosen(scope)(scope, receive, guarded)

    def _chosen(self, scope: Scope) -> ASGIApp:
        request = HTTPConnection(scope)
        if not self._access.knows_host(request.headers.get("host", "")):
            return PlainTextResponse(
                "This console answers to localhost only; start it with --allow-host for other "
                "names.\n",
                status_code=421,
            )
        if scope["path"] in _OPEN or self._access.admits(request):
            return self._app
        return _refusal(scope)


def _refusal(scope: Scope) -> ASGIApp:
    """Send people to the log-in page, and programs an error."""
    if "text/html" in Headers(scope=scope).get("accept", "") and scope["method"] == "GET":
        query = scope["query_string"].decode("latin-1")
        asked = f"{scope['path']}?{query}" if query else scope["path"]
        return RedirectResponse(f"{LOGIN}?next={quote(asked, safe='')}", status_code=303)
    return PlainTextResponse(
        "The token is missing or wrong.\n", status_code=401, headers={"WWW-Authenticate": "Bearer"}
    )


def _add_headers(headers: MutableHeaders, path: str) -> None:
    """Add the policy; browsers keep the style sheet and the script, and no page."""
    for name, value in _HEADERS.items():
        headers[name] = value
    headers["Cache-Control"] = "no-cache" if path.startswith(_STATIC) else "no-store"


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
