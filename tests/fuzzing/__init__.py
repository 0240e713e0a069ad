"""Pass damaged bytes to every parser of bytes from a disk or the network.

``targets`` has the table: a parser, intact inputs, and the errors that its callers expect. ``mutation`` damages an
input according to a seed. The gate tries a few hundred inputs of each target; ``python -m tests.fuzzing`` tries a
million in total.
"""
