"""The conformance kit, one file per part of the contract; `StateBackendTests` is all of it."""

from __future__ import annotations

from forebay_state_api.testing.conformance.aliasing import AliasingTests
from forebay_state_api.testing.conformance.declaring import DeclarationTests
from forebay_state_api.testing.conformance.futures import FutureTests
from forebay_state_api.testing.conformance.iterators import IteratorTests
from forebay_state_api.testing.conformance.kinds import KeysOfMapsTests, KindTests
from forebay_state_api.testing.conformance.machine import StateMachineTests
from forebay_state_api.testing.conformance.order import OrderTests
from forebay_state_api.testing.conformance.rescale import RescaleTests
from forebay_state_api.testing.conformance.tables import CommitTests, TableTests
from forebay_state_api.testing.conformance.ttl import TtlDeclarationTests, TtlTests
from forebay_state_api.testing.conformance.versions import (
    MigrationTests,
    VerificationTests,
    VersionTests,
)


class StateBackendTests(
    TableTests,
    CommitTests,
    FutureTests,
    IteratorTests,
    KindTests,
    KeysOfMapsTests,
    AliasingTests,
    DeclarationTests,
    OrderTests,
    TtlTests,
    TtlDeclarationTests,
    RescaleTests,
    VersionTests,
    VerificationTests,
    MigrationTests,
    StateMachineTests,
):
    """Everything that a state backend has to do; see `forebay_state_api.testing`."""


__all__ = ["StateBackendTests"]
