"""Loading: what is read from where, what is reported, and what is refused before anything is read."""

import json
import pickle
import shutil
import socket
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import BartForConditionalGeneration

from attention_core import AttentionError, load_model, trace
from attention_core.extract import files
from attention_core.extract.models import EMBEDDED, chosen_device
from tests.extract import forms


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small BART with unequal depths, as a person would have it on disk. Not to be written to."""
    return forms.saved(forms.built(forms.BY_NAME["bart_unequal"]), tmp_path_factory.mktemp("model"))


@pytest.fixture
def copied(folder, tmp_path):
    """The same folder, to be changed."""
    return shutil.copytree(folder, tmp_path / "model")


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("a network connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def edit_json(path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder_is_loaded_and_reported(folder, no_network):
    model = load_model(folder)
    report = model.report
    assert (report.name, report.origin, report.architecture) == (str(folder), "folder", "BartForConditionalGeneration")
    assert (report.dtype, report.device, report.file_format) == ("float32", "cpu", "safetensors")
    assert (report.missing, report.unexpected, report.revision, report.licence) == ((), (), None, None)
    assert (report.source_limit, report.target_limit, report.can_generate) == (32, 32, True)
    assert report.parameters == sum(p.numel() for p in model.module.parameters())
    assert model.kinds == ("encoder", "decoder", "cross")
    assert [model.num_layers(kind) for kind in model.kinds] == [3, 2, 2]
    assert [model.num_heads(kind) for kind in model.kinds] == [4, 2, 2]
    assert load_model(str(folder)).report == report


@pytest.mark.parametrize("name", forms.SHAPES)
def test_a_folder_of_the_exact_shape_is_loaded_offline_and_read_head_by_head(name, tmp_path, no_network):
    shape, parameters = forms.SHAPES[name]
    folder = forms.saved(forms.exact_shape(name), tmp_path / name)
    model = load_model(folder)
    assert (model.report.parameters, model.report.dtype) == (parameters, "float32")
    assert (model.report.missing, model.report.unexpected) == ((), ())
    assert model.limit("source") == model.limit("target") == 1024
    run = trace(model, "the cat, the world", target="two cats")
    assert run.kinds == ("encoder", "decoder", "cross")
    for kind in run.kinds:
        assert (run.num_layers(kind), run.num_heads(kind)) == (shape["layers"], shape["heads"])
        steps = run.steps(kind, shape["layers"] - 1, [shape["heads"] - 1])
        assert steps.query.shape[-1] == 64
        assert torch.allclose(steps.weights.sum(-1), torch.ones(steps.weights.shape[:-1]), atol=1e-5)
    shutil.rmtree(folder)


def test_positions_of_each_family():
    limits = {
        name: load_model(forms.built(forms.BY_NAME[name])).limit() for name in ("bart", "bert", "roberta", "t5", "gpt2")
    }
    # RoBERTa keeps the positions up to its padding id unused; T5 has no table of positions.
    assert limits == {"bart": 32, "bert": 34, "roberta": 32, "t5": None, "gpt2": 32}


@pytest.mark.parametrize("name", ["roberta", "bert", "mbart", "m2m100", "pegasus"])
def test_the_limit_is_the_last_length_that_works(name):
    model = load_model(forms.built(forms.BY_NAME[name]))
    limit = model.limit()
    assert trace(model, [[7] * limit]).steps(model.kinds[0], 0).weights.shape[-1] == limit
    with pytest.raises(AttentionError, match=f"{limit + 1} tokens"):
        trace(model, [[7] * (limit + 1)])


def test_a_folder_of_the_bare_model_gets_its_own_embedding_as_language_head(tmp_path):
    bare = forms.built(forms.BY_NAME["bart_bare"])
    model = load_model(forms.saved(bare, tmp_path / "bare"))
    assert model.report.can_generate and model.report.architecture == "BartForConditionalGeneration"
    assert torch.equal(model.module.lm_head.weight, bare.shared.weight)
    assert set(model.report.missing) <= {"final_logits_bias"}


def test_a_folder_of_an_encoder_stays_what_it_was_saved_as(tmp_path):
    torch.manual_seed(0)
    bare = transformers.BertModel(transformers.BertConfig(**forms.BY_NAME["bert"].settings))
    report = load_model(forms.saved(bare, tmp_path / "bert")).report
    assert (report.architecture, report.missing, report.can_generate) == ("BertModel", (), False)


def test_weights_that_are_not_in_the_files_are_named(copied):
    path = copied / "model.safetensors"
    weights = load_file(path)
    del weights["model.encoder.layers.1.self_attn.q_proj.weight"]
    save_file(weights | {"a.stranger": torch.zeros(3)}, path, metadata={"format": "pt"})
    report = load_model(copied).report
    assert report.missing == ("model.encoder.layers.1.self_attn.q_proj.weight",)
    assert report.unexpected == ("a.stranger",)


def test_the_licence_is_read_from_the_card(copied):
    (copied / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n")
    assert load_model(copied).report.licence == "apache-2.0"


def test_pickled_weights_are_read_without_running_what_is_in_them(copied, tmp_path):
    weights = load_file(copied / "model.safetensors")
    (copied / "model.safetensors").unlink()
    torch.save(weights, copied / "pytorch_model.bin")
    model = load_model(copied)
    assert model.report.file_format == "pytorch_model.bin"
    assert torch.equal(model.module.state_dict()["model.shared.weight"], weights["model.shared.weight"])

    marker = tmp_path / "ran"

    class Trap:
        def __reduce__(self):
            return marker.touch, ()

    (copied / "pytorch_model.bin").write_bytes(pickle.dumps({"model.shared.weight": Trap()}))
    with pytest.raises(AttentionError, match="cannot be loaded"):
        load_model(copied)
    assert not marker.exists()


def test_safetensors_are_preferred(copied):
    (copied / "pytorch_model.bin").write_bytes(b"never opened")
    assert load_model(copied).report.file_format == "safetensors"


def test_shards_are_found_through_their_index(folder, tmp_path):
    model = forms.built(forms.BY_NAME["bart_unequal"])
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    forms.byte_tokenizer().save_pretrained(tmp_path / "shards")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    loaded = load_model(tmp_path / "shards")
    assert torch.equal(loaded.module.model.shared.weight, model.model.shared.weight)
    next((tmp_path / "shards").glob("*.safetensors")).unlink()
    with pytest.raises(AttentionError, match="is incomplete: model-00"):
        load_model(tmp_path / "shards")


def without_weights(folder):
    (folder / "model.safetensors").unlink()
    (folder / "tf_model.h5").touch()


def cut_weights(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def emptied(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def a_file_instead(folder):
    shutil.rmtree(folder)
    folder.touch()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "is not a folder on this machine: give the path of one that save_pretrained wrote"),
        (a_file_instead, "is a file: give the folder that holds it"),
        (emptied, r"it has no config.json \(found: nothing\); give the folder"),
        (lambda f: (f / "config.json").unlink(), r"it has no config.json \(found: .*model.safetensors.*\); give the folder"),
        (lambda f: (f / "config.json").write_text("{"), "cannot be read as JSON .* copy or save the model again"),
        (lambda f: (f / "config.json").write_bytes(b"\xff"), "cannot be read as JSON .* copy or save the model again"),
        (lambda f: (f / "config.json").write_text("[]"), "must hold a JSON object: copy"),
        (lambda f: (f / "config.json").write_text("{}"), "has no model_type, such as bart; give the folder"),
        (lambda f: edit_json(f / "config.json", model_type="unheard_of"), "not one that this version of transformers knows"),
        (lambda f: edit_json(f / "config.json", d_model="x"), "config.json of .* transformers knows: .*'d_model'.*'x'"),
        (lambda f: edit_json(f / "config.json", auto_map={"AutoModel": "m.M"}), "the model in .* comes with its own code"),
        (lambda f: edit_json(f / "tokenizer_config.json", auto_map={"AutoTokenizer": ["t.T", None]}), "the tokenizer in .* code"),
        (lambda f: (f / "tokenizer_config.json").write_text("{"), "tokenizer_config.json cannot be read as JSON"),
        (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "the tokenizer of .* cannot be loaded .* save one into its folder"),
        (lambda f: (f / "tokenizer.json").write_text(""), "the tokenizer of .* cannot be loaded .* save one into its folder"),
        (lambda f: (f / "model.safetensors").unlink(), "no weights that are read here: .* found neither; save the model"),
        (without_weights, "no weights that are read here: .* found tf_model.h5"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "is not a whole safetensors file"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 30), "is not a whole safetensors file"),
        (cut_weights, "cannot be loaded .* copy or save the model again"),
        (lambda f: edit_json(f / "config.json", d_model=48), "its weights have other shapes than its config.json says"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("named", [Path, str])
def test_a_folder_that_cannot_be_read_is_refused_in_one_sentence(copied, spoil, message, named):
    spoil(copied)
    with pytest.raises(AttentionError, match=message) as refused:
        load_model(named(copied))
    said = str(refused.value)
    assert "\n" not in said and "trust_remote_code" not in said and "network" not in said


def test_a_folder_that_may_not_be_read_is_told(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files.os, "listdir", refuse)
    with pytest.raises(AttentionError, match=r"cannot be looked into \(Permission denied\): make it readable"):
        load_model(folder)


def test_a_model_larger_than_the_free_memory_is_refused_before_it_is_read(folder, monkeypatch):
    monkeypatch.setattr(files, "available_memory", lambda: 10_000)
    monkeypatch.setattr(BartForConditionalGeneration, "from_pretrained", lambda *_, **__: pytest.fail("was read"))
    with pytest.raises(AttentionError, match="needs about 1 MB of memory, and this machine has 0 MB free"):
        load_model(folder)


def test_free_memory_is_known_here():
    assert files.available_memory() > 2**20


def test_a_configuration_that_asks_for_attentions_is_loaded_all_the_same(copied):
    edit_json(copied / "config.json", output_attentions=True)
    assert trace(load_model(copied), [0, 11, 2]).steps("cross", 0).weights.shape[1] == 2


def test_half_precision_files_are_loaded_as_float32_unless_asked(copied):
    model = forms.built(forms.BY_NAME["bart_unequal"]).half()
    model.save_pretrained(copied)
    assert load_model(copied).report.dtype == "float32"
    assert load_model(copied, dtype="bfloat16").report.dtype == "bfloat16"
    with pytest.raises(AttentionError, match="dtype must be one of float32, float16, bfloat16, float64, not 'int8'"):
        load_model(copied, dtype="int8")


def test_a_tokenizer_that_knows_more_than_the_model_is_told(folder):
    with pytest.raises(AttentionError, match="the ids of the source must be from 0 to 59; found 0 to"):
        trace(load_model(folder), "the cat")


def test_devices():
    assert chosen_device("auto").type in ("cuda", "mps", "cpu")
    assert chosen_device("cpu") == torch.device("cpu")
    for name, message in (
        ("cuda:97", "this machine has no device cuda:97"),
        ("abacus", "device must be"),
        ("meta", "no device"),
    ):
        with pytest.raises(AttentionError, match=message):
            chosen_device(name)


def test_what_names_no_model():
    for source in (3, None, ["a"]):
        with pytest.raises(AttentionError, match="a model is named by a text, a folder, or a transformers model"):
            load_model(source)


def test_a_module_in_memory_stays_where_it_is_and_reads_texts_with_a_tokenizer():
    module = forms.fix_b().to(torch.float64)
    model = load_model(module)
    assert model.module is module and model.report.dtype == "float64" and model.report.origin == "module"
    with pytest.raises(AttentionError, match="this model has no tokenizer: give token ids, or load it with tokenizer="):
        trace(model, "the cat")
    assert trace(load_model(module, tokenizer=forms.byte_tokenizer()), "<s>").key_tokens("encoder") == [
        "<s>",
        "<s>",
        "</s>",
    ]


@pytest.mark.skipif(not (EMBEDDED / "config.json").is_file(), reason="the embedded model is not in this copy")
def test_the_embedded_model_completes_a_story_and_shows_every_head(no_network):
    model = load_model("embedded", device="cpu")
    assert (model.report.origin, model.report.missing, model.report.unexpected) == ("embedded", (), ())
    run = trace(model, "The cat sat on the<mask>.", generate=True)
    assert run.generated_text is not None and run.target.origin == "generated"
    for kind in model.kinds:
        assert run.num_layers(kind) == model.num_layers(kind) > 0
        seen = run.overview(kind)
        assert seen.weights.shape[:2] == (model.num_layers(kind), model.num_heads(kind))
        assert seen.weights.shape[2:] == (len(run.query_tokens(kind)), len(run.key_tokens(kind)))


def test_a_copy_without_the_embedded_model_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("attention_core.extract.models.EMBEDDED", tmp_path)
    with pytest.raises(AttentionError, match="the embedded model is not in this copy of the project"):
        load_model("embedded")
