"""Options and configuration files: where a value comes from, how it is checked, ``bkheal config``.

Start with ``sources``.
"""
