"""What bookies hold, compared with the metadata: copies that the metadata does not place there, and known damage.

``asking`` asks bookies in Spark tasks, ``comparison`` selects suspects in Spark SQL, ``second_look`` reads the metadata
of these again, and ``verdict`` judges them, pure.
"""
