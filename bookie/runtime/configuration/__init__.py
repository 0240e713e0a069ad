"""Settings that every process shares, and how a change of the configuration file reaches a running process.

Not here: the options of each command (``auditor.cli.configuration``).
Start with ``settings``.
"""
