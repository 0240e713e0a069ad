"""What a run marks for repair, and when: rules for marks, early marks of new losses, and the withdrawal of marks.

``publish`` makes the marks, in batches. Every rule before it only leaves marks out (``brake``, ``lost_bookies``,
``held_back``, ``limits``).
"""
