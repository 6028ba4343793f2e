"""The command line ``forebay``, one module for each group of commands.

Operators come here through the console script; packages that bring commands of their own use
`conf_options`, `report` and `state_directory`.
"""
