"""Commands that watch running operators: ``top``, ``explain`` and ``bundle``."""
