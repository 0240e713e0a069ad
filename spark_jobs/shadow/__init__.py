"""Compare our audit with Apache's auditor on the same cluster before a migration. Nothing is marked.

``compare`` is pure, ``second_look`` reads ledgers with differences again, ``reasons`` explains the differences.
Start with ``run``.
"""
