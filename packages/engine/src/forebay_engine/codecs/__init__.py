"""Codecs of ordered keys and of values without their classes; changes between two types."""
