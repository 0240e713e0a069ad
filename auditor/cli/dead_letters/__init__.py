"""``bkheal dead-letters``: marked ledgers that cannot be repaired as the cluster is now."""
