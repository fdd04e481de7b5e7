"""Loading a model so that every one of its attention heads can be looked into."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel

from ..errors import AttentionError
from . import files, hub, registry
from .families import position_limit
from .registry import KINDS, Site
from .tokens import TokenReader

EMBEDDED = Path(__file__).parent.parent / "embedded"
_NO_CODE = {"local_files_only": True, "trust_remote_code": False}
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True)
class ModelReport:
    """What is loaded, for the person to see.

    Attributes:
        name: "embedded", the hub id, the folder, or the class of a module in memory.
        origin: "embedded", "hub", "folder" or "module".
        architecture: the class that runs, for instance BartForConditionalGeneration.
        revision: commit of the hub; None elsewhere.
        dtype, device: as torch writes them.
        licence: what the model card says; None if it says nothing.
        parameters: how many numbers the model has (shared ones once).
        file_format: "safetensors", "pytorch_model.bin", or None for a module in memory.
        missing: weights that were in no file and are random (empty for a module in memory).
        unexpected: weights of the files that this architecture has no place for.
        source_limit, target_limit: most tokens that encoder and decoder take; None = no limit, or no such side.
        can_generate: whether the model can write a target.
    """

    name: str
    origin: str
    architecture: str
    revision: str | None
    dtype: str
    device: str
    licence: str | None
    parameters: int
    file_format: str | None
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    source_limit: int | None
    target_limit: int | None
    can_generate: bool


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that can be traced; may be shared by any number of threads.

    Attributes:
        module: the transformers model, in eval mode.
        source_reader, target_reader: tokenizers for the two sides (two for mBART's languages, else one); None for a
            module in memory without a tokenizer.
        report: what is loaded.
        sites: its attention modules, in order.
        modules: the attention modules by name, the output embedding, and the stacks of decoder layers.
    """

    module: PreTrainedModel = field(repr=False)
    source_reader: TokenReader | None = field(repr=False)
    target_reader: TokenReader | None = field(repr=False)
    report: ModelReport
    sites: tuple[Site, ...] = field(repr=False)
    modules: dict[str, nn.Module] = field(repr=False)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those of "encoder", "decoder", "cross" that this model has."""
        return tuple(kind for kind in KINDS if any(site.kind == kind for site in self.sites))

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(self.module.config.is_encoder_decoder)

    def num_layers(self, kind: str) -> int:
        return sum(site.kind == kind for site in self.sites)

    def num_heads(self, kind: str) -> int:
        return next((site.num_heads for site in self.sites if site.kind == kind), 0)

    def count_tokens(self, text: str, side: str = "source") -> int:
        """How many tokens a text has, control tokens included."""
        return len(self.reader(side).encode(text))

    def limit(self, side: str = "source") -> int | None:
        """Most tokens that this side ("source" or "target") takes; None = no limit."""
        return self.report.target_limit if side == "target" else self.report.source_limit

    def cut_text(self, text: str, side: str = "source") -> str:
        """The longest beginning of a text that fits; the tokenizer closes it with its end token as it does any text."""
        limit = self.limit(side)
        reader = self.reader(side)
        if limit is None or len(tokens := reader.encode(text)) <= limit:
            return text
        added = sum(token.span is None for token in tokens)
        ends = [token.span[1] for token in tokens if token.span is not None]
        for count in range(limit - added, 0, -1):
            # A beginning may split into more pieces than it had inside the whole.
            beginning = text[: ends[count - 1]]
            if len(reader.encode(beginning)) <= limit:
                return beginning
        return ""

    def reader(self, side: str = "source") -> TokenReader:
        reader = self.target_reader if side == "target" else self.source_reader
        if reader is None:
            raise AttentionError("this model has no tokenizer: give token ids, or load it with tokenizer=")
        return reader


def load_model(
    source: str | Path | PreTrainedModel,
    *,
    revision: str | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
    tokenizer=None,
    on_progress: Callable[[int, int], None] | None = None,
) -> LoadedModel:
    """Loads a model whose attention heads can be looked into.

    Args:
        source: "embedded" (the model that comes with this project), a hub id such as "facebook/bart-base", a folder that
            ``save_pretrained`` wrote, or a transformers model in memory.
        revision: branch, tag or commit of a hub id; None = the one that is cached, else the newest.
        device: "auto" (a GPU if there is one; a module in memory stays where it is), "cpu", "cuda", "cuda:1", "mps".
        dtype: "float32", "float16", "bfloat16"; None = float32 for files (bit-equality to the library's eager attention is
            claimed for float32 only), and as it is for a module in memory.
        tokenizer: for a module in memory, so that texts can be traced.
        on_progress: called while a model is downloaded, with bytes so far and bytes in all.

    Returns:
        LoadedModel. **A module in memory is changed in place**: eval mode, its attention implementation (and no attentions in
        its output), and one forward pre-hook on each attention module and on the output embedding, which does nothing
        outside a trace. Outside a trace it computes what the library's "sdpa" attention computes, bit for bit.

    Raises:
        AttentionError: what cannot be read, does not fit into memory, or cannot be looked into.
    """
    dtype = _chosen_dtype(dtype)
    if isinstance(source, nn.Module):
        return _from_module(source, tokenizer, None if str(device) == "auto" else chosen_device(device), dtype)
    device = chosen_device(device)
    if not isinstance(source, str | Path):
        raise AttentionError(
            "a model is named by a text, a folder, or a transformers model, not {type}", type=type(source).__name__
        )
    if source == "embedded":
        if not (EMBEDDED / "config.json").is_file():
            raise AttentionError(
                "the embedded model is not in this copy of the project ({folder} has no config.json)", folder=EMBEDDED
            )
        return _from_folder(EMBEDDED, "embedded", "embedded", None, device, dtype)
    if isinstance(source, Path) or os.path.isabs(source) or os.path.isdir(source):
        return _from_folder(Path(source), str(source), "folder", None, device, dtype)
    folder = hub.folder_of(
        source, revision, lambda folder, weights: _check(folder, weights, source, device, dtype), on_progress
    )
    return _from_folder(folder, source, "hub", folder.name, device, dtype)


def chosen_device(device: str | torch.device) -> torch.device:
    """The torch device that a name means here.

    Raises:
        AttentionError: a name that is none, or a device that this machine does not have.
    """
    if str(device) == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(name)
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise AttentionError(
            'device must be "auto", "cpu", "cuda", "cuda:n" or "mps", not {device!r}', device=device
        ) from error
    there = {
        "cpu": lambda: True,
        "cuda": lambda: (chosen.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available,
    }
    if chosen.type not in there or not there[chosen.type]():
        raise AttentionError("this machine has no device {device}", device=device)
    return chosen


def _chosen_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    if str(dtype) not in _DTYPES:
        raise AttentionError("dtype must be one of {known}, not {dtype!r}", known=", ".join(_DTYPES), dtype=dtype)
    return _DTYPES[dtype]


def _from_folder(
    folder: Path, name: str, origin: str, revision: str | None, device: torch.device, dtype: torch.dtype | None
) -> LoadedModel:
    settings = files.check_folder(folder)
    weights = files.weights_in(folder)
    config = _check(folder, weights, name, device, dtype)
    # Under fused attention the library refuses a configuration that asks for attentions.
    config.output_attentions = config.output_hidden_states = False
    # The library raises whatever its parts raise; all of it means that these files are not a model it can read.
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **_NO_CODE)
    except Exception as error:
        raise AttentionError(
            "the tokenizer of {name} cannot be loaded ({reason}): save one into its folder with "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)",
            name=name,
            reason=first_line(error),
        ) from error
    try:
        module, info = _model_class(config, settings).from_pretrained(
            folder,
            config=config,
            dtype=dtype or torch.float32,
            attn_implementation=registry.NAME,
            use_safetensors=weights.format == "safetensors",
            weights_only=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:
        if "ignore_mismatched_sizes" in str(error):
            raise AttentionError(
                "{name} cannot be loaded: its weights have other shapes than its config.json says; copy or save both again",
                name=name,
            ) from error
        raise AttentionError(
            "{name} cannot be loaded ({reason}): copy or save the model again", name=name, reason=first_line(error)
        ) from error
    module.to(device)
    report = {
        "name": name,
        "origin": origin,
        "revision": revision,
        "licence": files.licence_of(folder),
        "file_format": weights.format,
        "missing": tuple(sorted(map(str, info["missing_keys"]))),
        "unexpected": tuple(sorted(map(str, info["unexpected_keys"]))),
    }
    return _prepared(module, tokenizer, report)


def _check(folder: Path, weights: files.Weights, name: str, device: torch.device, dtype: torch.dtype | None):
    """The configuration, if transformers knows its architecture, it reads text, and it fits into memory."""
    try:
        config = AutoConfig.from_pretrained(folder, **_NO_CODE)
    except Exception as error:
        raise AttentionError(
            "the config.json of {name} is not one that this version of transformers knows: {reason}",
            name=name,
            reason=first_line(error),
        ) from error
    files.check_fits(weights, dtype or torch.float32, device, name)
    return config


def _from_module(module: nn.Module, tokenizer, device: torch.device | None, dtype: torch.dtype | None) -> LoadedModel:
    if not isinstance(module, PreTrainedModel):
        raise AttentionError(
            "a module in memory must be a transformers model (PreTrainedModel), not {type}", type=type(module).__name__
        )
    registry.attention_modules(module) or registry.prepare(module)  # refuses before anything is changed
    module.config.output_attentions = False
    module.set_attn_implementation(registry.NAME)
    module.to(device=device, dtype=dtype)
    report = {
        "name": type(module).__name__,
        "origin": "module",
        "revision": None,
        "licence": None,
        "file_format": None,
        "missing": (),
        "unexpected": (),
    }
    return _prepared(module, tokenizer, report)


def _prepared(module: PreTrainedModel, tokenizer, report: dict) -> LoadedModel:
    module.eval()
    if module.main_input_name != "input_ids":
        raise AttentionError("{model} does not read text", model=type(module).__name__)
    attentions = registry.prepare(module)
    source = target = None
    if tokenizer is not None:
        source, target = _readers(tokenizer)
    first = next(module.parameters())
    both_sides = bool(module.config.is_encoder_decoder)
    side = "target" if any(s.kind == "decoder" for s in registry.sites(attentions)) else "source"
    full = ModelReport(
        architecture=type(module).__name__,
        dtype=str(first.dtype).removeprefix("torch."),
        device=str(first.device),
        parameters=sum(p.numel() for p in module.parameters()),
        source_limit=position_limit(module, "source"),
        target_limit=position_limit(module, "target") if both_sides and side == "target" else None,
        can_generate=both_sides and bool(module.can_generate()),
        **report,
    )
    sites = registry.sites(attentions)
    modules = registry.with_output(module, attentions) | registry.stacks(module, sites)
    return LoadedModel(module, source, target, full, sites, modules)


def _readers(tokenizer) -> tuple[TokenReader, TokenReader]:
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise AttentionError(
            "{type} has no tokenizer.json behind it: load a fast tokenizer", type=type(tokenizer).__name__
        )
    return TokenReader(tokenizer), TokenReader(tokenizer, target=True)


def _model_class(config, settings: dict) -> type:
    """The class that runs a configuration: with its language head for encoder-decoder models, else as it was saved.

    Some encoder-decoder models (facebook/bart-base) are saved as the bare model, whose language head is its own embedding;
    the head of an encoder is not, and adding one would be adding random weights.
    """
    if getattr(config, "is_encoder_decoder", False) and type(config) in AutoModelForSeq2SeqLM._model_mapping:
        return AutoModelForSeq2SeqLM
    for name in settings.get("architectures") or ():
        found = getattr(transformers, str(name), None)
        if isinstance(found, type) and issubclass(found, PreTrainedModel):
            return found
    return AutoModel


def first_line(error: Exception) -> str:
    """What a library's error says first, without a token."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return hub.without_token(said.rstrip(":. "))
