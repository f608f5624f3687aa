"""The interface of all strategies that distribute a model over ranks; the class itself is a single process.

wrap -> for each step: begin_backward, accumulate (forward and backward of all micro-batches), end_backward,
clip, after_step
"""

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dtj.errors import RecipeError
from dtj.parallel.layout import Layout
from dtj.ranks import waits
from dtj.ranks.world import set_collective_timeout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Types that gloo and NCCL send; tensors of others, such as int16, uint16 and float8, are sent as bytes.
SENT = frozenset(
    {
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool),
        *(torch.complex64, torch.complex128),
    }
)
# MicroBatch -> () loss with its graph, weighted such that the mean over ranks is the loss of the global batch
WeightedLoss = Callable[[Any], torch.Tensor]
# (model, device for parameters on the meta device) -> None
LoadWeights = Callable[[nn.Module, torch.device], None]


class Strategy:
    """One process with the whole model.

    replicated   every rank holds the whole state, so a newcomer can get it from any other rank
    in_lockstep  forward communicates with ranks that have other samples: all must run it equally often
    same_optimizer_state  ranks with the same parameters have the same optimizer state, too
    heals        a lost rank can be replaced while the others keep their state, over new process groups
    needs_warm_up  the first backward after a start rounds differently from later ones
    pipeline_micro_batches  how many are good, all of one size; None: any number, of any sizes
    max_steps_ahead  steps that a rank may be ahead of the slowest one
    loads_shards weights are loaded into the wrapped model: a rank reads its shards only
    reuses_gradients  a part of each is added to the next one during backward: all need the same weight
    sends_in_forward  forward has collectives between blocks, so that only the blocks can be compiled
    extra        the strategy's own state, with state_dict and load_state_dict, to be saved in checkpoints

    ddp_options  of DistributedDataParallel, for the next model; other strategies ignore them
    tied         model as it was passed -> name of a parameter -> the first name of the same one
    models, parameters, buffers   of all models, collected once: walking through modules is slow
    """

    replicated = True
    same_optimizer_state = True
    in_lockstep = False
    heals = False
    needs_warm_up = False
    pipeline_micro_batches: int | None = None
    max_steps_ahead = 0
    loads_shards = False
    reuses_gradients = False
    sends_in_forward = False
    extra: Any = None

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        self.device = device
        self.ddp_options: dict[str, Any] = {}
        self.tied: dict[nn.Module, dict[str, str]] = {}
        self.models: list[nn.Module] = []
        self.parameters: list[nn.Parameter] = []
        self.buffers: list[torch.Tensor] = []
        self._names: set[str] = set()  # of the parameters of all models
        self._replaced: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()  # by their shards
        self.step = 0
        self.autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    def add(self, model: nn.Module, *, is_healing: bool, load: LoadWeights | None = None) -> nn.Module:
        """Wrap a model and add it to the trained ones; `load` gives it weights from a file.

        RecipeError if it shares a parameter with one of those, whose gradient would be averaged twice, or if
        it has none to train.
        """
        known = set(self.parameters)
        if shared := next((name for name, p in model.named_parameters() if p in known), None):
            raise RecipeError(
                f"run.parallel got a model that shares {shared} with an earlier one",
                fix="pass one module that holds both, and calls them in its forward",
            )
        if self.layout.strategy != "none" and not any(p.requires_grad for p in model.parameters()):
            raise RecipeError(
                f"{type(model).__name__} has no parameter that requires a gradient: there is nothing to "
                "train",
                fix="unfreeze a layer, or leave the model out of run.parallel",
            )
        self._replaced.update({id(p): p for p in model.parameters()})
        if load and not self.loads_shards:
            load(model, torch.device("cpu"))
        self.tied[model] = _tied(model)
        wrapped = self.wrap(model, is_healing=is_healing)
        if load and self.loads_shards:
            load(wrapped, self.device)
        self.models.append(wrapped)
        self.parameters += wrapped.parameters()
        self._names.update(name for name, _ in unwrap(wrapped).named_parameters())
        for parameter in wrapped.parameters():
            self._replaced.pop(id(parameter), None)
        self.buffers += wrapped.buffers()
        return wrapped

    def check_unchanged(self) -> None:
        """RecipeError if a model has got trained parameters since `add`."""
        known = set(self.parameters)
        for model in self.models:
            named = unwrap(model).named_parameters()
            new = (n for n, p in named if n not in self._names and p.requires_grad and p not in known)
            if (name := next(new, None)) is not None:
                raise RecipeError(
                    f"the parameter {name} came into its model after run.parallel: its gradients would be "
                    "neither averaged over the ranks nor clipped",
                    fix="add all layers before run.parallel; freeze those that are trained later",
                )

    def check_optimizer(self, name: str, optimizer: torch.optim.Optimizer) -> str:
        """RecipeError if it has parameters of a model as it was before `add`, which are not trained any more.

        Returns a warning if it has others whose gradients are not averaged over the ranks, else "".
        """
        trained = [p for p in parameters_of(optimizer) if p.requires_grad]
        if any(self._replaced.get(id(p)) is p for p in trained):
            raise RecipeError(
                f"the optimizer {name} was created before run.parallel, which has replaced the parameters by "
                "their shards: it would train nothing",
                fix="create it afterwards, from the parameters of the model that run.parallel returned",
            )
        known = set(self.parameters)
        others = [tuple(p.shape) for p in trained if p not in known]
        if not others or self.layout.data_size == 1:
            return ""
        return (
            f"the optimizer {name} trains a parameter that no model of run.parallel has "
            f"({len(others)}, the first of shape {others[0]}): their gradients are not averaged over ranks\n"
            "  fix: make it a parameter of such a model, before run.parallel and the optimizer"
        )

    def order_parameters(self, optimizer: torch.optim.Optimizer) -> None:
        """Put its parameters into the order of the models, since its state has no names, only numbers.

        The program may have collected them in a set, which has another order in each process.
        """
        places = {parameter: place for place, parameter in enumerate(self.parameters)}
        for group in optimizer.param_groups:
            order = [places.get(parameter, len(places)) for parameter in group["params"]]
            for name in group.keys() & {"params", "param_names"}:
                pairs = sorted(zip(order, group[name], strict=True), key=operator.itemgetter(0))
                group[name][:] = [each for _, each in pairs]

    def wrap(self, model: nn.Module, *, is_healing: bool = False) -> nn.Module:
        """The model as it is trained, on the device.

        is_healing  the other ranks already train and will hand over their weights: no communication now
        """
        del is_healing
        return move_to_device(model, self.device)

    def rebuild(self) -> None:
        """Called after a change of process groups, before the next forward."""

    def accumulate(self, weighted_loss: WeightedLoss, micro_batches: Sequence[Any]) -> torch.Tensor:
        """Forward and backward of this rank's micro-batches; `end_backward` follows.

        Returns () detached: the sum of the weighted losses. Its mean over the ranks is the global loss.
        """
        *others, last = micro_batches
        if not others:
            return _backward(weighted_loss(last))
        with self.without_sync():
            losses = [_backward(weighted_loss(micro_batch)) for micro_batch in others]
        losses.append(_backward(weighted_loss(last)))
        return sum(losses[1:], start=losses[0])

    def updates(self, module: nn.Module) -> bool:
        """Whether this rank runs the module, which changes its running statistics."""
        return True

    def begin_backward(self) -> None:
        """Called before the first backward of a pass."""

    def undo(self) -> Callable[[], None]:
        """What takes back how later passes change the strategy itself, not the gradients or buffers."""
        return lambda: None

    def end_backward(self) -> None:
        """Called after the last backward of a step; gradients that are not means over all ranks become so."""

    def sum_of_counts(self, mine: torch.Tensor) -> torch.Tensor:
        """The number by which the gradients of a pass are divided, e.g. the tokens of all ranks, () float32.

        mine  the sum of this rank's counts
        """
        if dist.is_initialized():
            dist.all_reduce(mine)
        return mine / self.layout.size("tp")  # these ranks count the same samples

    def steps_alone(self) -> bool:
        """True if gradients of the present step are not averaged over the ranks."""
        return False

    @contextlib.contextmanager
    def without_sync(self) -> Iterator[None]:
        """Context in which backward passes only accumulate gradients locally."""
        yield

    def clip(self, max_norm: float, parameters: Sequence[nn.Parameter]) -> torch.Tensor:
        """Scale the gradients of these parameters such that their total norm is at most max_norm.

        Returns () on the device, the norm before.
        """
        norm: Any = nn.utils.clip_grad_norm_(parameters, max_norm)
        whole: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return whole

    def start(self, step: int, total_steps: int) -> None:
        """Training starts or continues after `step`."""
        del total_steps
        self.step = step

    def after_step(self, step: int, *, force: bool = False) -> None:
        """The optimizer has done `step`. Ranks that differ synchronize when it is due, with `force` now."""
        del force
        self.step = step

    @contextlib.contextmanager
    def warming_up(self) -> Iterator[None]:
        """Context for a backward pass whose gradients are discarded."""
        yield

    def keeps(self, parameter: nn.Parameter) -> bool:
        """True if this rank keeps the optimizer state of the parameter."""
        return not parameter.is_meta

    def in_sync(self, step: int) -> bool:
        """True if all ranks have the same model after this step, so that it can be saved."""
        return True

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Context with all models in eval mode and rank 0's buffers (batch norm statistics) on every rank.

        Afterwards each module has the mode that it had: a frozen layer may be in eval mode all the time.
        """
        for model in self.models:
            self.broadcast_buffers(unwrap(model))
        training = [module for model in self.models for module in model.modules() if module.training]
        for model in self.models:
            model.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Copy rank 0's buffers, of which none is sharded, to every rank that holds them."""
        if dist.is_initialized():
            for buffer in model.buffers():
                broadcast(local_part(buffer))


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module in what `run.parallel` or torch.compile returned: its state has no prefix."""
    model = getattr(model, "_orig_mod", model)
    return model.module if isinstance(model, DistributedDataParallel) else model


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Of all its groups, in the order in which its state has numbers."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def local_part(whole: Any) -> torch.Tensor:
    """This rank's shard of a weight or gradient; the whole tensor if it is not sharded."""
    local: torch.Tensor = whole.to_local() if hasattr(whole, "to_local") else whole
    return local


def part_of(whole: torch.Tensor, like: Any) -> torch.Tensor:
    """What this rank holds of a whole tensor that is sharded as `like`, of the same shape; a view."""
    if not hasattr(like, "placements"):
        return whole
    # Imported here because it takes half a second, which other strategies need not spend.
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # noqa: PLC0415

    sizes, offsets = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    return whole[tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))]


def as_shard(local: torch.Tensor, like: Any) -> torch.Tensor:
    """A DTensor that is sharded as `like`, on its device, of which this rank holds `local`."""
    from torch.distributed.tensor import DTensor  # noqa: PLC0415

    how = {"shape": like.shape, "stride": like.stride(), "run_check": False}
    return DTensor.from_local(local.to(like.device), like.device_mesh, like.placements, **how)


def move_to_device(model: nn.Module, device: torch.device) -> nn.Module:
    """The model on the device; a model that is on several devices already stays where it is."""
    return model if is_on_several_devices(model) else model.to(device)


def is_on_several_devices(model: nn.Module) -> bool:
    """True if its parameters are on more than one device."""
    return len({parameter.device for parameter in model.parameters()}) > 1


def _tied(model: nn.Module) -> dict[str, str]:
    first: dict[nn.Parameter, str] = {}
    named = [(name, first.setdefault(p, name)) for name, p in model.named_parameters(remove_duplicate=False)]
    return {name: original for name, original in named if name != original}


def _backward(loss: torch.Tensor) -> torch.Tensor:
    """Run backward; returns the loss, () detached."""
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


class Replicated(Strategy):
    """Every rank holds the whole model and starts with rank 0's weights; subclasses synchronize the ranks.

    weights  the trainable parameters of all models
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        super().__init__(layout, device)
        self.weights: list[nn.Parameter] = []

    def wrap(self, model: nn.Module, *, is_healing: bool = False) -> nn.Module:
        broadcast_weights(model, self.device)
        model = super().wrap(model, is_healing=is_healing)
        self.weights += [p for p in model.parameters() if p.requires_grad]
        return model

    def after_step(self, step: int, *, force: bool = False) -> None:
        """RecipeError if layers were frozen or unfrozen since `wrap`."""
        super().after_step(step, force=force)
        trained = sum(p.requires_grad for p in self.parameters)
        if trained != len(self.weights) or not all(p.requires_grad for p in self.weights):
            raise RecipeError(
                "a layer was frozen or unfrozen after run.parallel, which --sync does not follow",
                fix="do it before run.parallel, or leave --sync out",
            )


def make_mesh(layout: Layout, device: torch.device) -> "DeviceMesh":
    """Return a mesh with the axes of the layout, and a process group for each."""
    # Imported here because it takes half a second, which other strategies need not spend.
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415

    mesh = init_device_mesh(device.type, tuple(layout.sizes.values()), mesh_dim_names=tuple(layout.sizes))
    for axis in layout.sizes:
        set_collective_timeout(mesh.get_group(axis))
    return mesh


def broadcast_weights(model: nn.Module, device: torch.device) -> None:
    """Copy rank 0's parameters and buffers to every rank, one at a time; the model stays on its device.

    Ranks build their model with the same seed, but a recipe may draw random numbers that do not depend on it.
    """
    for value in (*model.parameters(), *model.buffers()):
        if value.is_meta:  # each rank will read it from the same file
            continue
        there = value.detach().to(device)
        broadcast(there)
        value.detach().copy_(there)


def broadcast(tensor: torch.Tensor, group: "dist.ProcessGroup | None" = None) -> None:
    """Copy the values of a group's first rank, by default rank 0, to every rank of it."""
    whole = tensor.contiguous()  # gloo sends as much memory as there are elements, whatever the strides are
    sent = whole if tensor.dtype in SENT else as_bytes(whole)
    waits.wait(dist.broadcast(sent, group_src=0, group=group, async_op=True), tensor.device)
    if whole is not tensor:
        tensor.copy_(whole)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, of a contiguous tensor, as bytes."""
    return tensor.detach().view(-1).view(torch.uint8)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated layers of a model: members of its outermost ModuleLists and Sequentials, if it has any.

    Only members with parameters; instead of a member without a forward, such as a ModuleList, its own ones. A
    member that is there several times, to share its weights, counts once.
    """

    def members(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            if type(child).forward is nn.Module.forward:
                yield from members(child)
            elif any(True for _ in child.parameters()):
                yield child

    def walk(module: nn.Module) -> Iterator[nn.Module]:
        if isinstance(module, nn.ModuleList | nn.Sequential):
            yield from members(module)
        else:
            for child in module.children():
                yield from walk(child)

    return list(dict.fromkeys(walk(model)))


def check_model(model: nn.Module) -> None:
    """Raise RecipeError for anything but a model, and for one that would be trained or saved wrongly."""
    if not isinstance(model, nn.Module):
        raise RecipeError(
            f"run.parallel got a {type(model).__name__}, expected a module or a function that builds one",
            fix="pass each model on its own, or one module that holds all and calls them in its forward",
        )
    if hasattr(model, "_orig_mod"):
        raise RecipeError(
            "run.parallel got the result of torch.compile, whose parameters have other names in a checkpoint",
            fix="pass the model itself and use --compile, or compile it in place: model.compile()",
        )
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype in {torch.float16, torch.bfloat16}:
            raise RecipeError(
                f"{name} is {str(parameter.dtype).removeprefix('torch.')}, in which most of an optimizer's "
                "small updates are lost to rounding",
                fix="call model.float() first; --precision bf16 still computes in bfloat16",
            )
