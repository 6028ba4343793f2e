"""The asynchronous engine: drives a function over keyed rows, one record of a key at a time.

``scheduler`` decides what runs next and batches reads, ``engine`` drives the user's function,
``point``, ``merging``, ``lists`` and ``maps`` are the state objects over a backend's tables.
"""
