"""Let a record fail alone (``on_error="column"``): its scheduler, and journals of its changes."""
