"""A whole cluster on one machine, for quick starts and tests: a real ZooKeeper and bookie processes.

Does not belong here: anything a production deployment imports.
"""
