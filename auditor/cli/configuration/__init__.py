"""Options and configuration files: the source of a value, its check, ``bkheal config``.

Start with ``sources``.
"""
