"""Replaces its standard output by another file and closes that, as Python allows."""

import sys
from pathlib import Path

sys.stdout = Path("/dev/null").open("w")  # noqa: SIM115 - stays open until it is closed below
sys.stdout.close()
sys.stderr.write("done\n")
