"""A client's connection to one gateway: a channel, opened at the first call, and a breaker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc

from forebay_compaction_ray.client.breaker import Breaker
from forebay_compaction_ray.messages import JobView, Submission
from forebay_compaction_ray.options import ClientSecurity
from forebay_compaction_ray.protocol import (
    METHODS,
    REFUSAL_KEY,
    SERVICE,
    MalformedMessageError,
    RefusedError,
    decode,
    pack,
    permanent,
    unpack,
)
from forebay_state_api.errors import StorageError

_OPTIONS: Final = [
    ("grpc.enable_http_proxy", 0),  # an address is ip:port, with nothing to resolve
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_UNKNOWN: Final = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED)


class UnreachableError(StorageError):
    """A gateway did not answer, or the answer was not a gateway's.

    Operator action: check the address, and that a gateway runs there
    (``forebay compaction status --gateway ip:port``).
    """


class Gateway:
    """A gateway at an address. Methods may be called from any thread.

    Each call raises `UnreachableError` or `RefusedError`.
    """

    def __init__(
        self,
        address: str,
        security: ClientSecurity,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``timeout_s`` is the longest wait for an answer, in addition to the wait of a poll."""
        self.address: Final = address
        self.breaker: Final = Breaker(clock)
        self._security: Final = security
        self._timeout_s: Final = timeout_s
        self._lock: Final = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._methods: dict[str, Any] = {}
        self._closed = False

    def hello(self, events: Mapping[str, int] | None = None) -> dict[str, Any]:
        """Return the gateway's description; it counts ``events``."""
        return self.call("Hello", {"events": dict(events)} if events else {})

    def submit(
        self, submission: Submission, wait_s: float = 0.0, *, forget: bool = False
    ) -> JobView:
        """Submit a job, and wait ``wait_s`` for its end, which saves polling a short one.

        With ``forget`` the gateway releases the job if its answer is that the job is done.
        """
        message = {**submission.to_plain(), "wait_s": wait_s, "forget": forget}
        return self._view("Submit", message, self._timeout_s + wait_s)

    def poll(self, job_id: str, wait_s: float = 0.0, *, forget: bool = False) -> JobView:
        """Return the state of a job; ``forget`` as for `submit`."""
        asked = {"job_id": job_id, "wait_s": wait_s, "forget": forget}
        return self._view("Poll", asked, self._timeout_s + wait_s)

    def abort(self, job_id: str) -> JobView:
        """Ask a job to stop."""
        return self._view("Abort", {"job_id": job_id}, self._timeout_s)

    def release(self, job_id: str) -> None:
        """Let the gateway forget a job."""
        self.call("Release", {"job_id": job_id})

    def call(
        self, method: str, message: Mapping[str, Any], timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Call a method by name."""
        try:
            data = self._method(method)(
                pack(message),
                timeout=timeout_s or self._timeout_s,
                metadata=self._metadata(),
            )
            answer = unpack(data)
        except grpc.RpcError as error:
            raise self._call_error(error) from error
        except ValueError as error:  # gRPC raises this for a channel that was closed meanwhile
            raise UnreachableError(f"the connection to {self.address} was closed") from error
        except MalformedMessageError as error:
            raise self._no_answer(error) from error
        self.breaker.answered()
        return answer

    def close(self) -> None:
        """Close the channel; all calls, including those in progress, fail as unreachable."""
        with self._lock:
            self._closed = True
            channel, self._channel, self._methods = self._channel, None, {}
        if channel is not None:
            channel.close()

    def _view(self, method: str, message: Mapping[str, Any], timeout_s: float) -> JobView:
        try:
            return JobView.from_plain(self.call(method, message, timeout_s))
        except MalformedMessageError as error:
            raise self._no_answer(error) from error

    def _method(self, name: str) -> Any:
        with self._lock:
            if self._closed:
                raise UnreachableError(f"the connection to the gateway {self.address} was closed")
            if self._channel is None:
                self._channel = self._open()
                self._methods = {
                    method: self._channel.unary_unary(f"/{SERVICE}/{method}") for method in METHODS
                }
            return self._methods[name]

    def _open(self) -> grpc.Channel:
        security = self._security
        if security.ca is None:
            return grpc.insecure_channel(self.address, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(
            root_certificates=security.ca,
            private_key=security.key,
            certificate_chain=security.certificate,
        )
        return grpc.secure_channel(self.address, credentials, options=_OPTIONS)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        token = self._security.token
        return () if token is None else (("authorization", f"Bearer {token}"),)

    def _no_answer(self, error: MalformedMessageError) -> UnreachableError:
        """Count an answer that no gateway gives as a failure, and return its error."""
        self.breaker.failed()
        return UnreachableError(
            f"the gateway {self.address} gave no answer: {error}", transient=True
        )

    def _call_error(self, error: Any) -> RefusedError | UnreachableError:
        """Return the error of a failed call: a gateway's refusal, or no answer from a gateway."""
        for key, value in error.trailing_metadata() or ():
            if key == REFUSAL_KEY:
                self.breaker.answered()
                return RefusedError.from_plain(decode(value))
        code, details = error.code(), error.details()
        if code in _UNKNOWN:
            self.breaker.answered()
            return permanent("protocol", f"{self.address} is not a gateway of Forebay: {details}")
        self.breaker.failed()
        return UnreachableError(
            f"the gateway {self.address} cannot be reached: {code.name}: {details}",
            transient=True,
        )
