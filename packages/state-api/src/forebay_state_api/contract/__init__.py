"""The contracts that plugins implement: backends, storages, compactors, services, hooks.

Authors of plugins import from here. The conformance kit in `forebay_testing` tests what
these modules promise; a plugin declares the `CONTRACT_VERSION` that it was written for, and runs
on every release that serves it.
"""

from typing import Final

__all__ = ["CONTRACT_VERSION", "SERVED_VERSIONS"]

CONTRACT_VERSION: Final = 2
"""The version of this contract. A plugin declares its own as ``contract_version``."""
SERVED_VERSIONS: Final = frozenset({CONTRACT_VERSION})
"""The versions whose plugins this release runs. A change that only adds to the contract raises
`CONTRACT_VERSION` and keeps the older versions here; one that breaks them takes them out."""
