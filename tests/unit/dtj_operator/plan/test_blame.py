"""Which fault is blamed: causes before consequences, then the earliest, then the lowest index."""

import pytest

from dtj_operator.model.agent_status import SilentReplica
from dtj_operator.model.views import NodeView
from dtj_operator.plan import blame
from dtj_operator.plan.actions import Fault, Restart, headline
from dtj_operator.plan.isolation import isolated_since, witnesses
from dtj_operator.plan.planner import plan
from dtj_operator.plan.policies.restart import restart
from dtj_operator.plan.snapshot import Silence
from tests.support.builders import NOW, JobBuilder, Json, PodBuilder, at, job, pod

param = pytest.param

FOUR = job().replicas(4).running()
NO_ROUTE = "RuntimeError: [gloo/transport/tcp/pair.cc:544] Read error [10.1.0.2]:4097: No route to host"
FULL = "Pod ephemeral local storage usage exceeds the total limit of containers 10Gi"


def unheard(*, for_s: float = 125, ready: bool = True, placed: float = NOW - 600) -> JobBuilder:
    """Four pods; replica 0 gets no heartbeat from the third."""
    nodes = {"n2": NodeView(name="n2", ready=ready, away_since=None if ready else NOW)}
    cut = pod(2).running().on("n2").placed(placed)
    missing = (SilentReplica(replica=2, seconds=for_s),)
    return FOUR.recovery(scope="Replica").but(cut).seeing(nodes=nodes).answering(missing=missing)


def alone(*nodes: str, silent_s: tuple[float, ...] = (126, 127, 128)) -> JobBuilder:
    """Four pods on these nodes; replica 0 gets no heartbeat from any other."""
    first = pod(0).running().on("n0").reachable("10.0.0.1")
    others = [joined(i, node) for i, node in enumerate(nodes, start=1)]
    missing = tuple(SilentReplica(replica=i, seconds=s) for i, s in enumerate(silent_s, start=1))
    given = unheard().but(first, *others).answering(missing=missing, address="10.0.0.1")
    return given.seeing(nodes={node: NodeView(name=node) for node in ("n0", "n1", "n2")})


def joined(index: int, node: str) -> PodBuilder:
    """A pod that ran before any silence."""
    return pod(index).running().on(node).placed(NOW - 900)


def fault(built) -> Fault:
    found = blame.first_fault(built.snapshot())
    assert found is not None
    return found


@pytest.mark.parametrize(
    "given",
    [
        param(FOUR, id="all run"),
        param(FOUR.but(pod(2).succeeded()), id="one has succeeded"),
        param(
            FOUR.but(pod(1, attempt=7).crashed()).but(pod(1).running()), id="a pod of another attempt failed"
        ),
        param(
            FOUR.but(pod(2).crashed().owned_by("another")).but(pod(2).running()),
            id="a pod of another owner failed",
        ),
        param(job().replicas(2).was("Starting").having(pod(0).running()), id="a pod does not exist yet"),
        param(unheard(for_s=119), id="a pod is isolated, but not for long"),
        param(unheard(placed=NOW - 100), id="a replacement has not joined yet"),
        param(unheard(ready=False), id="a silent pod on a NotReady node"),
        param(unheard().seeing(nodes=None), id="a silent pod, but nodes cannot be read"),
        param(unheard().recovery(scope="Job"), id="an isolated pod with scope Job"),
        param(unheard().seeing(now=NOW + 600).answering(missing=()), id="the heartbeats are back"),
        param(alone("n1", "n2", "n2", silent_s=(121, 121, 119)), id="all are silent, the last not for long"),
    ],
)
def test_no_fault(given) -> None:
    assert blame.first_fault(given.snapshot()) is None


def test_isolated_pod_is_replaced_and_counted() -> None:
    verdict = restart(unheard().snapshot())

    assert isinstance(verdict, Restart)
    assert (verdict.counts, verdict.replaces) == (True, ((2, pod(2).pod.uid),))
    assert verdict.fault.sentence == (
        "replica 2 on node n2 is unreachable: "
        "replica 0 has had no heartbeat from its agent for 125 s, but the pod is still running"
    )


@pytest.mark.parametrize(
    ("nodes", "blamed"),
    [
        param(("n1", "n2", "n2"), [0], id="on several nodes: replica 0 is isolated, and they hold the state"),
        param(("n2", "n2", "n2"), [1, 2, 3], id="on one node, which may be isolated"),
    ],
)
def test_isolated_replicas_if_replica_0_hears_from_no_other(
    nodes: tuple[str, ...], blamed: list[int]
) -> None:
    verdict = restart(alone(*nodes).snapshot())
    assert isinstance(verdict, Restart)
    assert verdict.replaces is not None
    assert [index for index, _ in verdict.replaces] == blamed
    if blamed == [0]:
        assert "no heartbeat from any other agent for 126 s, but the other pods are still running on" in (
            verdict.fault.sentence
        )


def test_unschedulable_pod_does_not_prove_that_replica_0_is_connected() -> None:
    """Else the other pods, which hold the state of the run, would count as isolated."""
    given = alone("n1", "n2", "n2").replicas(5).elastic(3, 5)

    assert isolated_since(given.but(pod(4).unschedulable(since=NOW - 600)).snapshot()).keys() == {0}
    assert isolated_since(given.but(joined(4, "n1")).snapshot()).keys() == {1, 2, 3}


def test_pod_that_has_not_joined_does_not_prove_that_replica_0_is_connected() -> None:
    given = alone("n1", "n2", "n2", silent_s=(126, 127, 300))
    replaced = pod(3).with_uid("new").running().on("n2").placed(NOW - 130)
    assert isolated_since(given.but(replaced).snapshot()).keys() == {0}

    grown = given.replicas(5).elastic(3, 5).but(pod(4).running().on("n1").placed(NOW - 30))
    assert isolated_since(grown.snapshot()) == {}, "the new pod may be connected: then replica 0 is too"


RESTARTED = {"bound": NOW - 200}  # when an operator that started then saw all pods first


def after_restart(*, running_since: float = -3600, elastic: bool = False, **seen: float) -> JobBuilder:
    """Replica 2 was silent before this operator started."""
    cut = pod(2).running().on("n2").placed(NOW - 9000).seen(**RESTARTED | seen)
    given = unheard(for_s=600).but(cut).was("Running", lastTransitionTime=at(running_since))
    return given.elastic(2, 4) if elastic else given


@pytest.mark.parametrize(
    ("given", "isolated"),
    [
        param(after_restart(), {2}, id="all pods ran when the phase became Running"),
        param(after_restart(running_since=-650), set(), id="or only just, by a clock that may differ"),
        param(after_restart(bound=NOW - 100), set(), id="this operator has not watched it for long"),
        param(after_restart(elastic=True), set(), id="it may have been placed later"),
        param(after_restart().was("Recovering"), set(), id="it may be a replacement"),
    ],
)
def test_replica_that_was_silent_before_the_operator_started(given: JobBuilder, isolated: set[int]) -> None:
    assert isolated_since(given.snapshot()).keys() == isolated


def test_decision_about_a_silent_replica_is_made_again_in_time() -> None:
    silent = FOUR.seeing(coordinator_silence=Silence(since=NOW - 50)).with_network()
    assert plan(silent.snapshot()).requeue_at == NOW + 70
    assert plan(after_restart(bound=NOW - 100).with_network().snapshot()).requeue_at == NOW + 20


@pytest.mark.parametrize(("elastic", "isolated"), [(False, {0}), (True, set())])
def test_replica_0_is_isolated_before_and_after_the_operator_started(
    isolated: set[int], *, elastic: bool
) -> None:
    """Not the replicas that fell silent later, which hold the state of the run."""
    given = alone("n1", "n2", "n2", silent_s=(260, 126, 126)).was("Running", lastTransitionTime=at(-3600))
    pods = (pod(i).running().on(f"n{min(i, 2)}").seen(**RESTARTED) for i in (1, 2, 3))
    given = given.but(*pods)
    assert isolated_since((given.elastic(2, 4) if elastic else given).snapshot()).keys() == isolated


FIRST = pod(0).running().on("n0").reachable("10.0.0.1").placed(NOW - 900)


def unanswered(*, unheard_s: float | None = 125) -> JobBuilder:
    """Replica 0's agent does not answer the operator; the others say for how long they have not heard it."""
    since = None if unheard_s is None else NOW - unheard_s
    given = alone("n1", "n2", "n2").answering(missing=(), address="10.0.0.1")
    given = given.was("Running", lastTransitionTime=at(-900))
    return given.but(FIRST).seeing(coordinator_silence=Silence(since=NOW - 125, unheard_since=since))


def test_replica_0_that_no_agent_hears_is_isolated() -> None:
    verdict = restart(unanswered().snapshot())

    assert isinstance(verdict, Restart)
    assert (verdict.counts, verdict.replaces) == (True, ((0, pod(0).pod.uid),))
    assert verdict.fault.sentence == (
        "replica 0 on node n0 is unreachable: neither the operator nor other agents have heard its agent for "
        "125 s, but the pod is still running"
    )


@pytest.mark.parametrize(
    ("given", "isolated"),
    [
        param(unanswered(unheard_s=None), set(), id="the others do not say so"),
        param(unanswered(unheard_s=119), set(), id="not for long"),
        param(unanswered().recovery(scope="Job"), set(), id="scope Job"),
        param(unanswered().seeing(nodes=None), set(), id="nodes cannot be read"),
        param(unanswered().but(FIRST.on("n9")), set(), id="its node is gone"),
        param(unanswered().but(FIRST.deleting()), set(), id="it is being deleted"),
        param(unanswered().but(FIRST.exited()), set(), id="its ranks are done"),
        param(
            unanswered().but(FIRST.seen(bound=NOW - 124)).was("Running", lastTransitionTime=at(-200)),
            set(),
            id="it may have come later",
        ),
        param(
            unanswered(unheard_s=400).but(FIRST.seen(bound=NOW - 124)).seeing(answer=None).elastic(2, 4),
            {0},
            id="it was silent before the operator started",
        ),
    ],
)
def test_replica_0_that_does_not_answer(given: JobBuilder, isolated: set[int]) -> None:
    assert isolated_since(given.snapshot()).keys() == isolated


@pytest.mark.parametrize(
    ("nodes", "asked"),
    [
        param(("n0", "n1", "n1"), {"n1"}, id="on other nodes, once each"),
        param(("n0", "n0", "n0"), {"n0"}, id="else on the same node"),
    ],
)
def test_agents_that_are_asked_about_replica_0(nodes: tuple[str, ...], asked: set[str]) -> None:
    others = [joined(i, node).reachable(f"10.0.0.{i}") for i, node in enumerate(nodes, start=1)]
    found = witnesses(unanswered().but(*others).snapshot())
    assert [pod.node for pod in found] == list(asked)
    assert 0 not in {pod.index for pod in found}


@pytest.mark.parametrize(
    ("status", "next_pod"),
    [
        param({"memory": {"replacing": {"0": pod(0).pod.uid}}}, None, id="it is being replaced"),
        param({}, pod(0).with_uid("b").running(), id="the next pod has no address yet"),
        param(
            {}, pod(0).with_uid("b").running().reachable("10.0.0.2"), id="the next pod has not reported yet"
        ),
    ],
)
def test_report_of_an_isolated_replica_0_is_ignored(status: Json, next_pod: PodBuilder | None) -> None:
    """It would make all other pods count as isolated, and they hold the state of the run."""
    given = alone("n1", "n2", "n2")
    assert isolated_since(given.snapshot()).keys() == {0}

    given = given.stored({**given.status, **status}).but(*filter(None, [next_pod]))
    assert isolated_since(given.snapshot()) == {}


def test_primary_cause_comes_before_isolation() -> None:
    assert fault(unheard().but(pod(1).crashed(1))).replica == 1


REBOOTED = pod(2).crashed(255, reason="Unknown")  # as containerd says it after a restart of the node
UNSEEN = pod(2).crashed(137, reason="ContainerStatusUnknown")  # as the kubelet does


@pytest.mark.parametrize(
    ("given", "replica", "reason"),
    [
        param(FOUR.but(pod(2).crashed(1)), 2, "ExitCode", id="a plain exit code"),
        param(FOUR.but(pod(2).crashed(139)), 2, "Signal", id="a segmentation fault"),
        param(FOUR.but(pod(2).crashed(137, reason="OOMKilled")), 2, "OOMKilled", id="out of memory"),
        param(
            FOUR.but(pod(2).reported(137, reason="OOMKilled", message="no memory was left")),
            2,
            "OOMKilled",
            id="a rank out of memory, its container alive",
        ),
        param(
            FOUR.but(pod(2).reported(137, reason="Hang", message="no step for 33 s")), 2, "Hang", id="a hang"
        ),
        param(FOUR.but(pod(2).reported(1, reason="DeviceFault")), 2, "DeviceFault", id="a GPU"),
        param(
            FOUR.but(pod(2).reported(1, reason="Exception", message="boom")), 2, "Exception", id="a traceback"
        ),
        param(
            FOUR.but(pod(2).reported(78, reason="BadRecipe", message="?")), 2, "Exception", id="a bad recipe"
        ),
        param(FOUR.but(pod(2).crashed(76)), 2, "PeerLost", id="a lost peer and no other fault"),
        param(FOUR.but(pod(2).crashed(143).disrupted()), 2, "Evicted", id="an eviction"),
        param(
            FOUR.but(pod(2).running().disrupted("DeletionByTaintManager").deleting()),
            2,
            "NodeLost",
            id="a lost node",
        ),
        param(FOUR.but(REBOOTED), 2, "NodeLost", id="a node that restarted"),
        param(FOUR.but(UNSEEN.evicted(FULL)), 2, "Evicted", id="a limit of local storage, end unseen"),
        param(FOUR.but(pod(2).running().deleting()), 2, "Evicted", id="a deleted pod"),
        param(FOUR.without(2), 2, "Evicted", id="a pod that vanished"),
        param(FOUR.but(pod(2).refused("OutOfcpu")), 2, "Evicted", id="a pod rejected by its kubelet"),
        param(FOUR.but(pod(2).crashed(137).evicted(FULL)), 2, "Evicted", id="a limit of local storage"),
    ],
)
def test_the_class_of_a_fault(given, replica, reason) -> None:
    found = fault(given)

    assert (found.replica, found.reason) == (replica, reason)


@pytest.mark.parametrize("given", [REBOOTED, UNSEEN])
def test_restart_of_a_node_is_not_an_end_of_the_program(given: PodBuilder) -> None:
    """Neither counts it, nor does the number that the runtime has made up match a rule of the user."""
    found = fault(FOUR.but(given))
    assert (found.reason, found.disruption, found.exit_code, found.exit_codes) == ("NodeLost", True, None, ())
    assert found.message == "container trainer ended unseen, as if its node had restarted"


@pytest.mark.parametrize(
    ("given", "replica"),
    [
        param(FOUR.but(pod(3).crashed(at=NOW - 2), pod(1).crashed(at=NOW - 1)), 3, id="the earliest"),
        param(
            FOUR.but(pod(3).crashed(at=NOW), pod(1).crashed(at=NOW)),
            1,
            id="the lowest index in the same second",
        ),
        param(
            FOUR.but(pod(0).crashed(76, at=NOW - 9), pod(3).crashed(1)), 3, id="a cause before a lost peer"
        ),
        param(
            FOUR.but(pod(0).crashed(1, at=NOW - 9, message="Connection reset by peer"), pod(3).crashed(137)),
            3,
            id="a plain image whose log ends with a lost connection is not the cause",
        ),
        param(
            FOUR.but(pod(0).crashed(1, at=NOW - 9, message=NO_ROUTE), pod(3).crashed(137)),
            3,
            id="nor one that finds no way to a pod",
        ),
        param(
            FOUR.but(pod(0).reported(1, at=NOW - 5, reason="Exception"), pod(3).crashed(1, at=NOW - 4)),
            0,
            id="the earliest by the reported time",
        ),
        param(
            FOUR.but(pod(3).running().deleting(since=NOW - 5), pod(0).crashed(at=NOW - 4)),
            3,
            id="a pod that is deleted, and still runs, before what follows from that",
        ),
        param(
            FOUR.but(pod(3).crashed(143, at=NOW).deleting(since=NOW - 5), pod(0).crashed(at=NOW - 5)),
            3,
            id="likewise in the same second, and it has ended since",
        ),
        param(
            FOUR.but(pod(3).running().deleting(since=NOW - 5), pod(0).crashed(at=NOW - 6)),
            0,
            id="a failure before another pod is deleted",
        ),
        param(
            FOUR.but(pod(3).running().disrupted(since=NOW - 5), pod(0).crashed(at=NOW - 4)),
            3,
            id="a pod that its kubelet ends, which still runs",
        ),
        param(FOUR.without(3).but(pod(0).crashed(at=NOW - 4)), 3, id="a pod that vanished, any time before"),
        param(
            FOUR.without(3).but(pod(0).crashed(137, at=NOW - 4, reason="OOMKilled")),
            0,
            id="what does not follow from the loss of a pod that vanished",
        ),
        param(
            FOUR.but(pod(3, attempt=9).running(), pod(0).crashed(at=NOW - 4)),
            0,
            id="nothing follows from another label of a pod, which still runs",
        ),
    ],
)
def test_blamed_fault_among_several(given, replica) -> None:
    assert fault(given).replica == replica


def test_a_report_gives_rank_message_and_generation() -> None:
    crashed = (
        pod(1).on("worker-2").reported(1, reason="Exception", rank=3, message="Traceback\nValueError: x")
    )
    found = fault(job().replicas(2).wants(processesPerReplica=2).running().but(crashed))

    assert (found.rank, found.generation, found.node) == (3, 0, "worker-2")
    assert (
        found.sentence == "rank 3 (replica 1) on node worker-2 exited with code 1: Exception: ValueError: x"
    )


CUDA = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    loss.backward()
torch.AcceleratorError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


OF_TORCHRUN = """\
E1129 08:41:38.902000 42 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1)
Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/torch/distributed/launcher/api.py", line 386, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
"""


def test_end_of_a_line_of_torchrun_is_not_shown_as_the_error() -> None:
    """The kubelet keeps the end of a log: here it begins in a warning of torchrun."""
    written = f"s 13 closing signal SIGTERM\n{OF_TORCHRUN}{'-' * 2000}"
    verdict = plan(FOUR.but(pod(1).crashed(message=written)).snapshot()).verdict
    assert isinstance(verdict, Restart)
    assert verdict.fault.message != "s 13 closing signal SIGTERM"


@pytest.mark.parametrize(
    ("own", "message"),
    [
        param(
            '  File "/app/train.py", line 3\nKeyError: "lr"', 'File "/app/train.py", line 3\nKeyError: "lr"'
        ),
        param("", OF_TORCHRUN.strip(), id="the program wrote nothing, or too long ago"),
    ],
)
def test_error_of_the_program_is_shown_instead_of_the_summary_of_torchrun(own: str, message: str) -> None:
    written = f"{own}\n{OF_TORCHRUN}"
    verdict = plan(FOUR.but(pod(1).crashed(message=written)).snapshot()).verdict
    assert isinstance(verdict, Restart)
    assert verdict.fault.message == message


@pytest.mark.parametrize(
    ("message", "line"),
    [
        param("", "", id="nothing"),
        param("epoch 1\nKilled\n", "Killed", id="the end of a log"),
        param(
            "there is no module 'digitz'\n  fix: check the name",
            "there is no module 'digitz'; fix: check the name",
            id="an error of dtj",
        ),
        param(CUDA, "torch.AcceleratorError: CUDA error: device-side assert triggered", id="several lines"),
        param(
            f"{CUDA}wandb: synced",
            "torch.AcceleratorError: CUDA error: device-side assert triggered",
            id="a log that continues",
        ),
        param('in a wait:\n  File "a.py", line 1\n    x()', "    x()", id="a stack without an error"),
    ],
)
def test_headline_names_the_error(message, line) -> None:
    assert headline(message) == line


CULPRIT = {"replica": 2, "rank": 2, "reason": "Exception", "exitCode": 1, "at": at(-2), "message": "KeyError"}


@pytest.mark.parametrize(
    ("repeated", "its_own", "reason", "code"),
    [
        param(CULPRIT, pod(2).running(), "Exception", 1, id="its own pod still runs"),
        param(
            CULPRIT,
            pod(2).crashed(1, at=NOW, reason="OOMKilled"),
            "OOMKilled",
            1,
            id="its own pod knows more",
        ),
        param(
            {**CULPRIT, "reason": "Signal", "exitCode": 137}, pod(2).running(), "Signal", 137, id="a signal"
        ),
        param({**CULPRIT, "reason": "Hang", "exitCode": 137}, pod(2).running(), "Hang", 137, id="a hang"),
    ],
)
def test_rank_that_the_pod_of_another_replica_names_is_blamed(repeated, its_own, reason, code) -> None:
    ended_first = pod(0).on("worker-1").reported(76, at=NOW - 1, reason="PeerLost", culprit=repeated)

    found = fault(FOUR.but(ended_first, its_own.on("worker-2")))

    assert (found.replica, found.node) == (2, "worker-2")
    assert (found.reason, found.exit_code) == (reason, code)
    assert found.signal == ("SIGKILL" if reason == "Signal" else "")


@pytest.mark.parametrize(
    "culprit",
    [
        param({**CULPRIT, "replica": 4}, id="no replica of the job"),
        param({**CULPRIT, "replica": "2"}, id="not a number"),
        param([2], id="not an object"),
        param(None, id="none"),
    ],
)
def test_culprit_that_does_not_exist_is_ignored(culprit) -> None:
    found = fault(FOUR.but(pod(0).reported(76, reason="PeerLost", culprit=culprit)))

    assert (found.replica, found.reason) == (0, "PeerLost")


def test_rank_is_not_guessed_if_a_pod_has_several() -> None:
    found = fault(job().replicas(2).wants(processesPerReplica=2).running().but(pod(1).crashed(-1 % 256)))

    assert found.rank is None
    assert found.sentence.startswith("replica 1 exited with code 255")


def test_signal_name_is_reported() -> None:
    assert fault(FOUR.but(pod(0).crashed(139))).signal == "SIGSEGV"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        param(
            pod(1).crashed(137, message="step 7").evicted(f"{FULL}. "),
            f"{FULL}.",
            id="a limit of local storage",
        ),
        param(pod(1).crashed(143, message="step 7").disrupted(), "evicted", id="a drained node"),
        param(pod(1).refused("OutOfcpu"), "OutOfcpu", id="a pod rejected by its kubelet"),
        param(pod(1).crashed(1, message="boom").spared(), "boom", id="a preemption that was called off"),
    ],
)
def test_words_of_kubernetes_come_before_those_of_the_program_that_it_ended(given, message) -> None:
    assert fault(FOUR.but(given)).message == message


@pytest.mark.parametrize(
    ("container", "said"),
    [
        param(
            {"resources": {"limits": {"memory": "1Gi"}}},
            "the memory limit is 1Gi; kubectl dtj submit --memory",
            id="limit",
        ),
        param({}, "container trainer was out of memory", id="no limit"),
    ],
)
def test_memory_limit_is_named_if_the_kernel_killed_the_agent_too(container, said) -> None:
    killed = pod(1).crashed(137, reason="OOMKilled", message="step 7")
    assert said in fault(FOUR.container(**container).but(killed)).sentence
    reported = pod(1).reported(137, reason="OOMKilled", message="rank 1: 3 GiB")
    assert fault(FOUR.container(**container).but(reported)).message == "rank 1: 3 GiB"


def test_failed_init_container_is_named() -> None:
    from dtj_operator.model.views import ContainerView

    fetch = ContainerView(name="fetch", init=True, exit_code=2, message="no such bucket", finished_at=NOW)
    found = fault(FOUR.but(pod(1)._with(phase="Failed", containers=(fetch,))))

    assert (found.exit_code, found.message) == (2, "init container fetch:\nno such bucket")


@pytest.mark.parametrize(
    "said",
    [
        'exec: "/app/run.sh": stat /app/run.sh: no such file or directory',
        'exec: "/app/train.py": permission denied',
        "executable file `pyton` not found in $PATH",
    ],
)
def test_program_that_the_image_does_not_have_is_named(said: str) -> None:
    found = fault(
        FOUR.but(pod(1).crashed(128, message=f"create failed: {said}: unknown", reason="StartError"))
    )
    assert found.lacks_program
    assert found.message.startswith(f"container trainer cannot start: {said}; correct command or args")


def test_sidecar_that_never_exits_does_not_hide_the_exit_of_the_trainer() -> None:
    from dtj_operator.model.views import ContainerView

    helper = ContainerView(name="helper")
    ended = pod(1).crashed(3)
    built = FOUR.but(ended._with(phase="Running", containers=(helper, *ended.pod.containers)))

    assert fault(built).exit_code == 3


def test_text_that_is_not_a_report_is_used_as_text() -> None:
    assert fault(FOUR.but(pod(0).crashed(message='{"torn": '))).message == '{"torn":'
    assert fault(FOUR.but(pod(0).crashed(message="[1]"))).message == "[1]"


def test_long_message_keeps_its_end() -> None:
    found = fault(FOUR.but(pod(0).crashed(message="x" * 4000 + "the end")))

    assert len(found.message) == blame.MESSAGE_TAIL
    assert found.message.endswith("the end")


def test_long_log_of_an_init_container_is_cut_at_a_line_and_keeps_the_name() -> None:
    """The kubelet keeps the last 2,048 bytes of a log, which begin within a line."""
    from dtj_operator.model.views import ContainerView

    said = f"{'ge index; ' * 100}\n" + "WARNING: Retrying\n" * 60 + "no package\n"
    ended = ContainerView(name="packages", init=True, exit_code=1, message=said[-2048:])
    found = fault(FOUR.but(pod(0)._with(phase="Failed", containers=(ended,))))

    assert found.message.splitlines()[:2] == ["init container packages:", "WARNING: Retrying"]
    assert found.rank is None
    assert found.sentence == "init container packages of replica 0 exited with code 1: no package"


def test_vanished_pod_is_reported_with_its_node() -> None:
    assert fault(FOUR.without(2).seeing(last_nodes={2: "worker-1"})).node == "worker-1"
    assert fault(FOUR.without(2)).node == ""
