"""Object storage: local directories, clouds and fsspec, behind retries.

Whoever opens a state directory comes here, by `forebay_state_api.storage.opening.open_storage`; the
contract of a storage is `forebay_state_api.contract.object_storage`.
"""
