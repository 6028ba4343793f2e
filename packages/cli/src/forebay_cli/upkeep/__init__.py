"""Commands that maintain state directories: ``janitor``, ``doctor``, ``savepoint``, ``recover``."""
