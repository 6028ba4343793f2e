"""Choose the version to open, fence older runs, and pin versions that are in use."""
