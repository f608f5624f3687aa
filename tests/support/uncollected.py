"""Imported first by a process that others are forked from: imports make hardly any garbage to look for."""

import gc

gc.disable()  # until tests.support.frozen
