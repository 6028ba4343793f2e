"""The gateway: jobs, queue, workers, and the server in front of them. Independent of Ray."""
