"""The driver's part: the session, its settings, the query listener and the doctor.

The operators use it while a query is planned and between its micro-batches.
"""
