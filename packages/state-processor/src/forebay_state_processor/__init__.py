"""State outside a job: read it, follow it, watch it, compare it, and bring it along.

Needs no Spark, and none of the job's classes. `reading` opens versions and feeds, `observing` shows
running operators from storage alone, and `importing` writes versions from tables.
"""
