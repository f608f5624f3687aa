"""Uses and frees 128 MiB, as a step does, again and again; prints the page faults of the last ten times."""

import resource

import torch


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def use() -> None:
    activations = [torch.ones(4 << 20) for _ in range(8)]
    del activations


for _ in range(3):
    use()
before = faults()
for _ in range(10):
    use()
print("faults", faults() - before)
