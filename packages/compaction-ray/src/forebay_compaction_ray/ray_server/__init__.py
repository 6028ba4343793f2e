"""Runs gateway and workers on Ray. Only the server imports it; needs the extra ``server``."""
