"""What the client knows by itself is what the CRD and the operator know."""

from pathlib import Path
from typing import Any

import yaml

from dtj.local import manifest as local
from dtj_client import amounts
from dtj_client.programs import accelerate
from dtj_operator.model import spec
from tests.contract.test_both_halves import environment_of
from tests.support.builders import JobBuilder

Json = dict[str, Any]
CRD = Path(__file__).parents[2] / "crds" / "dtj.dev_distributedtrainingjobs.yaml"


def test_client_takes_the_amounts_that_the_crd_takes_but_negative_ones():
    schema: Json = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in ("spec", "template", "spec", "containers"):
        schema = schema["properties"][name]
    limits = schema["items"]["properties"]["resources"]["properties"]["limits"]
    assert limits["additionalProperties"]["pattern"] == f"^[+-]?{amounts.AMOUNT.pattern}$"


def test_client_operator_and_local_jobs_count_the_same_resources_as_accelerators():
    assert amounts.COUNTED == spec.ACCELERATORS == local.ACCELERATORS


def test_place_of_accelerate_launch_is_made_of_variables_that_the_operator_sets():
    set_for_launchers = environment_of(JobBuilder().wants(processesPerReplica=2))
    assert {each.strip("$()") for each in accelerate.PLACE.values()} <= set_for_launchers.keys()
