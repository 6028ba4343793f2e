"""The inside of a worker, which runs jobs. Independent of Ray."""
