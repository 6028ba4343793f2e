"""``forebay state``: look into committed state, and mend it."""
