"""What the entry point of the group ``forebay`` names."""
