"""Object storage: local directories, clouds and fsspec, behind retries.

`open_storage` opens a state directory. The contract of a storage is
`forebay_state_api.contract.object_storage`; a storage that wraps another one is a
`ForwardingStorage`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.lazy_names import import_on_first_use

if TYPE_CHECKING or not import_on_first_use(__name__):
    from forebay_state_api.storage.forwarding import ForwardingStorage as ForwardingStorage
    from forebay_state_api.storage.opening import open_storage as open_storage
