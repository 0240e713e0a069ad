"""Comparisons with the programs of Apache BookKeeper: audits, repairs and adds on the same machine, in one run."""
