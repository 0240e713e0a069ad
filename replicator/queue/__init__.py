"""Choose the next task: order by severity, delays, parked tasks; and who looks for tasks.

Not here: how a task is locked (``bookie.metadata.tasks.locks``); the repair itself (``replicator.repair``).
Start with ``task_queue``, and with ``duty`` for fleets.
"""
