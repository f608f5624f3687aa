"""Says much at once, then dies in the middle of a word; leaves a child process behind."""

import os
import subprocess
import sys
from pathlib import Path

rank = os.environ["RANK"]
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path(os.environ["OUT"], f"child-{rank}").write_text(str(child.pid))
for number in range(2000):
    print(f"line {number} of {rank} " + "x" * 50)
sys.stdout.write("the last wor")
sys.stdout.flush()
os._exit(0 if rank == "0" else 9)
