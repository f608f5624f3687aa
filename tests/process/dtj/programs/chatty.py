"""Prints much at once, then dies in the middle of a line; leaves a child process behind.

Rank 1, whose end is a failure, dies last: it would take the others along before they have said all.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

rank, out = os.environ["RANK"], Path(os.environ["OUT"])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
(out / f"child-{rank}").write_text(str(child.pid))
for number in range(2000):
    print(f"line {number} of {rank} " + "x" * 50)
sys.stdout.write("the last wor")
sys.stdout.flush()
if rank == "0":
    (out / "said").touch()
    os._exit(0)
while not (out / "said").exists():
    time.sleep(0.01)
os._exit(9)
