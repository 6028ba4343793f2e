"""The command line ``forebay``, one module for each group of commands.

Operators reach it through the console script; packages with their own commands use
`forebay_cli.options` and `forebay_cli.output`.
"""
