"""Let a record fail alone (``on_error="column"``): journals of its changes, and its own loops."""
