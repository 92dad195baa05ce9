"""The command line: its start, targets, options, error report, and `show`, its output.

A command is a module below `commands`. What it does to a service is in `interface`, `service` and
`admin`.
"""
