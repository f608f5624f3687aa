"""What a container asks for."""

import pytest

from dtj_client.amounts import accelerators, counted, number


@pytest.mark.parametrize(
    "resource",
    [
        *(
            "nvidia.com/gpu",
            "nvidia.com/mig-3g.40gb",
            "nvidia.com/gpu.shared",
            "amd.com/gpu",
            "amd.com/cpx_nps4",
        ),
        *("aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "google.com/tpu", "habana.ai/gaudi"),
        *("gpu.intel.com/xe", "gpu.intel.com/i915", "huawei.com/Ascend910", "volcano.sh/vgpu-number"),
    ],
)
def test_accelerators_and_their_parts(resource: str) -> None:
    assert accelerators({resource: 1}) == {resource: 1}


@pytest.mark.parametrize(
    "resource",
    [
        *("cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "rdma/hca_shared_devices_a"),
        *("smarter-devices/fuse", "smarter-devices/input", "vpc.amazonaws.com/efa", "github.com/fuse"),
        *("intel.com/intel_sriov_netdevice", "networking.gke.io.networks/rdma-0"),
        *("nvidia.com/hostdev", "amd.com/vnic"),
    ],
)
def test_other_resources_are_not_accelerators(resource: str) -> None:
    assert accelerators({resource: 1}) == {}


def test_parts_are_not_counted() -> None:
    amounts = {"nvidia.com/mig-1g.5gb": 7, "nvidia.com/gpu.shared": 4, "amd.com/gpu": 8}
    assert counted(amounts) == {"amd.com/gpu": 8}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("2", 2), ("2.5", 2.5), (".5", 0.5), ("500m", 0.5), ("1Ki", 1024), ("16Gi", 2**34), ("2k", 2000)),
        *(("1e3", 1000), ("1E+3", 1000), ("5E-1", 0.5), ("1E", 1e18), ("2Ei", 2**61)),
        *(("512mb", None), ("-1", None), ("", None)),
    ],
)
def test_number_is_what_kubernetes_reads(text: str, expected: float | None) -> None:
    assert number(text) == expected
