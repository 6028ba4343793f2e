"""The contracts that plugins implement: backends, storages, compactors, services, hooks.

Authors of plugins import from here. The conformance kit in `forebay_testing` tests what
these modules promise; a plugin declares the `CONTRACT_VERSION` that it was written for.
"""

from typing import Final

CONTRACT_VERSION: Final = 2
"""The version of this contract. A plugin declares its own as ``contract_version``."""
