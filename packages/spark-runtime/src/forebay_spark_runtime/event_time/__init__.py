"""The event time of a keyed operator, as it reaches the tasks."""
