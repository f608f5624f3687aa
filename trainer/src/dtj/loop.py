"""The built-in training loop, written only with Run's verbs. Copy it when you want to own it."""

from torch import nn

import dtj
from dtj.data.feed import Feed
from dtj.errors import RecipeError
from dtj.recipe import Recipe


def train(recipe: Recipe) -> None:
    """Train the recipe for its epochs; on a restart this goes on after the last committed step."""
    run = dtj.init(seed=recipe.seed)
    model = run.parallel(recipe.model())
    optimizer = recipe.optimizer(model.parameters())
    data = run.data(recipe.data, global_batch=recipe.global_batch, tokens=recipe.tokens)
    steps = count_steps(recipe, data)

    if recipe.schedule:
        schedule = recipe.schedule(optimizer, steps)
        run.state(model=model, optimizer=optimizer, data=data, schedule=schedule)
    else:
        schedule = None
        run.state(model=model, optimizer=optimizer, data=data)

    for batch in run.steps(steps):
        loss = run.backward(lambda mb: recipe.loss(model, mb), batch)
        if recipe.clip is not None:
            run.clip(recipe.clip)
        optimizer.step()
        optimizer.zero_grad()
        if schedule:
            schedule.step()
        run.log(loss=loss)
        if batch.ends_epoch and recipe.held_out is not None:
            score = evaluate(run, model, recipe)
            run.log(**{recipe.metric: score}, now=True)
            if recipe.best:
                run.keep_best(score if recipe.best == "highest" else -score)

    if recipe.held_out is not None:
        run.say(f"done: {run.step} steps, held-out {recipe.metric} {evaluate(run, model, recipe):.4f}")
    else:
        run.say(f"done: {run.step} steps")
    if recipe.sample is not None:
        run.say(f"a sample:\n{recipe.sample(model)}")


def count_steps(recipe: Recipe, data: Feed) -> int:
    """Global batches of the whole training."""
    given = {"epochs": recipe.epochs, "steps": recipe.steps}
    set_ones = {name: value for name, value in given.items() if value is not None}
    if len(set_ones) != 1:
        raise RecipeError(
            f"the recipe gives {' and '.join(set_ones) or 'neither epochs nor steps'}", fix="give one of them"
        )
    ((name, count),) = set_ones.items()
    if count < 1:
        raise RecipeError(f"{name} is {count}, expected at least 1", fix="give at least one")
    return count if name == "steps" else count * data.steps_per_epoch


def evaluate(run: dtj.Run, model: nn.Module, recipe: Recipe) -> float:
    """The recipe's score, averaged over all held-out samples of all ranks."""
    if recipe.score is None:
        raise RecipeError(
            "the recipe has held_out data but no score", fix="give Recipe(score=...), one value a sample"
        )
    score = recipe.score
    return run.evaluate(lambda mb: score(model, mb), recipe.held_out)
