"""What lives as long as a Python worker process: services, threads, the identity of its tasks.

The tasks of both operators come here, and leave behind what the next task finds.
"""
