"""Break the product in one place at a time, as a person might, and check that tests of the gate fail.

``sabotages.toml`` describes what is broken, by which change of which file, and names the tests that must fail.
``python -m tests.sabotage`` applies one change at a time to a copy of the tree and runs these tests there. If they
pass, the change survives, and a test is missing. Start reading at ``runner``.
"""
