"""Network storage through obstore: S3, GCS, Azure and HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from forebay_state_api.contract.object_storage import ObjectPage
from forebay_state_api.contract.storage_fault import words_of
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.storage.obstore import ObstoreStorage, is_panic

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PAGE: Final = 1_000
"""The most names that S3 returns for one request."""

CLIENT_OPTIONS: Final = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_max_frame_size",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
"""Options of obstore's HTTP client, the same for every store."""


class CloudStorage(ObstoreStorage):
    """A store that obstore opens by its URL; a subclass sets the class and the option names.

    Options are passed under their own names to the store and to its HTTP client.
    ``request-timeout``, in seconds, is Forebay's name for the client's ``timeout``.
    """

    schemes: ClassVar[tuple[str, ...]]
    _is_remote: ClassVar[bool] = True
    prefix: ClassVar[str] = ""
    """An optional prefix of the store's option names, including its HTTP client's."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        """Open ``url``; raises `ConfigurationError` naming the wrong option."""
        try:
            store = self._store_of(url, options)
        except BaseException as error:
            if not _is_from_obstore(error):
                raise
            names = ", ".join(f"spark.forebay.storage.{n}" for n in self._at_fault(url, options))
            given = f" with {names}" if names else ""
            raise ConfigurationError(
                f"storage at {url!r} cannot be opened{given}: {words_of(error)}"
            ) from error
        super().__init__(store, url.rstrip("/"))

    @classmethod
    def split_options(cls, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options of the store, and the options of its HTTP client."""
        store: dict[str, Any] = {}
        client: dict[str, Any] = {}
        for name, value in options.items():
            if name == "request-timeout":
                own, value = "timeout", timedelta(seconds=float(value))
            elif (own := name.lower().removeprefix(cls.prefix)) not in CLIENT_OPTIONS:
                store[name] = value
                continue
            if own in client:
                raise ConfigurationError(
                    f"spark.forebay.storage.{name} is given twice, under another name as well"
                )
            client[own] = value
        endpoints = [str(value) for name, value in store.items() if name.endswith("endpoint")]
        if any(endpoint.startswith("http://") for endpoint in endpoints):
            client.setdefault("allow_http", True)
        return store, client

    @classmethod
    def _store_of(cls, url: str, options: Mapping[str, Any]) -> ObjectStore:
        config, client = cls.split_options(options)
        return from_url(
            url,
            config=cast("Any", config or None),
            client_options=cast("Any", client or None),
            retry_config=cast("Any", {"max_retries": 0}),  # see `RetryingStorage`
        )

    @classmethod
    def _at_fault(cls, url: str, options: Mapping[str, Any]) -> list[str]:
        """Return the only option whose removal lets the store open.

        All options if there is no such option.
        """
        for name in sorted(options):
            try:
                cls._store_of(url, {n: value for n, value in options.items() if n != name})
            except BaseException as error:
                if not _is_from_obstore(error):
                    raise
            else:
                return [name]
        return sorted(options)


class S3Storage(CloudStorage):
    """S3, and stores that speak its protocol."""

    contract_version: ClassVar[int] = 2
    schemes: ClassVar[tuple[str, ...]] = ("s3", "s3a")
    prefix: ClassVar[str] = "aws_"

    def list_page(self, after: str = "") -> ObjectPage:
        """Return a page of `PAGE` names; a directory bucket does not sort them, so it returns all.

        One request, unless the server returns fewer names at once than it was asked for.
        """
        if self._is_directory_bucket:
            return super().list_page(after)
        store = cast("ObjectStore", self._opened(create=False))
        offset = self._path(after) if after else None
        try:
            listed = obstore.list(store, self._folder(""), offset=offset, chunk_size=PAGE)
            found = self._infos(next(iter(listed), []))
        except (BaseError, OSError, ValueError) as error:
            raise self.failed("list", after, error) from error
        return ObjectPage(found, is_last=len(found) < PAGE)

    @property
    def _is_directory_bucket(self) -> bool:
        return urlsplit(self.url).netloc.endswith("--x-s3")


class GcsStorage(CloudStorage):
    """Google Cloud Storage."""

    contract_version: ClassVar[int] = 2
    schemes: ClassVar[tuple[str, ...]] = ("gs",)
    prefix: ClassVar[str] = "google_"


class AzureStorage(CloudStorage):
    """Azure Blob Storage."""

    contract_version: ClassVar[int] = 2
    schemes: ClassVar[tuple[str, ...]] = ("az", "adl", "azure", "abfs", "abfss")
    prefix: ClassVar[str] = "azure_"


class HttpStorage(CloudStorage):
    """A server that speaks WebDAV."""

    contract_version: ClassVar[int] = 2
    schemes: ClassVar[tuple[str, ...]] = ("http", "https")


def _is_from_obstore(error: BaseException) -> bool:
    return isinstance(error, (BaseError, OSError, ValueError, TypeError)) or is_panic(error)
