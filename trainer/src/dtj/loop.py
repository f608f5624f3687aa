"""The built-in training loop, written only with the verbs of Run. Copy it to write your own loop."""

from torch import nn

import dtj
from dtj.recipe import Recipe


def train(recipe: Recipe) -> None:
    """Train the recipe to its last step; after a restart, continue after the last committed step."""
    run = dtj.init(seed=recipe.seed)
    model = run.parallel(recipe.model)
    optimizer = recipe.optimizer(model.parameters())
    data = run.data(recipe.data, global_batch=recipe.global_batch, tokens=recipe.tokens)
    steps = recipe.count_steps(data)
    schedule = recipe.schedule(optimizer, steps) if recipe.schedule else None
    parts = {"schedule": schedule} if schedule else {}
    run.state(model=model, optimizer=optimizer, data=data, **parts)

    score = None
    for batch in run.steps(steps):
        loss = run.backward(lambda mb: recipe.loss(model, mb), batch)
        if recipe.clip is not None:
            run.log(grad_norm=run.clip(recipe.clip))
        optimizer.step()
        optimizer.zero_grad()
        if schedule:
            schedule.step()
        run.log(loss=loss)
        if recipe.held_out is not None and (batch.ends_epoch or run.step + 1 == steps):
            score = evaluate(run, model, recipe)
            run.log(**{recipe.metric: score}, now=True)
            if recipe.best:
                run.keep_best(score if recipe.best == "highest" else -score)

    if recipe.held_out is not None:
        if score is None:  # a finished run was started again
            score = evaluate(run, model, recipe)
        run.say(f"done: {run.step} steps, held-out {recipe.metric} {score:.4f}")
    else:
        run.say(f"done: {run.step} steps")
    if recipe.sample is not None:
        run.say(f"a sample:\n{recipe.sample(model)}")


def evaluate(run: dtj.Run, model: nn.Module, recipe: Recipe) -> float:
    """The recipe's score, averaged over all held-out samples of all ranks."""
    score = recipe.score
    assert score is not None  # Recipe ensures that a recipe with held_out has a score
    return run.evaluate(lambda mb: score(model, mb), recipe.held_out, batch=recipe.eval_batch)
