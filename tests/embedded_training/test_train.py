"""A tiny run: the loss falls, a run goes on where it stopped, and the result is a folder that plain transformers loads."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from attention_core.embedded_training import card, evaluate, export, heads, revive, train
from attention_core.embedded_training.optimiser import MuonAdam, orthogonalise
from attention_core.embedded_training.prepare import Split, prepare

SHAPE = {"d_model": 24, "layers": 2, "heads": 3}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    texts, out = tmp_path_factory.mktemp("texts"), tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    who, what, where = (
        ["king", "fox", "girl", "old woman"],
        ["saw a bird", "ran away", "slept"],
        ["wood", "house", "sea"],
    )
    for name in ("1", "2", "3"):
        lines = [
            f"The {rng.choice(who)} {rng.choice(what)} in the {rng.choice(where)}. Then Gerda{i} came to the {rng.choice(where)}."
            for i in range(40)
        ]
        (texts / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    prepare(texts, out, Split(test=("2",), dev=("3",)))
    return out


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    path = train.train(data, out, 60, batch_tokens=400, max_steps=150, shape=SHAPE)
    return out, path


def reports(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_loss_falls(data, run):
    out, path = run
    untrained = train.Denoiser(train.make_config(vocab(data), **SHAPE)).bart
    batches = train.evaluation_batches(train.load_books(data, "dev"), vocab(data), 20, seed=1)
    before, after = (train.accuracy(model, batches) for model in (untrained, train.load_checkpoint(path)[0]))
    assert after["visible_nats"] < 0.7 * before["visible_nats"]
    assert after["masked_nats"] < 0.7 * before["masked_nats"]
    last = reports(out)[-1]
    assert last["step"] == 150 and last["tokens"] > 150 * 200
    assert train.best_checkpoint(out) == path


def vocab(data) -> int:
    return train.Tokenizer.from_file(str(data / "tokenizer.json")).get_vocab_size()


def test_a_resumed_run_goes_on_with_its_optimiser(data, run, tmp_path):
    _, path = run
    resumed = train.train(data, tmp_path, 60, batch_tokens=400, max_steps=153, shape=SHAPE, resume=path)
    before, after = (torch.load(p, weights_only=True) for p in (path, resumed))
    assert before["state"]["step"] == 150 and after["state"]["step"] == 153
    assert (
        after["state"]["tokens"] > before["state"]["tokens"] and after["state"]["seconds"] > before["state"]["seconds"]
    )
    assert after["optimiser"]["steps"] == 153
    moved = [
        float((after["optimiser"]["masters"][name] - weight).norm() / (weight.norm() + 1e-9))
        for name, weight in before["optimiser"]["masters"].items()
    ]
    assert 0 < max(moved) and np.median(moved) < 0.3  # three steps on, not a new start


def test_a_new_schedule_starts_from_a_model_folder(data, run, tmp_path):
    _, path = run
    model, state = train.load_checkpoint(path)
    folder = tmp_path / "model"
    export.export_model(model, state, folder)
    export.export_tokenizer(data, folder)
    out = train.train(data, tmp_path, 60, batch_tokens=400, max_steps=2, shape=SHAPE, start=folder)
    after = torch.load(out, weights_only=True)
    assert after["state"]["before"]["step"] == 150 and after["state"]["step"] == 2 == after["optimiser"]["steps"]
    name = "bart.model.encoder.layers.0.fc1.weight"
    start, now = model.state_dict()[name.removeprefix("bart.")], after["optimiser"]["masters"][name]
    assert 0 < (now - start).abs().max() < 0.01  # two steps of the warm-up away from where it began
    noise, visible, growth = train.schedule(0.0, copies=True)
    assert (noise.clean, visible, growth) == (0.1, 0.35, 1.0)


def test_a_restored_optimiser_takes_the_very_same_step():
    torch.manual_seed(0)
    layers = [
        torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 3)) for _ in range(2)
    ]
    optimisers = [MuonAdam(layer) for layer in layers]
    x = torch.randn(11, 5)

    def step(i: int) -> None:
        layers[i](x).square().mean().backward()
        optimisers[i].step(1.0)

    for _ in range(3):
        step(0)
    optimisers[1].load_state_dict(optimisers[0].state_dict())
    step(0), step(1)
    for a, b in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        assert torch.equal(a, b)


def test_orthogonalise_brings_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((3, 13, 29), (2, 31, 17)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)).float())
        assert 0.5 < values.min() and values.max() < 1.4


def test_schedule_warms_up_stays_flat_and_decays():
    assert train.rate_factor(0, 0.0) == pytest.approx(1 / 150)
    assert train.rate_factor(500, 0.3) == train.rate_factor(500, 0.64) == 1.0
    assert train.rate_factor(500, 0.825) == pytest.approx(0.51)
    assert train.rate_factor(500, 1.0) == pytest.approx(0.02)
    assert train.faded(0.5) == 1.0 and train.faded(0.95) == 0.0 and 0 < train.faded(0.8) < 1


def test_the_exported_folder_loads_and_says_the_same(data, run, tmp_path):
    _, path = run
    model, state = train.load_checkpoint(path)
    export.export_model(model, state, tmp_path)
    export.export_tokenizer(data, tmp_path)
    loaded, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.dtype == torch.float32
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = list(file.keys())
        assert sum("shared" in name or "embed_tokens" in name or "lm_head" in name for name in names) == 1
        assert {file.get_tensor(name).dtype for name in names} == {torch.float16}
    inputs = tokenizer("The king saw <mask>.", return_tensors="pt")
    ids = {"input_ids": inputs.input_ids, "attention_mask": inputs.attention_mask}
    with torch.no_grad():
        torch.testing.assert_close(loaded(**ids).logits, model(**ids).logits, atol=0.05, rtol=0)


def test_evaluation_writes_its_figures(data, run, tmp_path, monkeypatch):
    _, path = run
    model, state = train.load_checkpoint(path)
    export.export_model(model, state, tmp_path)
    export.export_tokenizer(data, tmp_path)
    prompts = {
        "copies": [{"text": "Gerda ran.", "unseen": []}],
        "infill": [{"text": "A <mask>.", "hidden": "x", "book": "2"}],
    }
    (tmp_path / "prompts.json").write_text(json.dumps(prompts), encoding="utf-8")
    monkeypatch.setattr(evaluate, "PROMPTS", tmp_path / "prompts.json")
    monkeypatch.setattr(evaluate, "ABLATION_TEXTS", 3)
    figures = evaluate.evaluate(tmp_path, data, say=lambda line: None)
    assert figures["run"] == state
    assert json.loads((tmp_path / "figures.json").read_text(encoding="utf-8")) == json.loads(json.dumps(figures))
    assert {kind: len(rows) for kind, rows in figures["heads"].items()} == {"encoder": 6, "decoder": 6, "cross": 6}
    assert {kind: len(rows) for kind, rows in figures["ablation"].items()} == {"encoder": 6, "decoder": 6, "cross": 6}
    assert not figures["gates"]["accuracy at visible places"]["met"]
    card.write_card(tmp_path, "It was a tiny run.")
    text = (tmp_path / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "It was a tiny run." in text and "150 steps" in text and "$" not in text
    assert f"accuracy {figures['accuracy']['masked_accuracy']:.3f}" in text
    # A run that went on from the weights of another one counts both.
    figures["run"] = {"step": 7, "tokens": 4_000_000, "seconds": 120.0, "seed": 3, "before": {**state, "seconds": 60.0}}
    (tmp_path / "figures.json").write_text(json.dumps(figures), encoding="utf-8")
    card.write_card(tmp_path)
    assert "157 steps, 4.0 million target pieces, 3 minutes of wall time on one CPU core, seed 0, then 3" in (
        tmp_path / "MODEL_CARD.md"
    ).read_text(encoding="utf-8")


def test_switching_a_head_off_removes_its_slice_and_nothing_else(data):
    torch.manual_seed(0)
    model = train.Denoiser(train.make_config(vocab(data), **SHAPE)).bart.eval()
    batch = heads.clean_batch([[(9,), (11, 13), (17,)]])
    seen = {}
    module = model.model.decoder.layers[1].encoder_attn.out_proj

    def logits():
        handle = module.register_forward_hook(lambda _m, inputs, _out: seen.update(context=inputs[0]))
        with torch.no_grad():
            out = model(input_ids=batch.source, decoder_input_ids=batch.decoder_input).logits
        handle.remove()
        return out

    intact, context = logits(), seen["context"].clone()
    with heads.switched_off(model, "cross", layer=1, head=2):
        changed = logits()
    assert (seen["context"][..., 16:] == 0).all() and torch.equal(seen["context"][..., :16], context[..., :16])
    assert not torch.equal(changed, intact) and torch.equal(logits(), intact)


def test_a_revived_head_begins_anew_and_the_others_stay(data, run, tmp_path, monkeypatch):
    _, path = run
    name, head, piece = "model.decoder.layers.1.encoder_attn", 2, slice(16, 24)
    monkeypatch.setattr(revive, "resting_heads", lambda model, sentences: {name: [head]})
    revive.revive(path, data, tmp_path / "revived.pt")
    before, after = (torch.load(p, weights_only=True)["optimiser"]["masters"] for p in (path, tmp_path / "revived.pt"))
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    parts = ("q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias", "out_proj.weight", "out_proj.bias")
    assert changed == {f"bart.{name}.{part}" for part in parts}
    query = f"bart.{name}.q_proj.weight"
    assert torch.equal(after[query][:16], before[query][:16]) and 0.01 < after[query][piece].std() < 0.03
    out = f"bart.{name}.out_proj"
    assert (after[f"{out}.weight"][:, piece] == 0).all()
    assert torch.equal(after[f"{out}.weight"][:, :16], before[f"{out}.weight"][:, :16])
    model, _ = train.load_checkpoint(path)
    dev = train.evaluation_batches(train.load_books(data, "dev"), vocab(data), 64, seed=2)
    mean = revive.mean_contexts(model, [name], dev)[name]
    moved = after[f"{out}.bias"] - before[f"{out}.bias"]
    torch.testing.assert_close(moved, before[f"{out}.weight"][:, piece] @ mean[piece], atol=1e-5, rtol=1e-4)
