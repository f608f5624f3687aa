"""Where each rank of a job is at this moment: the Python stacks that the agents of its pods take."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence

from dtj_client.errors import ClientError, ForbiddenError, UnreachableError
from dtj_client.kube.kubectl import Json, phase_of

AGENT_PORT = 29400
AT_ONCE = 8  # pods that are asked at the same time
_RANK = re.compile(r"(?m)^(?=rank \d+, pid )")


def question(port: int = AGENT_PORT) -> str:
    """Python code that prints an agent's stacks; it runs in the pod, which a NetworkPolicy may isolate."""
    url = f"http://127.0.0.1:{port}/stacks"
    return (
        "import sys, urllib.request as r; opener = r.build_opener(r.ProxyHandler({})); "  # none
        f"sys.stdout.write(opener.open({url!r}, timeout=30).read().decode())"
    )


def stacks(
    pods: Sequence[Json], ranks: Collection[int] | None, ask: Callable[[str, str], str]
) -> Iterator[str]:
    """Yield the stacks of each rank, in the order of the ranks; or instead, why a pod has none.

    ranks   None: all of them
    ask     asks the agent in a pod; arguments are the names of pod and container
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - 12 ms that no other verb needs

    chosen = [pod for pod in pods if ranks is None or ranks_of(pod) & set(ranks)]

    def answer(pod: Json) -> list[str]:
        name = pod["metadata"]["name"]
        if (phase := phase_of(pod)) != "Running":
            return [f"{name} is {phase or 'Pending'}: its ranks do not run"]
        try:
            said = ask(name, str(_trainer(pod)["name"]))
        except (ForbiddenError, UnreachableError):  # as of any other pod
            raise
        except ClientError as error:
            if "Connection refused" in error.message or "executable file not found" in error.message:
                return [
                    f"{name} has no agent so far: run the program under dtj run, or ask again if it starts"
                ]
            return [f"{name}: no stacks: {error.message.strip().splitlines()[-1]}"]
        return parts(said, ranks) or [f"{name}: its agent has no such rank at this moment"]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for found in pool.map(answer, chosen):
            yield from found
    for rank in sorted(set(ranks or ()).difference(*map(ranks_of, chosen))):
        yield f"rank {rank} has no pod at this moment"


def parts(text: str, ranks: Collection[int] | None) -> list[str]:
    """The answer of an agent by rank; only these ranks if any are given."""
    found = [each.rstrip() for each in _RANK.split(text) if each.strip()]
    wanted = None if ranks is None else {f"rank {rank}," for rank in ranks}
    return [each for each in found if wanted is None or f"{each.partition(',')[0]}," in wanted]


def ranks_of(pod: Json) -> set[int]:
    """The ranks of a pod, from the variables that the operator set."""
    env = _environment(pod)
    first, count = int(env.get("NODE_RANK", 0)), int(env.get("NPROC_PER_NODE", 1))
    return set(range(first * count, (first + 1) * count))


def replicas_with(pods: Sequence[Json], ranks: Collection[int]) -> set[int]:
    """The replicas that have these ranks, from the variables of any pod."""
    count = int(_environment(pods[0]).get("NPROC_PER_NODE", 1))
    return {rank // count for rank in ranks}


def check_ranks(job: Json, pods: Sequence[Json], ranks: Collection[int] | None) -> None:
    """Raise ClientError if the job never has one of these ranks; without a pod nothing is known."""
    if not ranks or not pods:
        return
    spec = job["spec"]
    replicas = int((spec.get("elastic") or {}).get("maxReplicas") or spec.get("replicas", 1))
    count = replicas * int(_environment(pods[0]).get("NPROC_PER_NODE", 1))
    if max(ranks) >= count:
        raise ClientError(
            f"job {job['metadata']['name']} has no rank {max(ranks)}", f"it has 0 to {count - 1}"
        )


def _environment(pod: Json) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in _trainer(pod).get("env") or ()}


def _trainer(pod: Json) -> Json:
    """The container that runs the ranks, by the operator's variables: a webhook may put others before it."""
    containers: list[Json] = pod["spec"]["containers"]
    has_place = (any(v["name"] == "NODE_RANK" for v in each.get("env") or ()) for each in containers)
    return next((each for each, is_it in zip(containers, has_place, strict=True) if is_it), containers[0])
