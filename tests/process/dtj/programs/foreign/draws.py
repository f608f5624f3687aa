"""A script that sets no seed: each rank draws numbers of its own; rank 0 fails in the first generation."""

import os
import sys

import numpy as np
import torch

print(np.random.rand(), torch.rand(()).item(), flush=True)
if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("0", "0"):
    sys.exit(3)
