"""Models and profiles that several test files share."""

import copy

import pytest
import torch

from attention_core.analysis.profile import profile_of
from attention_core.extract.means import stories
from attention_core.extract.models import LoadedModel, load_model
from tests.extract import forms

# Of different lengths, with punctuation and repeated words; two in the byte-level tokenizer's 40 to 60 tokens.
TEXTS = (
    "the cat, the world.",
    "Hello world!",
    "two cats and the two worlds; they said: Hello.",
    "a",
    "the the the cat",
    "What a world, what a cat? The cat went out.",
    "One, two, three.",
)


@pytest.fixture(scope="session")
def text_model() -> LoadedModel:
    """A small random BART with unequal depths and a byte-level tokenizer that every text can be typed into."""
    tokenizer = forms.byte_tokenizer()
    form = forms.BY_NAME["bart_unequal"]
    form = forms.Form("text", form.model, form.config, form.settings | {"vocab_size": len(tokenizer)}, form.layers)
    return load_model(forms.built(form), tokenizer=tokenizer)


@pytest.fixture(scope="session")
def embedded() -> LoadedModel:
    torch.set_num_threads(1)
    return load_model("embedded")


@pytest.fixture(scope="session")
def some_stories(embedded) -> list[str]:
    """Paragraphs that fit the embedded model, some of them long enough for long range."""
    return [text for text in stories()[::24] if embedded.count_tokens(text) <= embedded.limit()]


@pytest.fixture(scope="session")
def sound(embedded, some_stories):
    """The profile of the embedded model over these paragraphs, read from maps alone."""
    return profile_of(embedded, some_stories)


@pytest.fixture
def copied(embedded):
    """A copy of the embedded model that may be broken."""

    def copied() -> torch.nn.Module:
        return copy.deepcopy(embedded.module)

    return copied


def attention_of(module: torch.nn.Module, kind: str, layer: int) -> torch.nn.Module:
    """One attention module of a BART."""
    side = module.model.encoder if kind == "encoder" else module.model.decoder
    return side.layers[layer].encoder_attn if kind == "cross" else side.layers[layer].self_attn


def plant_dead(module: torch.nn.Module, kind: str, layer: int, head: int) -> None:
    """Zeroes a head's slice of the value projection, and of its bias."""
    attention = attention_of(module, kind, layer)
    rows = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
    with torch.no_grad():
        attention.v_proj.weight[rows] = 0
        attention.v_proj.bias[rows] = 0


def plant_copy(module: torch.nn.Module, kind: str, layer: int, head: int, of: int) -> None:
    """Makes a head a copy of another of its layer: query, key, value and output slices."""
    attention = attention_of(module, kind, layer)
    to, source = (slice(h * attention.head_dim, (h + 1) * attention.head_dim) for h in (head, of))
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj"):
            projection = getattr(attention, name)
            projection.weight[to] = projection.weight[source]
            projection.bias[to] = projection.bias[source]
        attention.out_proj.weight[:, to] = attention.out_proj.weight[:, source]
