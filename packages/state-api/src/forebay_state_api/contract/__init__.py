"""What plugins implement: backends, storages, compactors, compaction services, hooks.

Authors of plugins come here. The conformance kit in `forebay_state_api.testing` checks what these
modules promise; a plugin states the `CONTRACT_VERSION` that it was written for.
"""

from typing import Final

CONTRACT_VERSION: Final = 2
"""The version of this contract. A plugin states the one it implements as ``contract_version``."""
