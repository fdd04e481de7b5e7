"""What the layer's tests share: the devices they run on, and one seed for each test."""

import pytest
import torch

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
    ),
]


@pytest.fixture(params=DEVICES, scope="session")
def device(request) -> str:
    return request.param


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
