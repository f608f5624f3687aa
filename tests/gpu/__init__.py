"""Training on a GPU: GPT-2 with 124 million parameters, one rank.

Skipped with the reason where there is no GPU. `DTJ_TEST_DEVICE=cpu` runs the same tests with a tiny model on
the CPU, to try the tests themselves.
"""
