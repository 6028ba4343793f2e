"""Stored state that a function meets: restore it, check declarations against it, read ahead."""
