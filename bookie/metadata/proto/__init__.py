"""Apache's stored messages and the code generated from them.

Does not belong here: anything written by hand, except ``.proto`` files.
"""
