"""The engine's operator state: read from manifests, held in memory, stored by commits.

A subtask uses `subtask_state.OperatorState`; the contract is
`forebay_state_api.job.operator_state`.
"""
