"""Decisions before a bookie is stopped, drained, or removed permanently; and the scans they are made from."""
