"""Options and configuration files: the sources of values, their checks, ``bkheal config``.

Start with ``sources``.
"""
