"""Benchmarks: this project and its peers on the same work, ours and the peer in turn."""
