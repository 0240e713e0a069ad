"""Lists of findings in pages: of one run, and of all runs."""
