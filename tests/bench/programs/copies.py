"""Trains with and without copies of the state in memory, in blocks that take turns.

A block with copies lasts from one copy to the third after it, as copies are made without any flag. Then as
many steps follow without copies.
"""

import time

import torch

import dtj
from dtj.copies import slot
from dtj.recipes import text
from tests.bench.ranks import tell

BLOCKS, COPIES, WARM_UP = 6, 3, 2


def newest(slots: tuple[slot.Slot, ...]) -> int:
    """The step of the newest copy."""
    return max(label.step if (label := each.label()) else 0 for each in slots)


def main() -> None:
    run = dtj.init()
    recipe = text.recipe()
    model = run.parallel(recipe.model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run.data(recipe.data, global_batch=recipe.global_batch)
    run.state(model=model, optimizer=optimizer)
    slots, copies = slot.mine(), run._copies
    taken: dict[bool, list[float]] = {True: [], False: []}
    copying, seen, made, began = True, 0, -WARM_UP, 0.0
    steps = length = 0  # of this block, and of the block with copies before it
    for batch in run.steps(10**6):
        # The copy of the step before has been made here; both turns end after the same work.
        if copying and newest(slots) != seen:
            seen, made = newest(slots), made + 1
            if made == 0:
                steps, began = 0, time.perf_counter()
        is_over = made == COPIES if copying else steps == length
        if is_over:
            now = time.perf_counter()
            taken[copying].append((now - began) / steps)
            length, steps, began, made, copying = steps, 0, now, 0, not copying
            copies._is_needless = (lambda: False) if copying else (lambda: True)
            copies._copied_at = time.monotonic()
        if len(taken[False]) == BLOCKS:
            run.finish()
        loss = run.backward(lambda mb: recipe.loss(model, mb), batch)
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        steps += 1
    if run.rank == 0:
        tell(on=taken[True], off=taken[False], copies=BLOCKS * COPIES, bytes=slots[0].allocated)


if __name__ == "__main__":
    main()
