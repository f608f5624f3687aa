"""A tiny training run whose ranks die as $DEATHS says: blame_plan.Death as JSON.

Just before a rank dies, it writes a file truth-<time in ns>-<rank> into $OUT with its rank, way and life.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch

import dtj
from tests.bench.blame_plan import SAVE_EVERY, STEPS

OUT = Path(os.environ["OUT"])
RANK = int(os.environ["RANK"])
LIFE = int(os.environ["DTJ_GENERATION"])
DEATHS: list[dict[str, Any]] = [
    death for death in json.loads(os.environ["DEATHS"]) if (death["rank"], death["life"]) == (RANK, LIFE)
]


def die(death: dict[str, Any]) -> None:
    """Record the death, then die."""
    truth = {"rank": RANK, "how": death["how"], "life": LIFE}
    file = OUT / f"truth-{time.time_ns()}-{RANK}"
    file.with_suffix(".new").write_text(json.dumps(truth))
    file.with_suffix(".new").rename(file)
    match death["how"]:
        case "raise":
            raise ValueError("label 11 is out of range")
        case "exit":
            raise SystemExit(3)
        case "vanish":
            os._exit(5)
        case name:
            os.kill(os.getpid(), signal.Signals[name])
            time.sleep(60)


def reach(place: str, step: int = 0) -> None:
    """A point in the program: die here, or some milliseconds later, during the code that follows."""
    for death in DEATHS:
        if (death["place"], death["step"]) != (place, step):
            continue
        if not death["delay_ms"]:
            die(death)
        timer = threading.Timer(death["delay_ms"] / 1000, die, [death])
        timer.daemon = True
        timer.start()


class Slow:
    """A part of the state that takes a while to save."""

    def state_dict(self) -> dict[str, int]:
        time.sleep(0.15)
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Nothing to restore."""


def main() -> None:
    reach("start")
    reach("init")
    run = dtj.init(save_every=SAVE_EVERY)
    model = run.parallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = run.data(torch.utils.data.TensorDataset(torch.ones(48, 4)), global_batch=8)
    run.state(model=model, optimizer=optimizer, data=data, slow=Slow())

    def loss_of(batch: Any) -> torch.Tensor:
        reach("forward", run.step)
        loss: torch.Tensor = model(batch[0]).square().mean()
        return loss

    for batch in run.steps(STEPS):
        run.backward(loss_of, batch)
        optimizer.step()
        optimizer.zero_grad()
        reach("end", run.step)
        if run.step + 1 == SAVE_EVERY:
            reach("save", SAVE_EVERY)


if __name__ == "__main__":
    main()
