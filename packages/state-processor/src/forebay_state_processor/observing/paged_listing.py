"""Lists an operator's folder again and again, in pages: 1,000 names a request on S3."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from forebay_engine.versions.format import layout
from forebay_state_processor.observing.known_names import KnownNames
from forebay_state_processor.observing.listing import OperatorListing

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectInfo, ObjectPage, ObjectStorage

_PAGE: Final = 1_000
"""Names of a page, until one was read that is not the last."""
REFRESH_REQUESTS: Final = 2
"""The most requests of a refresh, once all pages were read."""


class PagedListing:
    """Knows all names of an operator's folder, of which it reads few again at each refresh.

    At first it reads all pages. A folder of one page is then read whole each time. Of a larger one,
    a refresh reads the page with the newest versions, and in turn one with everything but data
    files, and one of all others. So a new version shows at once, a savepoint or a pin after two
    refreshes, and what the janitor deleted after as many as there are pages. After a query went
    back, all pages are read each time until it has caught up: its new versions may be on any of
    them. Not thread-safe.
    """

    def __init__(self, storage: ObjectStorage) -> None:
        """``storage`` is the operator's folder."""
        self._storage: Final = storage
        self._known: Final = KnownNames()
        self._names: list[str] = []
        self._objects: list[ObjectInfo] = []
        self._listing = OperatorListing(objects={}, known=self._known)
        self._swept_to = ""
        """The name after which the next page of the sweep begins."""
        self._behind: str | None = None
        """The name after which more new versions follow; ``None`` if they were all read."""
        self._page_names = _PAGE
        self._reads_pages = False
        """Whether single pages are read: there are several, and the query did not go back."""
        self._sweeps = True
        """Whether the newest refresh read a page of the sweep."""
        self.is_whole = False
        """Whether the listing has all versions. It becomes false again where more versions are new
        than a page shows, or the query went back, until enough pages were read."""

    def refresh(self, requests: int = REFRESH_REQUESTS) -> int:
        """Read pages, at most ``requests``; return their number."""
        if self.is_whole and not self._reads_pages:
            self.is_whole = False
        if self._reads_pages:
            return self._refresh_pages(requests)
        if not self._storage.waits and len(self._names) > self._page_names:
            self.read_all()
            return 1
        return self._read_on(requests)

    def read_all(self) -> None:
        """List the folder at once: a request for each page."""
        self._objects = self._storage.list()
        self._names = [info.name for info in self._objects]
        self._swept_to, self._behind = "", None
        self._accept()

    def listing(self) -> OperatorListing:
        """Return the last listing in which all versions were known."""
        return self._listing

    def _read_on(self, requests: int) -> int:
        """Read pages until all were read."""
        read = 0
        while read < requests and not self.is_whole:
            if self._sweep().is_last:
                self._accept()
            read += 1
        return read

    def _refresh_pages(self, requests: int) -> int:
        """Read the page of the newest versions, after another one; or more of them."""
        read = 0
        if self._behind is None:
            self._sweeps = not self._sweeps
            page = self._sweep() if self._sweeps else self._read(layout.EPOCHS)
            read, self._behind = 1, layout.VERSIONS
            if page.is_last and not self._sweeps:  # this page has them
                self._behind = None
        while self._behind is not None and read < requests:
            page = self._read(self._behind)
            self._behind = None if self._reaches(page) else page.objects[-1].name
            read += 1
        self.is_whole = self._behind is None
        if self.is_whole:
            self._accept_unless_back()
        return read

    def _reaches(self, page: ObjectPage) -> bool:
        """Return whether a page goes on to a version that was complete in the last listing."""
        newest = self._listing.timeline.newest
        front = layout.version_folder(0 if newest is None else newest.version)
        return page.is_last or page.objects[-1].name >= front

    def _accept_unless_back(self) -> None:
        """Accept the known versions, unless a run went back; then read all pages first."""
        before = self._listing
        self._accept()
        if _went_back(before, self._listing):
            self._listing = before
            self._swept_to = ""
            self.is_whole = self._reads_pages = False

    def _accept(self) -> None:
        """Show what is known."""
        found: dict[str, list[ObjectInfo]] = {}
        for info in self._objects:
            found.setdefault(info.name.partition("/")[0], []).append(info)
        self._listing = OperatorListing(objects=found, known=self._known)
        self._reads_pages = len(self._names) > self._page_names and not _is_back(self._listing)
        if not self._reads_pages:
            self._swept_to = ""
        self.is_whole = True

    def _sweep(self) -> ObjectPage:
        """Read the next page of all, in their order."""
        page = self._read(self._swept_to)
        self._swept_to = "" if page.is_last else page.objects[-1].name
        return page

    def _read(self, after: str) -> ObjectPage:
        """Read a page; it replaces what was known between its ends."""
        page = self._storage.list_page(after)
        start, end = bisect_right(self._names, after), len(self._names)
        if not page.is_last:
            self._page_names = len(page.objects)
            end = bisect_right(self._names, page.objects[-1].name)
        self._objects = [*self._objects[:start], *page.objects, *self._objects[end:]]
        self._names = [info.name for info in self._objects]
        return page


def _went_back(before: OperatorListing, after: OperatorListing) -> bool:
    """Return whether a run began, or goes on, below the newest version of the listing before."""
    newest, made = before.timeline.newest, after.timeline.newest
    if newest is None or made is None:
        return newest is not made
    same = (made.version, made.run_key) == (newest.version, newest.run_key)
    if made.version <= newest.version and not same:
        return True
    known = {info.name for info in before.below(layout.EPOCHS)}
    new = [entry for entry in after.epochs.entries if entry.name not in known]
    return any(entry.since < newest.version for entry in new)


def _is_back(listing: OperatorListing) -> bool:
    """Return whether versions of other runs than the newest are stored."""
    newest, run = listing.timeline.newest, listing.epochs.newest()
    if newest is None:
        return False
    if run is not None and run.run_key != newest.run_key and run.since < newest.version:
        return True
    return any(one.version > newest.version for one in listing.timeline.abandoned)
