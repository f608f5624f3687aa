"""Whether the jobs may be read, and which namespaces can be served."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from random import Random

import pytest
from aiohttp import web

from dtj_operator import scope, settings
from dtj_operator.kube import bounded
from dtj_operator.kube.api import Api
from dtj_operator.kube.bucket import Bucket
from dtj_operator.kube.discovery import first_served, missing_right, serves_jobs
from tests.unit.dtj_operator.kube.server import Handler, lacks, refuses, says, serving, stall, streams

param = pytest.param
LISTED = says({"metadata": {"resourceVersion": "7"}, "items": []})
JOBS = "/apis/dtj.dev/v1alpha1/namespaces/a/distributedtrainingjobs"


@pytest.mark.parametrize(
    ("groups", "kinds", "expected"),
    [
        param(["dtj.dev"], ["distributedtrainingjobs", "distributedtrainingjobs/status"], True, id="served"),
        param(["apps"], ["distributedtrainingjobs"], False, id="not in the list of groups yet"),
        param(["dtj.dev"], ["others"], False, id="another kind of the group"),
    ],
)
async def test_kind_is_served_if_both_documents_name_it(
    groups: list[str], kinds: list[str], expected: bool
) -> None:
    script = [
        says({"groups": [{"name": name} for name in groups]}),
        says({"resources": [{"name": name} for name in kinds]}),
    ]
    async with serving(*script) as server:
        api = Api(server.config, Bucket(1e9), Random(1))
        assert await serves_jobs(api) is expected
        await api.close()


NOT_SERVED = refuses(404, "NotFound", "page not found")
SERVED = says({"resources": [{"name": "podgroups/status"}, {"name": "podgroups"}]})


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        param([SERVED], "v1beta1", id="the newer one"),
        param([NOT_SERVED, SERVED], "v1alpha2", id="the older one"),
        param(
            [says({"resources": [{"name": "others"}]}), SERVED], "v1alpha2", id="the newer one lacks the kind"
        ),
        param([NOT_SERVED, NOT_SERVED], "", id="neither"),
    ],
)
async def test_newest_version_that_is_served_is_found(script: list[Handler], expected: str) -> None:
    async with serving(*script) as server:
        api = Api(server.config, Bucket(1e9), Random(1))
        assert await first_served(api, ("v1beta1", "v1alpha2"), "podgroups") == expected
        await api.close()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        param([LISTED, streams()], "", id="both rights"),
        param([refuses(403, "Forbidden", "no list")], f"GET {JOBS}: 403 Forbidden: no list", id="no list"),
        param(
            [LISTED, refuses(403, "Forbidden", "no watch")],
            f"GET {JOBS}: 403 Forbidden: no watch",
            id="no watch",
        ),
        param([refuses(404, "NotFound", "page not found")], "", id="the CRD was deleted meanwhile"),
        param([says({"metadata": {}, "items": [{"metadata": 1}]})], "", id="a list that cannot be decoded"),
    ],
)
async def test_missing_right_to_read_jobs_is_quoted(script: list[Handler], expected: str) -> None:
    async with serving(*script) as server:
        api = Api(server.config, Bucket(1e9), Random(1))
        assert await missing_right(api, "a") == expected
        await api.close()
    if len(script) == 2:
        assert server.asked[1][2] == {"watch": "true", "resourceVersion": "7"}


CHILDREN = [LISTED] * 3  # pods, Services and NetworkPolicies


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("number", [0, 1, 2])
async def test_namespace_whose_children_may_not_be_read_is_left_out(number: int) -> None:
    flags = settings.parse(["--namespace=a,b", "--no-leader-election"], {})
    no_children = [*CHILDREN[:number], refuses(403, "Forbidden", "no list")]
    async with serving(*no_children, *CHILDREN, LISTED, streams()) as server:
        assert await scope.find(flags, server.config, flags.namespaces) == ["b"]
    kinds = [path.rpartition("/")[2] for _, path, *_ in server.asked]
    assert kinds[number : number + 2] == [["pods", "services", "networkpolicies"][number], "pods"]


class Looks:
    """An API server that answers GETs about namespaces with lists, and about those in `no` with 403."""

    def __init__(self) -> None:
        self.no: set[str] = set()
        self.asked: list[str] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        name = request.path.partition("/namespaces/")[2].partition("/")[0]
        if request.path.endswith("/pods"):
            self.asked.append(name)
        if name in self.no:
            return await refuses(403, "Forbidden", "no list")(request)
        return await (streams() if "watch" in request.query else LISTED)(request)


async def until_changed(looks: Looks, doubtful: Callable[[], set[str]], *flags: str) -> Sequence[str]:
    """Return what is found after a start with a and b, of a, b and c."""
    parsed = settings.parse(["--namespace=a,b,c", "--no-leader-election", *flags], {})
    async with serving(*[looks.handle] * 100) as server, asyncio.timeout(10):
        return await scope.until_changed(parsed, server.config, ["a", "b"], doubtful)


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope, "LOOK_S", 0.01)


@pytest.mark.usefixtures("short_looks")
async def test_look_asks_only_about_namespaces_that_are_not_served_or_doubtful() -> None:
    looks, doubts = Looks(), iter([set(), {"a"}])
    assert await until_changed(looks, lambda: next(doubts)) == ["a", "b", "c"]
    assert sorted(looks.asked) == ["a", "c"]


@pytest.mark.usefixtures("short_looks")
async def test_namespace_is_left_out_if_two_looks_in_a_row_find_so() -> None:
    looks = Looks()
    looks.no, numbers = {"a", "c"}, itertools.count()

    def doubtful() -> set[str]:
        looks.no = {"c"} if next(numbers) == 1 else {"a", "c"}  # at the second look it is back
        return {"a"}

    assert await until_changed(looks, doubtful) == ["b"]
    assert looks.asked.count("a") == 4


async def test_every_namespace_is_asked_about_once_per_resync() -> None:
    looks = Looks()
    looks.no = {"b", "c"}
    assert await until_changed(looks, set, "--resync-seconds=0.01") == ["a"]


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the answers of a script are about one namespace after the other."""
    monkeypatch.setattr(bounded, "AT_ONCE", 1)


@pytest.mark.usefixtures("one_by_one")
async def test_namespace_whose_jobs_may_not_be_read_is_left_out() -> None:
    flags = settings.parse(["--namespace=a,b", "--no-leader-election"], {})
    no_jobs = refuses(403, "Forbidden", "no list")
    async with serving(*CHILDREN, no_jobs, *CHILDREN, LISTED, streams()) as server:
        assert await scope.find(flags, server.config, flags.namespaces) == ["b"]


QUOTA = refuses(403, "Forbidden", "exceeded quota: count/leases.coordination.k8s.io=1")
HAS_LEASE, NO_LEASE = says({"metadata": {}}), lacks("leases", "dtj-operator")
MADE, TAKEN = says({"metadata": {}}, 201), refuses(409, "AlreadyExists")
NO_WEBHOOK = refuses(500, "InternalError", 'failed calling webhook "leases": no endpoints')
READ = [LISTED, streams()]


@pytest.mark.parametrize(
    ("script", "served"),
    [
        param([HAS_LEASE, MADE, *READ], True, id="it is there, whatever a quota says about a new one"),
        param([HAS_LEASE, TAKEN, *READ], True, id="another operator has just renewed it"),
        param([HAS_LEASE, NO_WEBHOOK], False, id="it cannot be renewed"),
        param([HAS_LEASE, refuses(503), *READ], True, id="no answer about it"),
        param([NO_LEASE, MADE, *READ], True, id="it can be created"),
        param([NO_LEASE, TAKEN, *READ], True, id="another operator has just created it"),
        param([NO_LEASE, QUOTA], False, id="it cannot be created"),
        param([refuses(403, "Forbidden", "no get")], False, id="it may not be read"),
    ],
)
@pytest.mark.usefixtures("one_by_one")
async def test_namespace_is_served_only_with_its_lease(script: list[Handler], served: bool) -> None:
    flags = settings.parse(["--namespace=a,b"], {})
    async with serving(*CHILDREN, *script, *CHILDREN, HAS_LEASE, MADE, LISTED, streams()) as server:
        assert await scope.find(flags, server.config, flags.namespaces) == (["a", "b"] if served else ["b"])
    writes = [method for method, *_ in server.asked if method != "GET"]
    expected = ["POST"] if script[0] is NO_LEASE else ["PUT"] if script[0] is HAS_LEASE else []
    assert writes == [*expected, "PUT"]
    assert all(query == {"dryRun": "All"} for method, _, query, _ in server.asked if method != "GET")


TEAMS = settings.parse([f"--namespace={','.join(f'team-{number}' for number in range(9))}"], {})


async def test_namespace_without_an_answer_in_time_stays_as_it_was() -> None:
    before = TEAMS.namespaces[:2]
    async with serving(*[stall] * 9) as server, asyncio.timeout(5):
        assert await scope.find(TEAMS, server.config, before, within_s=0.01) == before


async def test_a_limited_number_of_namespaces_is_asked_for_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "AT_ONCE", 3)
    three, together, most = asyncio.Barrier(3), 0, 0

    async def forbidden(request: web.Request) -> web.StreamResponse:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await three.wait()
        together -= 1
        return await refuses(403)(request)

    async with serving(*[forbidden] * 9) as server, asyncio.timeout(5):
        await scope.find(TEAMS, server.config, TEAMS.namespaces)
        assert (len(server.asked), most) == (9, 3)
