"""Compare the inventories of bookies with the metadata: copies outside of the metadata, and known damage.

``asking`` asks bookies in Spark tasks, ``comparison`` selects suspects in Spark SQL, ``second_look`` reads the metadata
of the suspects again, and ``verdict`` judges them and is pure.
"""
