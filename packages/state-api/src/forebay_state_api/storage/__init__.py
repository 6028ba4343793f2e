"""Object storage: local directories, clouds and fsspec, behind retries.

`forebay_state_api.storage.opening.open_storage` opens a state directory. The contract of a storage
is `forebay_state_api.contract.object_storage`.
"""
