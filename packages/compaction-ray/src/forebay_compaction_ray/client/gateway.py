"""A client's connection to one gateway: a channel, and a circuit breaker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

import grpc

from forebay_compaction_ray.client.lifecycle import CallEvent, ConnectionState
from forebay_compaction_ray.credentials import Credentials
from forebay_compaction_ray.messages import Greeting, Hello, JobView, Submission
from forebay_compaction_ray.protocol import (
    REFUSAL_KEY,
    SERVICE,
    MalformedMessageError,
    RefusedError,
    decode,
    pack,
    unpack,
)
from forebay_state_api.errors import StorageError

T = TypeVar("T")

ANSWER_S: Final = 10.0
"""Longest wait for a connection and an answer."""
_FIRST_REST_S: Final = 1.0
_LONGEST_REST_S: Final = 10.0
_CLOSED: Final = ("Socket closed", "Connection reset by peer")
"""Words of gRPC about a server that has closed a new connection."""
_OF_HANDSHAKES: Final = {
    "WRONG_VERSION_NUMBER": ". It does not serve TLS: leave tls-ca out",
    "CERTIFICATE_VERIFY_FAILED": ". The CA in tls-ca has not signed its certificate",
    "Hostname Verification": ". Its certificate is not for the name of the address",
}
"""Words of gRPC → what they mean for the settings."""
_UNKNOWN: Final = (
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)


class UnreachableError(StorageError):
    """A gateway did not answer, or the answer was not a gateway's.

    Operator action: check the address, and that a gateway runs there
    (``forebay compaction status --gateway ip:port``).
    """


class Gateway:
    """A gateway at an address. Methods may be called from any thread.

    Each call raises `UnreachableError` or `RefusedError`. After a call without an answer the
    circuit is open: calls fail at once, until one of them tries the gateway over another
    connection.
    """

    def __init__(
        self,
        address: str,
        security: Callable[[], Credentials],
        *,
        timeout_s: float = ANSWER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``security`` returns the current credentials, and is called before each call.

        ``timeout_s`` is the longest wait for an answer, in addition to the wait of a poll.
        """
        self.address: Final = address
        self._security: Final = security
        self._credentials = security()
        self._timeout_s: Final = timeout_s
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._reach = ConnectionState.UP
        self._complaint = ""
        """The reason for which the circuit is open."""
        self._rest_s = _FIRST_REST_S
        self._rested_s = 0.0
        """When a gateway that did not answer may be called again."""
        self._channel: grpc.Channel | None = None

    def hello(
        self,
        events: Mapping[str, int] | None = None,
        marks: Mapping[str, str | None] | None = None,
    ) -> Greeting:
        """Return the gateway's description, and report ``events`` to it.

        If ``marks``, which this side reads, differ from its storages', it looks again first.
        """
        told = Hello(events=events or {}, marks={n: m or "" for n, m in (marks or {}).items()})
        return self._ask(Greeting.from_plain, "Hello", told.to_plain())

    def submit(self, submission: Submission) -> JobView:
        """Submit a job."""
        return self._ask(JobView.from_plain, "Submit", submission.to_plain())

    def poll(self, job_id: str, wait_s: float = 0.0) -> JobView:
        """Return the state of a job, when it is done or after ``wait_s`` seconds."""
        asked = {"job_id": job_id, "wait_s": wait_s}
        return self._ask(JobView.from_plain, "Poll", asked, wait_s)

    def release(self, job_id: str) -> None:
        """Let the gateway end and forget a job."""
        self.call("Release", {"job_id": job_id})

    def call(self, method: str, message: Mapping[str, Any]) -> dict[str, Any]:
        """Call a method by name."""
        return self._ask(dict, method, message)

    def close(self) -> None:
        """Close the channel; all calls, including those in progress, fail as unreachable."""
        with self._lock:
            self._reach = self._reach.after(CallEvent.CLOSE)
            self._drop_channel()

    def _ask(
        self,
        read: Callable[[Mapping[str, Any]], T],
        method: str,
        message: Mapping[str, Any],
        wait_s: float = 0.0,
    ) -> T:
        """Call a method, with the credentials that their files hold now."""
        channel = self._connected()
        try:
            answer = self._exchange(channel, method, pack(message), self._timeout_s + wait_s)
            found = read(unpack(answer))
        except MalformedMessageError as error:
            raise self._unreachable_error(channel, f"gave no answer: {error}") from error
        except RefusedError:
            self._answered()
            raise
        self._answered()
        return found

    def _exchange(
        self, channel: grpc.Channel, method: str, message: bytes, timeout_s: float
    ) -> bytes:
        """Send a message and return the answer; raises also `MalformedMessageError`."""
        tokens = self._credentials.tokens
        metadata = (("authorization", f"Bearer {tokens[0]}"),) if tokens else ()
        try:
            call = channel.unary_unary(f"/{SERVICE}/{method}")
            return cast("bytes", call(message, timeout=timeout_s, metadata=metadata))
        except grpc.RpcError as error:
            if refused := _refusal(error):
                raise refused from error
            told = str(error.details()).rstrip(".")
            what = f"cannot be reached: {error.code().name}: {told}{_hint(told, self._credentials)}"
            raise self._unreachable_error(channel, what) from error
        except ValueError as error:  # gRPC raises this for a channel that was closed meanwhile
            raise UnreachableError(f"the connection to {self.address} was closed") from error

    def _answered(self) -> None:
        with self._lock:
            self._reach, self._rest_s = self._reach.after(CallEvent.ANSWERED), _FIRST_REST_S

    def _unreachable_error(self, channel: grpc.Channel, what: str) -> UnreachableError:
        """Return the error of a call that no gateway answered, and give up its connection.

        The fault of a connection that was given up before says nothing about the present one.
        """
        complaint = f"the gateway {self.address} {what}"
        with self._lock:
            if channel is self._channel:
                self._drop_channel()
                self._reach, self._complaint = self._reach.after(CallEvent.SILENT), complaint
                self._rested_s = self._clock() + self._rest_s
                self._rest_s = min(_LONGEST_REST_S, 2 * self._rest_s)
        return UnreachableError(complaint, transient=True)

    def _connected(self) -> grpc.Channel:
        """Return a channel with the credentials of the moment; raises while the gateway rests."""
        with self._lock:
            if self._reach is ConnectionState.CLOSED:
                raise UnreachableError(f"the connection to the gateway {self.address} was closed")
            former, self._credentials = self._credentials, self._security()
            if self._credentials != former:
                self._drop_channel()
                self._reach = self._reach.after(CallEvent.RENEWED)
            if self._reach is ConnectionState.RESTING:
                if (now := self._clock()) < self._rested_s:
                    raise UnreachableError(self._complaint, transient=True)
                self._rested_s = now + self._rest_s  # meanwhile no other caller tries it
            if self._channel is None:
                self._channel = self._open()
            return self._channel

    def _drop_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _open(self) -> grpc.Channel:
        mine, attempt_ms = self._credentials, int(1000 * self._timeout_s)
        options = [
            ("grpc.enable_http_proxy", 0),  # an address is ip:port, with nothing to resolve
            ("grpc.use_local_subchannel_pool", 1),  # else a new channel gets the old connection
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", attempt_ms),  # limits an attempt to connect, too
            ("grpc.max_reconnect_backoff_ms", attempt_ms),
        ]
        if mine.ca is None:
            return grpc.insecure_channel(self.address, options=options)
        credentials = grpc.ssl_channel_credentials(
            root_certificates=mine.ca,
            private_key=mine.key,
            certificate_chain=mine.certificate,
        )
        return grpc.secure_channel(self.address, credentials, options=options)


def _hint(told: str, mine: Credentials) -> str:
    """Return advice for a failed handshake, whose error of gRPC has few details."""
    if "failed to connect" in told and any(words in told for words in _CLOSED):
        if mine.ca is None:
            return ". If it serves TLS, name the CA of its certificate in tls-ca"
        if mine.certificate is None:
            return ". If it requires certificates of clients, name one in tls-cert, and tls-key"
        return ". If it requires certificates of clients, its CA may not have signed tls-cert"
    return next((hint for words, hint in _OF_HANDSHAKES.items() if words in told), "")


def _refusal(error: Any) -> RefusedError | None:
    """Return the refusal in a failed call, if there is one; raises `MalformedMessageError`."""
    told = dict(error.trailing_metadata() or ()).get(REFUSAL_KEY)
    if told is not None:
        return RefusedError.from_plain(decode(told))
    if error.code() in _UNKNOWN:
        return RefusedError("protocol", f"it is not a gateway of Forebay: {error.details()}")
    return None
