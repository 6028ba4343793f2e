"""A state backend for Forebay."""
