"""The command line ``forebay``, one module for each group of commands.

Operators reach it through the console script; packages with their own commands use `conf_options`,
`report` and `state_directory`.
"""
