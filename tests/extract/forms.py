"""Small random models of every form that the tests look into, and the folders they are loaded from."""

from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

VOCABULARY = 60
BATCH, SOURCE_LEN, TARGET_LEN = 2, 7, 5
KINDS = ("encoder", "decoder", "cross")

_ENCODER_DECODER = {
    "vocab_size": VOCABULARY, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 3,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_position_embeddings": 32,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
_UNEQUAL = _ENCODER_DECODER | {
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
}
_ENCODER = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20,
    "max_position_embeddings": 34, "pad_token_id": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """A model's class and configuration; ``layers`` are those of encoder, decoder and cross-attention."""

    name: str
    model: str
    config: str
    settings: dict
    layers: tuple[int, int, int]


FORMS = (
    Form("bart", "BartForConditionalGeneration", "BartConfig", _ENCODER_DECODER, (2, 2, 2)),
    Form("bart_unequal", "BartForConditionalGeneration", "BartConfig", _UNEQUAL, (3, 2, 2)),
    Form("bart_bare", "BartModel", "BartConfig", _UNEQUAL, (3, 2, 2)),
    Form("mbart", "MBartForConditionalGeneration", "MBartConfig", _UNEQUAL, (3, 2, 2)),
    Form("pegasus", "PegasusForConditionalGeneration", "PegasusConfig", _UNEQUAL | {"scale_embedding": True}, (3, 2, 2)),
    Form("m2m100", "M2M100ForConditionalGeneration", "M2M100Config", _UNEQUAL, (3, 2, 2)),
    Form("t5", "T5ForConditionalGeneration", "T5Config", {
        "vocab_size": VOCABULARY, "d_model": 24, "d_kv": 7, "num_heads": 3, "num_layers": 3, "num_decoder_layers": 2,
        "d_ff": 20, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
    }, (3, 2, 2)),
    Form("bert", "BertForMaskedLM", "BertConfig", _ENCODER, (2, 0, 0)),
    Form("roberta", "RobertaForMaskedLM", "RobertaConfig", _ENCODER, (2, 0, 0)),
    Form("electra", "ElectraForMaskedLM", "ElectraConfig", _ENCODER | {"embedding_size": 11}, (2, 0, 0)),
    Form("albert", "AlbertForMaskedLM", "AlbertConfig", _ENCODER | {"embedding_size": 11, "num_hidden_layers": 3}, (3, 0, 0)),
    Form("distilbert", "DistilBertForMaskedLM", "DistilBertConfig", {
        "vocab_size": VOCABULARY, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 20, "max_position_embeddings": 32,
    }, (2, 0, 0)),
    Form("bert_decoder", "BertLMHeadModel", "BertConfig", _ENCODER | {"is_decoder": True}, (0, 2, 0)),
    Form("gpt2", "GPT2LMHeadModel", "GPT2Config", {
        "vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 2,
    }, (0, 2, 0)),
)  # fmt: skip
BY_NAME = {form.name: form for form in FORMS}


def changed(name: str, **settings) -> Form:
    """A form with other settings."""
    form = BY_NAME[name]
    return Form(f"{name}_changed", form.model, form.config, form.settings | settings, form.layers)


def built(form: Form, seed: int = 0) -> torch.nn.Module:
    """A model of this form with weights large enough that its attention is far from uniform."""
    torch.manual_seed(seed)
    model = getattr(transformers, form.model)(getattr(transformers, form.config)(**form.settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name.lower():
                parameter.normal_(0, 0.3 if parameter.dim() > 1 else 0.1)
    return model.eval()


def fix_b() -> torch.nn.Module:
    """The small BART that the collected reports name FIX-B."""
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=50, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=16, init_std=0.5,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config).eval()


def ids(length: int, seed: int = 1) -> Tensor:
    """(BATCH, length) ids without any special one."""
    return torch.randint(5, VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def padded_right(length: int) -> Tensor:
    """(BATCH, length), boolean: the first text is whole, the second lacks its last two tokens."""
    return torch.arange(length) < torch.tensor([[length], [length - 2]])


def eager_maps(model: torch.nn.Module, inputs: dict) -> dict[str, tuple[Tensor, ...]]:
    """The weights that the library's own eager attention gives, by kind."""
    with torch.no_grad():
        found = model(**inputs, output_attentions=True)
    if model.config.is_encoder_decoder:
        return {kind: getattr(found, f"{kind}_attentions") for kind in KINDS}
    kind = "decoder" if getattr(model.config, "is_decoder", False) or model.config.model_type == "gpt2" else "encoder"
    return {kind: found.attentions}


def byte_tokenizer(words: tuple[str, ...] = ("Ġthe", "Ġcat", "Ġworld", "Hello", "Ġtwo")) -> PreTrainedTokenizerFast:
    """Byte-level BPE in BART's manner, with a few merges: enough to make the listed words one piece each."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *letters]
    merges = []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in pieces:
                merges.append((word[: end - 1], word[end - 1]))
                pieces.append(word[:end])
    backend = Tokenizer(
        models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
        mask_token="<mask>", cls_token="<s>", sep_token="</s>",
    )  # fmt: skip


def saved(model: torch.nn.Module, folder: Path, tokenizer=None) -> Path:
    """A folder as a person would have it: the model and its tokenizer."""
    model.save_pretrained(folder)
    (tokenizer or byte_tokenizer()).save_pretrained(folder)
    return folder


# Settings and number of parameters of the published models.
SHAPES = {
    "bart-base": ({"d_model": 768, "layers": 6, "heads": 12, "ffn": 3072}, 139_420_416),
    "bart-large": ({"d_model": 1024, "layers": 12, "heads": 16, "ffn": 4096}, 406_291_456),
}


def exact_shape(name: str) -> transformers.BartForConditionalGeneration:
    """A BART of exactly the shape and vocabulary size of bart-base or bart-large, in float16, with random weights."""
    shape, _ = SHAPES[name]
    config = transformers.BartConfig(
        d_model=shape["d_model"], encoder_layers=shape["layers"], decoder_layers=shape["layers"],
        encoder_attention_heads=shape["heads"], decoder_attention_heads=shape["heads"],
        encoder_ffn_dim=shape["ffn"], decoder_ffn_dim=shape["ffn"],
    )  # fmt: skip
    with torch.device("meta"):  # the library's own initialisation takes longer than all the rest
        model = transformers.BartForConditionalGeneration(config)
    model = model.to(torch.float16).to_empty(device="cpu")
    model.tie_weights()
    block = torch.randn(1 << 20).mul_(0.05).half()
    for name, x in model.state_dict().items():
        x.fill_(1.0 if "layernorm_embedding.weight" in name or "layer_norm.weight" in name else 0.0)
        if x.dim() == 2:
            flat = x.view(-1)
            for start in range(0, len(flat), len(block)):
                flat[start : start + len(block)] = block[: len(flat) - start]
    return model


def saved_bert(folder: Path) -> Path:
    """A small random BERT that any text can be typed into, as a folder."""
    tokenizer = byte_tokenizer()
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
        max_position_embeddings=64, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    return saved(transformers.BertForMaskedLM(config), folder, tokenizer)
