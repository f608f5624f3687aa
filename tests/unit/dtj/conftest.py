"""For the tests of the trainer that run in one process."""

import torch

torch.set_num_threads(
    1
)  # two threads of each of two test processes would only wait for each other on two cores
