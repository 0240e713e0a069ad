"""The settings common to all processes, and the reload of the configuration file in a running process.

Not here: the options of each command (``auditor.cli.configuration``).
Start with ``settings``.
"""
