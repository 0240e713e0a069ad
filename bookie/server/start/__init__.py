"""The start of a bookie: from its ports and directories to its registration and background work.

Not here: which disks belong to the bookie (``bookie.server.joining``), and the end of the process
(``bookie.server.main``).
Start with ``phases``.
"""
