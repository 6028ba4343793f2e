"""The client in Spark's processes: sends jobs to gateways and handles failures."""
