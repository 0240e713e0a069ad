"""Feeds damaged bytes to every parser of bytes from a disk or the network.

``targets`` has the table: a parser, intact inputs, and the errors expected by its callers. ``mutation`` damages an
input, by a seed. The gate tries a few hundred inputs of each target; ``python -m tests.fuzzing`` tries a million in
total.
"""
