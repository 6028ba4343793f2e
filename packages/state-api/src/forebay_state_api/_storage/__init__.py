"""The parts of `forebay_state_api.storage`, which is what others import."""
