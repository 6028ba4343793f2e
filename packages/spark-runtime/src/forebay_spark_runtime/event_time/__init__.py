"""How time reaches the tasks of a keyed operator."""
