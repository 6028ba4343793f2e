"""``forebay compaction``: starts and inspects a gateway, and changes the list of gateways.

Operators of a cluster come here; the plugin gives `group` to the command line.
"""
