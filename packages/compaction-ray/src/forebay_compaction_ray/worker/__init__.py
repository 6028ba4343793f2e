"""What runs a job: the inside of a worker. Knows nothing of Ray."""
