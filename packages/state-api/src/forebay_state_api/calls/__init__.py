"""Declarations of calls: limits, retries, rates, and errors that ask for another try."""
