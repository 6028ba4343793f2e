"""Options that several commands have."""
