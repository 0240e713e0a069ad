"""The tables of all runs: schemas, files, upkeep, and questions in SQL."""
