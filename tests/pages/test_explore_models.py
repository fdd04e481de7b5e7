"""Other models on the Explore page: folders, encoders alone, missing weights, no network, names that are none, exports."""

import os
import shutil
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration, BertConfig, BertModel

from tests.pages.compare_reader import ComparePage
from tests.pages.explore_reader import ExplorePage, reference
from tests.pages.page_reader import EMBEDDED, HOSTILE, ROOT, SHORT


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random BART of unequal depths and heads, saved with the embedded tokenizer."""
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=5631, d_model=24, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=2,
        encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=64, init_std=0.5, pad_token_id=1, eos_token_id=2,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("bart")
    BartForConditionalGeneration(config).save_pretrained(path)
    AutoTokenizer.from_pretrained(EMBEDDED, local_files_only=True).save_pretrained(path)
    return path


def test_a_folder_opens_and_what_is_not_there_is_said(folder):
    page = ExplorePage({"model": "folder", "name": str(folder), "source": SHORT}).fine()
    assert not page.errors
    assert (page["layer"], page["h"]) == (0, 1)
    assert any("Layer 2 is not there; layer 0 is shown." in w for w in page.warnings)
    model = BartForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()
    _, tokenizer = reference()
    with torch.no_grad():
        result = model(**tokenizer(SHORT, return_tensors="pt"), output_attentions=True, use_cache=False)
    (found,) = page.panels("detail").values()
    assert np.abs(found["z"] - result.cross_attentions[0][0, 1].numpy()).max() < 1e-5
    # One after the other: AppTest knows the options of the last run only.
    page.set(kind="encoder").set(layer=1, h=3)
    (found,) = page.panels("detail").values()
    assert np.abs(found["z"] - result.encoder_attentions[1][0, 3].numpy()).max() < 1e-5
    names = [cell[0] for cell in page.figure("overview")["data"][1]["customdata"]]
    assert len(names) == 8 and names[-1] == "layer 1, head 3"


def test_missing_weights_do_not_pass_for_trained_ones(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.encoder.layers.0.self_attn.q_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    page = ExplorePage({"model": "folder", "name": str(tmp_path), "source": SHORT}).fine()
    assert any("encoder.layers.0.self_attn.q_proj.weight" in w and "random" in w for w in page.warnings)


def test_an_encoder_alone_has_no_target(tmp_path):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=5631, hidden_size=12, num_hidden_layers=1, num_attention_heads=3, intermediate_size=8,
        max_position_embeddings=40, pad_token_id=1,
    )  # fmt: skip
    BertModel(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(EMBEDDED, local_files_only=True).save_pretrained(tmp_path)
    page = ExplorePage({"model": "folder", "name": str(tmp_path), "source": SHORT, "mode": "greedy"}).fine()
    assert not page.errors and page["kind"] == "encoder"
    assert any("no cross-attention" in w for w in page.warnings)
    for view in ("one", "lines", "painted", "norms", "two"):
        page.set(show=view)
        assert not page.errors, view


# Case 18: without network and with an empty cache there is one sentence, soon, and the embedded model works.
def test_no_network_and_no_cache_is_one_sentence(tmp_path, monkeypatch):
    from attention_core.extract import hub

    page = ExplorePage({"source": SHORT}).fine()
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    before = time.monotonic()
    page.set(model="facebook/bart-large")
    assert time.monotonic() - before < 5
    assert len(page.errors) == 1
    for part in ("facebook/bart-large", str(tmp_path), "embedded model"):
        assert part in page.errors[0]
    assert not page.app.get("plotly_chart")
    page.app.button(key="use_embedded").click().run()
    assert page.fine().panels("detail") and not page.errors


def test_a_link_downloads_nothing_by_itself(tmp_path, monkeypatch):
    from attention_core.extract import hub

    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "folder_of", lambda *_: pytest.fail("asked the hub"))
    page = ExplorePage({"model": "facebook/bart-base", "source": SHORT}).fine()
    assert "560 MB" in page.app.info[0].value and not page.errors
    assert page.app.button(key="download_model")


@pytest.mark.parametrize("name", ["facebook/bart-base", "some/model", "gpt2", "embedded"])
def test_a_folder_is_never_taken_for_a_name_on_the_hub(name, monkeypatch):
    from attention_core.extract import hub

    monkeypatch.setattr(hub, "folder_of", lambda *_: pytest.fail("asked the hub"))
    page = ExplorePage({"model": "folder", "name": name, "source": SHORT}).fine()
    assert len(page.errors) == 1 and name in page.errors[0]


# What can be no hub id is refused before anything is said of a download: a sentence about the network would mislead.
@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("/nowhere/at/all", ["neither a folder that exists here nor a hub id", "owner/name"]),
        ("./models/x", ["neither a folder", "owner/name"]),
        ("a b", ["neither a folder", "owner/name"]),
        ("a--b", ["neither a folder", "owner/name"]),
        ("pages", ["`pages` is a folder on this machine and not a hub id", "A folder on this machine"]),
        ("https://example.com/a/b", ["neither a folder", "owner/name"]),
    ],
)
def test_what_is_no_hub_id_is_told_at_once(name, parts):
    for offline in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            from attention_core.extract import hub

            patch.setattr(hub.constants, "HF_HUB_OFFLINE", offline)
            patch.setattr(hub, "folder_of", lambda *_: pytest.fail("asked the hub"))
            page = ExplorePage({"model": "hub", "name": name, "source": SHORT}).fine()
            assert len(page.errors) == 1 and not page.app.info
            assert all(part in page.errors[0] for part in [*parts, name]) and "network" not in page.errors[0]
            assert page.app.button(key="use_embedded")
    compare = ComparePage(compare="heads", pair="models", model_b="hub", name_b=name, source=SHORT)
    compare.refused(*parts, name)


def test_a_revision_that_cannot_be_is_told():
    page = ExplorePage({"model": "hub", "name": "a/b", "revision": "../x", "source": SHORT}).fine()
    assert len(page.errors) == 1 and "a branch, a tag or a commit" in page.errors[0] and "`../x`" in page.errors[0]


@pytest.mark.parametrize("name", ["", "/nowhere/at/all", "../..", "a b", "x" * 300, "/" + "x" * 300])
def test_a_name_that_is_no_model_is_a_sentence(name):
    page = ExplorePage({"model": "folder", "name": name, "source": SHORT}).fine()
    assert len(page.errors) == (1 if name else 0)
    assert not page.app.get("plotly_chart")


def test_the_exported_python_gives_the_numbers_of_the_page():
    page = ExplorePage({"kind": "decoder", "layer": "0", "h": "5", "source": HOSTILE, "mode": "typed"}).fine()
    (code,) = [c.value for c in page.app.code if "load_model" in c.value]
    names: dict = {}
    exec(compile(code, "view", "exec"), names)
    (found,) = page.panels("detail").values()
    weights = names["head"].weights[0, 0].numpy()
    # The same to rounding: this process may run on another number of threads than the page does.
    assert np.abs(np.nan_to_num(found["z"]) - weights).max() < 1e-6


# Case 18 (b): offline, with a home folder that is not there, in a process of its own.
HOMELESS = """
import time
from tests.pages.explore_reader import ExplorePage
page = ExplorePage({"source": "The king."}).fine()
start = time.monotonic()
page.set(model="facebook/bart-base")
print(time.monotonic() - start)
print(page.errors)
page.app.button(key="use_embedded").click().run()
print(len(page.fine().panels("detail")), page.errors, page.warnings)
"""


def test_no_home_folder_is_one_sentence_and_the_embedded_model_works():
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_", "XDG_"))}
    environment = kept | {"HF_HUB_OFFLINE": "1", "HOME": "/nonexistent", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", HOMELESS], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seconds, told, after = done.stdout.strip().splitlines()
    assert float(seconds) < 5
    assert told.count("facebook/bart-base") == 1 and "/nonexistent/.cache/huggingface/hub" in told
    assert "embedded model needs neither" in told and after == "1 [] []"


# Case 18 (c): a model that is in the cache opens offline and asks no network for anything.
def test_a_cached_model_opens_offline_without_asking(folder, tmp_path, monkeypatch):
    from attention_core.extract import hub

    commit = "0123456789abcdef0123456789abcdef01234567"
    place = tmp_path / "models--open--tiny"
    shutil.copytree(folder, place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)

    def refuse(*_):
        raise AssertionError("a network connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    for offline in (True, False):
        monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", offline)
        page = ExplorePage({"model": "hub", "name": "open/tiny", "source": SHORT}).fine()
        assert page.panels("detail") and not page.errors and not page.app.info
        loaded = {row[0]: row[1] for row in page.table("what")[1:]}
        assert (loaded["model"], loaded["revision"], loaded["from"]) == ("open/tiny", commit, "the hub's cache")
