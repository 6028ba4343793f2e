"""The side of Spark: where jobs are sent, and what is done when that fails."""
