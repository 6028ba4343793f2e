"""Restore stored state, check declarations against it, and keep caches of it current."""
