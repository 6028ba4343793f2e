"""Operator state as the engine runs it: opened from manifests, held in memory, stored by commits.

`operator_state.OperatorState` is what a subtask uses; the contract is
`forebay_state_api.job.operator_state`.
"""
