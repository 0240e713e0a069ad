"""The entry logs, which store entries permanently, and their garbage collection and compaction.

Start with ``entry_log``.
"""
