"""Any events in any order: attempts do not overlap, budgets hold, final phases stay, every job converges."""

import itertools
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dtj_operator.model.agent_status import InPlace, Progress
from dtj_operator.model.memory import FINAL
from tests.support.builders import job
from tests.unit.dtj_operator.plan.model import CallFailed, Crash, World, run_until_stable

FAULTS = st.sampled_from(["", "", "", "before", "after", "crash"])
CODES = st.sampled_from([0, 1, 1, 1, 75, 76, 137, 137, 78])


def contradictions(status: dict[str, Any]) -> list[str]:
    """The rules that a status violates."""
    phase, restarts = status["phase"], status["restarts"]
    held = {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
    healthy = held.get("Healthy", ("", ""))
    holds = {
        "condition Failed in phase Failed only": (held.get("Failed", ("",))[0] == "True")
        == (phase == "Failed"),
        "condition Complete in phase Succeeded only": (held.get("Complete", ("",))[0] == "True")
        == (phase == "Succeeded"),
        "condition Suspended in phase Suspended only": (held.get("Suspended", ("",))[0] == "True")
        == (phase == "Suspended"),
        "reason Recovering in phase Recovering only": (healthy == ("False", "Recovering"))
        == (phase == "Recovering"),
        "Healthy in phases Running and Succeeded only": (healthy[0] == "True")
        == (phase in ("Running", "Succeeded")),
        "all pods ready in phase Running only": held["PodsReady"][0] == "False" or phase == "Running",
        "completionTime in final phases only": ("completionTime" in status) == (phase in FINAL),
        "no startTime while suspended": phase != "Suspended" or "startTime" not in status,
        "total is counted plus disruptions": restarts["total"]
        == restarts["counted"] + restarts["disruptions"],
        "in-place restarts are counted": restarts.get("inPlace", 0) <= restarts["counted"],
        "no more pods counted than wanted": sum(
            status["replicaStatuses"][k] for k in ("active", "succeeded", "failed")
        )
        <= status.get("memory", {}).get("wantedReplicas", 99),
        "every restart has a failure": not restarts["counted"] - restarts.get("inPlace", 0)
        or "failure" in status,
    }
    return [sentence for sentence, true in holds.items() if not true]


class Jobs(RuleBasedStateMachine):
    """One job in a hostile cluster."""

    world: World

    @initialize(
        replicas=st.sampled_from([1, 2, 2, 3, 3]),
        budget=st.sampled_from([0, 1, 2, 3, 6, 6]),
        success=st.sampled_from([None, {"replicas": [0]}]),
        clean=st.sampled_from(["Running", "All", "None"]),
        backoff=st.sampled_from([0, 1, 100]),
        deadline=st.sampled_from([None, None, None, None, None, 5000]),
        scope=st.sampled_from(["Auto", "Replica", "Job"]),
        elastic=st.booleans(),
    )
    def submit(
        self,
        *,
        replicas: int,
        budget: int,
        success: dict[str, Any] | None,
        clean: str,
        backoff: int,
        deadline: int | None,
        scope: str,
        elastic: bool,
    ) -> None:
        wanted = job().replicas(replicas).wants(successPolicy=success, cleanPodPolicy=clean)
        wanted = wanted.recovery(scope=scope, avoidNodeAfterFaults=1)
        if elastic:
            wanted = wanted.elastic(1, 4)
        if deadline is not None:
            wanted = wanted.wants(activeDeadlineSeconds=deadline)
        self.budget = budget
        self.world = World(wanted.recovery(maxRestarts=budget, windowSeconds=10**9, backoffSeconds=backoff))

    # --- the operator, with faults

    @rule(data=st.data())
    def reconcile(self, data: st.DataObject) -> None:
        try:
            self.world.reconcile(lambda what: data.draw(FAULTS, label=what))
        except Crash:
            self.world.restart_operator()
        except CallFailed:
            pass

    @rule()
    def reconcile_without_faults(self) -> None:
        self.world.reconcile()

    @rule()
    def run_without_faults_for_a_while(self) -> None:
        """Reach the states in which faults are interesting: a random walk alone rarely gets a job to run."""
        for _ in range(6):
            self.world.relist()
            self.world.reconcile()
            for pod in list(self.world.pods.values()):
                if pod.deleting and self.world.has_kubelet(pod):
                    self.world.remove(pod.name)
                elif pod.phase == "Pending":
                    self.world.run(pod.name)
            self.world.now += 1
        self.world.relist()
        self.world.reconcile()

    @rule(code=CODES.filter(bool))
    def running_pod_fails_and_job_converges(self, code: int) -> None:
        self.run_without_faults_for_a_while()
        running = sorted(
            pod.name
            for pod in self.world.pods.values()
            if pod.phase == "Running" and self.world.has_kubelet(pod)
        )
        if running:
            self.world.end(running[-1], code)
            self.check_convergence()

    @rule(data=st.data(), code=CODES.filter(bool), replicas=st.integers(1, 4))
    def job_that_restarts_in_place_has_several_faults(
        self, data: st.DataObject, code: int, replicas: int
    ) -> None:
        """Its agents can rejoin; a pod fails, the size changes, another fails before the first is back."""
        self.run_without_faults_for_a_while()
        self.agent_answers(rejoin=True, in_place=0)
        self.pod_ends(data, code)
        self.reconcile(data)
        self.scale(replicas)
        self.reconcile(data)
        self.pod_ends(data, code)
        self.reconcile(data)
        self.run_without_faults_for_a_while()

    @rule(data=st.data(), replicas=st.integers(2, 4))
    def job_scales_up_beyond_capacity(self, data: st.DataObject, replicas: int) -> None:
        self.run_without_faults_for_a_while()
        self.scale(replicas)
        self.reconcile(data)
        self.reconcile(data)
        self.only_one_pod_is_schedulable()
        self.reconcile(data)
        self.reconcile(data)
        self.reconcile(data)

    @rule()
    def restart_operator(self) -> None:
        self.world.restart_operator()

    @rule(data=st.data())
    def watch_delivers_one_pod(self, data: st.DataObject) -> None:
        known = sorted({*self.world.pods, *self.world.cache})
        if known:
            self.world.deliver(data.draw(st.sampled_from(known)))

    # --- pods, and users who delete them

    def pick(self, data: st.DataObject, **wanted: Any) -> str | None:
        found = [
            p.name
            for p in self.world.pods.values()
            if all(getattr(p, k) == v for k, v in wanted.items()) and self.world.has_kubelet(p)
        ]
        return data.draw(st.sampled_from(sorted(found))) if found else None

    @rule(data=st.data())
    def pod_starts(self, data: st.DataObject) -> None:
        if name := self.pick(data, phase="Pending", deleting=False):
            self.world.run(name)

    @rule()
    def all_pods_start(self) -> None:
        for pod in list(self.world.pods.values()):
            if pod.phase == "Pending":
                self.world.run(pod.name)

    @rule(data=st.data(), code=CODES)
    def pod_ends(self, data: st.DataObject, code: int) -> None:
        if name := self.pick(data, phase="Running"):
            self.world.end(name, code)

    @rule()
    def all_pods_succeed(self) -> None:
        for pod in list(self.world.pods.values()):
            if pod.phase == "Running" and self.world.has_kubelet(pod):
                self.world.end(pod.name, 0)

    @rule(data=st.data())
    def pod_is_deleted(self, data: st.DataObject) -> None:
        if name := self.pick(data, phase="Running", deleting=False):
            self.world.change(name, deleting=True)

    @rule(data=st.data())
    def pod_is_gone(self, data: st.DataObject) -> None:
        if name := self.pick(data, deleting=True):
            self.world.remove(name)

    @rule(data=st.data())
    def pod_vanishes(self, data: st.DataObject) -> None:
        if name := self.pick(data):
            self.world.remove(name)

    @rule(data=st.data())
    def pod_is_unschedulable(self, data: st.DataObject) -> None:
        if name := self.pick(data, phase="Pending", deleting=False):
            self.world.make_unschedulable(name)

    @rule()
    def only_one_pod_is_schedulable(self) -> None:
        """And the others stay unschedulable for long enough."""
        for pod in sorted(self.world.pods.values(), key=lambda pod: pod.name):
            if pod.phase == "Pending" and pod.index == 0:
                self.world.run(pod.name)
            elif pod.phase == "Pending":
                self.world.make_unschedulable(pod.name)
        self.world.now += 121

    @rule(rejoin=st.booleans(), in_place=st.sampled_from([0, 0, 1]))
    def agent_answers(self, rejoin: bool, in_place: int) -> None:
        """The agents respect the budget too."""
        status = self.world.status
        if status.get("phase") != "Running":
            return
        left = self.budget - status["restarts"]["counted"]
        in_place_total = status.get("memory", {}).get("inPlaceOfAttempt", 0) + min(in_place, left)
        self.world.answer = Progress(
            attempt=status["attempt"],
            observed_at=self.world.now,
            rejoin=rejoin,
            restarts=InPlace(in_place=in_place_total),
        )
        self.world.reconcile()

    @rule(node=st.sampled_from(["w1", "w2"]))
    def node_is_lost(self, node: str) -> None:
        self.world.lose(node)

    @rule(node=st.sampled_from(["w1", "w2"]))
    def node_comes_back(self, node: str) -> None:
        self.world.regain(node)

    @rule(data=st.data(), node=st.sampled_from(["w1", "w2"]))
    def node_is_lost_for_good(self, data: st.DataObject, node: str) -> None:
        self.run_without_faults_for_a_while()
        self.world.lose(node)
        self.world.now += 41
        self.reconcile(data)
        self.reconcile(data)
        self.reconcile(data)

    # --- the user and the clock

    @rule(replicas=st.integers(1, 4))
    def scale(self, replicas: int) -> None:
        if "elastic" in self.world.builder.spec:
            self.world.builder = self.world.builder.replicas(replicas)

    @rule(on=st.booleans())
    def suspend(self, on: bool) -> None:
        self.world.builder = self.world.builder.wants(suspend=on)

    @rule(seconds=st.sampled_from([1, 6, 41, 120, 1000, 4000]))
    def time_passes(self, seconds: int) -> None:
        self.world.now += seconds

    @rule(seconds=st.sampled_from([2, 60, 4000]))
    def the_clock_is_set_back(self, seconds: int) -> None:
        self.world.now -= seconds
        self.world.set_back += seconds

    @precondition(lambda self: self.world.pods)
    @rule()
    def converges(self) -> None:
        self.check_convergence()

    # --- what must hold

    @invariant()
    def attempts_never_overlap(self) -> None:
        if hasattr(self, "world"):
            assert self.world.overlaps == [], self.world.overlaps

    @invariant()
    def budgets_hold_and_final_phases_are_final(self) -> None:
        if not hasattr(self, "world"):
            return
        stored = self.world.history
        for earlier, later in itertools.pairwise(stored):
            assert earlier["phase"] not in FINAL or later["phase"] == earlier["phase"]
            assert later["attempt"] in (earlier["attempt"], earlier["attempt"] + 1)
            of_agents = later["restarts"].get("inPlace", 0) - earlier["restarts"].get("inPlace", 0)
            grown = later["restarts"]["total"] - earlier["restarts"]["total"] - of_agents
            if later["attempt"] == earlier["attempt"] and grown:
                assert (grown, later["phase"], self.world.scope(later)) == (1, "Recovering", "Replica")
            assert grown in (0, 1), "one incident is counted once"
            for counter, value in earlier["restarts"].items():
                falls = counter == "withoutProgress"
                assert falls or later["restarts"][counter] >= value
        assert all(status["restarts"]["counted"] <= self.budget for status in stored)

    @invariant()
    def no_status_contradicts_itself(self) -> None:
        if hasattr(self, "world"):
            for status in self.world.history[-2:]:
                assert contradictions(status) == []

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.check_convergence()
            self.attempts_never_overlap()
            self.budgets_hold_and_final_phases_are_final()

    def check_convergence(self) -> None:
        """Without further faults the job converges to the right state, and another reconcile does nothing."""
        world = self.world
        last = list(run_until_stable(world))[-1]
        assert (last.verdict, last.actions) == (None, ())

        phase, rest = world.status["phase"], world.snapshot()
        phases = {pod.phase for pod in world.pods.values()}
        assert not any(pod.deleting for pod in world.pods.values()), "no pod waits for a dead kubelet"
        if phase in FINAL:
            isolated = not phases <= {"Succeeded", "Failed"}  # as long as a pod runs
            assert (world.service, world.network_policy) == (isolated, isolated)
            if rest.job.clean_pods == "All":
                assert not world.pods
            if rest.job.clean_pods == "Running":
                assert phases <= {"Succeeded", "Failed"}
        elif phase == "Suspended":
            assert world.builder.spec["suspend"]
            assert not world.pods
        else:
            assert not rest.missing
            assert (world.service, world.network_policy) == (True, True)
            assert {pod.attempt for pod in world.pods.values()} == {world.status["attempt"]}
            assert {pod.index for pod in world.pods.values()} <= set(range(rest.size))
            assert rest.memory.private.replacing == {}
            assert rest.size == rest.job.replicas or rest.memory.private.shortage is not None


TestJobs = Jobs.TestCase
TestJobs.settings = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,  # the same walks in every run
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
