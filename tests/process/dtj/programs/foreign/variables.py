"""Rank 0 prints the names of all variables that a launcher may have set."""

import os

prefixes = ("RANK", "LOCAL_", "WORLD_", "GROUP_", "ROLE_", "MASTER_", "TORCH", "OMP_")
if os.environ["RANK"] == "0":
    print(*(name for name in os.environ if name.startswith(prefixes)), flush=True)
