"""The site: its addresses, and the page that answers each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from forebay_console.pages.access import COOKIE, LOGIN, Access, Guard
from forebay_console.pages.compaction import compaction
from forebay_console.pages.difference import difference
from forebay_console.pages.faults import Faults
from forebay_console.pages.files import files, files_csv
from forebay_console.pages.kept_files import kept
from forebay_console.pages.key_groups import key_groups, key_groups_csv
from forebay_console.pages.keys import keys
from forebay_console.pages.overview import overview, row_of
from forebay_console.pages.rendering import Templates
from forebay_console.pages.states import states
from forebay_console.pages.timeline import WINDOWS, timeline
from forebay_console.pages.version import version, version_number
from forebay_console.watching.content import ContentReader
from forebay_console.watching.exposition import StateDirectoryCollector
from forebay_engine.versions.format.directory_contents import name_of
from forebay_state_api.errors import ForebayError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from forebay_console.watching import OperatorView, StateDirectory, WatchedOperator
    from forebay_console.watching.gateway import WatchedGateway

_log = logging.getLogger(__name__)

_FORM_BYTES: Final = 4_096
"""The longest body of a request."""
_OPERATOR: Final = "/operators/{query}/{uid}"
_STATIC: Final = Path(__file__).parent / "static"

OperatorPage = Callable[["OperatorView", Request], Mapping[str, Any]]


def application(
    directory: StateDirectory,
    access: Access,
    *,
    gateway: WatchedGateway | None = None,
    refresh_s: float = 2.0,
    show_data: bool = False,
) -> ASGIApp:
    """Return the site, as an ASGI application.

    :param directory: what it shows.
    :param access: who may look.
    :param gateway: the gateway of remote compaction, if it is to be asked.
    :param refresh_s: after how many seconds an open page asks for news.
    :param show_data: whether keys and values may be shown.
    """
    site = _Site(directory, access, gateway, refresh_s, show_data=show_data)
    pages = Starlette(
        routes=site.routes(),
        exception_handlers={HTTPException: site.refused, ForebayError: site.failed},
        # Not a handler of Starlette's: it would raise the error again, into the server's log.
        middleware=[Middleware(ExceptionMiddleware, handlers={Exception: site.broken})],
    )
    return Guard(pages, access)


class _Site:
    """Answers requests. Pages that read storage run on threads."""

    def __init__(
        self,
        directory: StateDirectory,
        access: Access,
        gateway: WatchedGateway | None,
        refresh_s: float,
        *,
        show_data: bool,
    ) -> None:
        self._directory: Final = directory
        self._access: Final = access
        self._gateway: Final = gateway
        self._show_data: Final = show_data
        self._registry: Final = CollectorRegistry(auto_describe=False)
        self._faults: Final = Faults()
        self._registry.register(StateDirectoryCollector(directory, self._not_counted))
        shared = {
            "state_dir": directory.url,
            "refresh_ms": int(refresh_s * 1_000),
            "has_token": access.token is not None,
        }
        self._pages: Final = Templates(shared)

    def routes(self) -> list[BaseRoute]:
        """Return the addresses."""
        return [
            Route("/", self._overview),
            self._of_operator("", "timeline", lambda o, r: timeline(o, _last(r))),
            self._of_operator("/groups", "groups", lambda o, r: key_groups(o, _by(r))),
            self._of_operator(
                "/states", "states", lambda o, r: states(o, self._reader(o), _sizes_of(r))
            ),
            self._of_operator("/files", "files", lambda o, _: files(o)),
            self._numbers("/groups.csv", key_groups_csv),
            self._numbers("/files.csv", files_csv),
            self._of_operator("/kept", "kept", lambda o, _: kept(o)),
            self._of_operator(
                "/compaction", "compaction", lambda o, _: compaction(o, self._gateway)
            ),
            self._of_operator("/versions/{version}", "version", _version),
            self._of_operator("/keys", "keys", lambda o, r: keys(o, *self._asked(o, r))),
            self._of_operator(
                "/difference", "difference", lambda o, r: difference(o, *self._asked(o, r))
            ),
            Route("/metrics", self._metrics),
            Route(LOGIN, self._login, methods=["GET", "POST"]),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ]

    def _metrics(self, request: Request) -> Response:
        """Answer Prometheus, in the format that it asks for."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"Content-Type": content_type})

    def _not_counted(self, folder: str, error: Exception) -> None:
        self._faults.named(folder, error, folder=folder)

    def _overview(self, request: Request) -> Response:
        content = overview(self._directory, _now(), self._faults)
        return self._pages.page(request, "overview.html", content)

    def _of_operator(self, path: str, name: str, content: OperatorPage) -> Route:
        def answer(request: Request) -> Response:
            operator = self._operator(request).look()
            shown = {"operator": row_of(operator, _now()), "tab": name}
            shown.update(content(operator, request))
            return self._pages.page(request, f"{name}.html", shown)

        return Route(f"{_OPERATOR}{path}", answer)

    def _numbers(self, path: str, content: Callable[[OperatorView], str]) -> Route:
        """Return the address of a page's numbers as CSV."""

        def answer(request: Request) -> Response:
            return Response(content(self._operator(request).look()), media_type="text/csv")

        return Route(f"{_OPERATOR}{path}", answer)

    def _asked(
        self, operator: OperatorView, request: Request
    ) -> tuple[ContentReader | None, Mapping[str, str]]:
        """Return the reader of content, if viewers may see it, and the form."""
        return self._reader(operator) if self._show_data else None, request.query_params

    def _reader(self, operator: OperatorView) -> ContentReader:
        return ContentReader(operator.operator, self._directory.settings)

    def _operator(self, request: Request) -> WatchedOperator:
        """Return the stored operator that a path names; names of no operator reach no storage."""
        folder = f"{request.path_params['query']}/{request.path_params['uid']}"
        found = self._directory.by_folder().get(folder)
        if found is None:
            query = name_of(request.path_params["query"])
            unlisted = self._directory.unlisted().get(query)
            if unlisted is not None:
                raise HTTPException(502, self._faults.problem(query, unlisted))
            raise HTTPException(404, "No such operator is stored in this state directory.")
        request.state.folder = folder
        return found

    async def _login(self, request: Request) -> Response:
        wrong = False
        if request.method == "POST":
            form = parse_qs((await _body(request)).decode("utf-8", "replace"))
            wrong = not self._access.is_token(form.get("token", [""])[0].strip())
            if not wrong:
                return self._admitted(request, form.get("next", ["/"])[0])
        asked = _own(request.query_params.get("next", "/"))
        content = {"wrong": wrong, "next": asked}
        return self._pages.page(request, "login.html", content, 403 if wrong else 200)

    def _admitted(self, request: Request, asked: str) -> Response:
        answer = RedirectResponse(_own(asked), status_code=303)
        answer.set_cookie(
            COOKIE,
            self._access.cookie,
            httponly=True,
            samesite="strict",
            secure=self._access.behind_tls or request.url.scheme == "https",
        )
        return answer

    async def refused(self, request: Request, error: Exception) -> Response:
        """Return the page of an address that does not exist, and the like."""
        assert isinstance(error, HTTPException)
        return await self._error(request, error.status_code, error.detail)

    async def failed(self, request: Request, error: Exception) -> Response:
        """Return the page of an error of storage."""
        _log.warning("%r: %s", request.url.path, error)
        return await self._error(request, 502, str(error))

    async def broken(self, request: Request, error: Exception) -> Response:
        """Return the page of an unexpected error, without its text.

        Which may contain stored values.
        """
        folder = getattr(request.state, "folder", "")
        named = self._faults.named(request.url.path, error, folder=folder)
        return await self._error(request, 500, named)

    async def _error(self, request: Request, status: int, message: str) -> Response:
        content = {"status": status, "message": message}
        return await run_in_threadpool(self._pages.page, request, "error.html", content, status)


def _version(operator: OperatorView, request: Request) -> Mapping[str, Any]:
    number = version_number(request.path_params["version"])
    if number is None:
        raise HTTPException(404, "Versions are whole numbers.")
    found = version(operator, number)
    if found is None:
        raise HTTPException(
            404, f"Nothing is stored of version {number}, and the history does not have it."
        )
    return found


def _last(request: Request) -> int:
    """Return the number of versions that a viewer chose."""
    asked = request.query_params.get("last", "")
    with suppress(ValueError):
        if int(asked) in WINDOWS:
            return int(asked)
    return WINDOWS[0]


def _by(request: Request) -> str:
    return request.query_params.get("by", "rows")


def _sizes_of(request: Request) -> str:
    """Return the version whose sizes a viewer asks for, if one is."""
    return request.query_params.get("sizes", "")


def _now() -> datetime:
    return datetime.now(UTC)


def _own(path: str) -> str:
    """Return a path of this site: a log-in leads to no other."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"


async def _body(request: Request) -> bytes:
    found = b""
    async for part in request.stream():
        found += part
        if len(found) > _FORM_BYTES:
            raise HTTPException(413, "The form is too long.")
    return found
