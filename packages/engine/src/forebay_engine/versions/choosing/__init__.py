"""Which version is opened, who may write the next one, and what keeps a version."""
