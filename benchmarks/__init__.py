"""Benchmarks: this project and its peers on the same work, alternating ours and the peer."""
