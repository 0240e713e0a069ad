"""Breaks the product in one place at a time, as a person might, and proves that the gate notices.

``sabotages.toml`` names what is broken, by which change of which file, and the tests of the gate that have to fail.
``python -m tests.sabotage`` applies one change at a time to a copy of the tree and runs these tests there. A change
that they do not notice survives: a test is missing. Start reading at ``runner``.
"""
