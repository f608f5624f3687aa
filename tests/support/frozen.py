"""Imported last by a process that others are forked from.

Keeps the garbage collector off what is imported: a collection in a forked process would copy all its pages.
"""

import atexit
import gc

gc.collect()
gc.freeze()
atexit.register(gc.unfreeze)  # else libraries whose objects are left at the end report leaks
