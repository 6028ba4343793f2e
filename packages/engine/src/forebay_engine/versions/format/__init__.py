"""The objects that a version consists of: their names and their content."""
