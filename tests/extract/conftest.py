"""Models that several test files share."""

import pytest
import torch

from attention_core.extract.models import load_model
from tests.extract import forms


@pytest.fixture(
    params=[
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")),
    ]
)
def device(request) -> str:
    return request.param


@pytest.fixture
def fix_b():
    """FIX-B, ready to be looked into; a fresh one for each test, since some change it."""
    return load_model(forms.fix_b())


@pytest.fixture(scope="session")
def text_model():
    """A small random BART with unequal depths and a byte-level tokenizer that every text can be typed into."""
    tokenizer = forms.byte_tokenizer()
    form = forms.BY_NAME["bart_unequal"]
    form = forms.Form("text", form.model, form.config, form.settings | {"vocab_size": len(tokenizer)}, form.layers)
    return load_model(forms.built(form), tokenizer=tokenizer)
