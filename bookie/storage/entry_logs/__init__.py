"""Entry logs: the files that hold entries permanently, their garbage collection and compaction.

Start with ``entry_log``.
"""
