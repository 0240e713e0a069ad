"""Decisions before a bookie is stopped, drained, or taken out for good; and the scans that they are made from."""
