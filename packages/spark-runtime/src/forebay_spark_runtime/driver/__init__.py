"""What happens on the driver: the session, its settings, the listener of queries, the doctor.

The operators come here while a query is planned and between its micro-batches.
"""
