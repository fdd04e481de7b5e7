"""A model's files, checked before anything is read: their format, that no code comes with them, and that they fit.

Weights are read as safetensors; where there are none, as pytorch_model.bin through ``torch.load(weights_only=True)``, which
is transformers' own way. No other format is opened, and no code from a model's files is ever run.
"""

import json
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import AttentionError

SAFETENSORS = "model.safetensors"
PICKLED = "pytorch_model.bin"
_BYTES_OF = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class Weights:
    """The weight files of one folder.

    Attributes:
        format: "safetensors" or "pytorch_model.bin".
        paths: the files.
        numbers: how many numbers they hold (an upper estimate for pytorch_model.bin).
        bytes: their size on disk.
    """

    format: str
    paths: tuple[Path, ...]
    numbers: int
    bytes: int


def chosen_weights(names: set[str], index_of, where: str) -> tuple[str, list[str]]:
    """Which weight files to use, of the names that are there.

    Args:
        names: file names at the top of the folder or repository.
        index_of: reads an index file by name, as a dict.
        where: named in the message.

    Returns:
        the format, and the file names.

    Raises:
        AttentionError: no weights in a format that is read here.
    """
    for form, name in (("safetensors", SAFETENSORS), ("pytorch_model.bin", PICKLED)):
        if name in names:
            return form, [name]
        if f"{name}.index.json" in names:
            weight_map = index_of(f"{name}.index.json").get("weight_map")
            shards = sorted({str(shard) for shard in weight_map.values()}) if isinstance(weight_map, dict) else []
            missing = [shard for shard in shards if shard not in names]
            if missing or not shards:
                raise AttentionError(
                    "{where} is incomplete: {names} is named in {index} but not there",
                    where=where,
                    names=", ".join(missing) or "no file",
                    index=f"{name}.index.json",
                )
            return form, shards
    others = sorted(
        name for name in names if name.endswith((".h5", ".msgpack", ".ckpt", ".gguf", ".onnx", ".pt", ".pkl"))
    )
    raise AttentionError(
        "{where} holds no weights that are read here: model.safetensors or pytorch_model.bin is needed, found {others}; save the "
        "model with save_pretrained, or copy the missing file",
        where=where,
        others=", ".join(others) or "neither",
    )


def weights_in(folder: Path) -> Weights:
    """The weights of a folder, sized without reading them."""
    form, names = chosen_weights(set(_names_in(folder)), lambda name: read_json(folder / name), str(folder))
    paths = tuple(folder / name for name in names)
    try:
        size = sum(path.stat().st_size for path in paths)
    except OSError as error:
        raise AttentionError("the weights in {folder} cannot be read: {reason}", folder=folder, reason=error) from error
    numbers = sum(_numbers_in(path) for path in paths) if form == "safetensors" else size // 2
    return Weights(form, paths, numbers, size)


def check_folder(folder: Path) -> dict:
    """The configuration of a model folder, if it is one that can be read without running code from it.

    Raises:
        AttentionError: no folder, no config.json, no tokenizer.json, a tokenizer or model that comes with its own code.
    """
    # os.path answers False where a name is too long to be one or may not be looked at, Path raises.
    if not os.path.isdir(folder):
        if os.path.isfile(folder):
            raise AttentionError("{folder} is a file: give the folder that holds it", folder=folder)
        raise AttentionError(
            "{folder} is not a folder on this machine: give the path of one that save_pretrained wrote, with config.json, "
            "model.safetensors and tokenizer.json in it",
            folder=folder,
        )
    names = _names_in(folder)
    if not os.path.isfile(folder / "config.json"):
        raise AttentionError(
            "{folder} is not a model: it has no config.json (found: {found}); give the folder that save_pretrained wrote",
            folder=folder,
            found=", ".join([*names[:5], *["…"] * (len(names) > 5)]) or "nothing",
        )
    config = read_json(folder / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise AttentionError(
            "{folder} is not a model of transformers: its config.json has no model_type, such as bart; give the folder that "
            "save_pretrained wrote",
            folder=folder,
        )
    if not os.path.isfile(folder / "tokenizer.json"):
        raise AttentionError(
            "{folder} has no tokenizer.json, the only form of tokenizer that is read here: save one with "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)",
            folder=folder,
        )
    tokenizer = read_json(folder / "tokenizer_config.json") if "tokenizer_config.json" in names else {}
    for what, settings in (("model", config), ("tokenizer", tokenizer)):
        if settings.get("auto_map"):
            raise AttentionError(
                "the {what} in {folder} comes with its own code, which is never run here", what=what, folder=folder
            )
    return config


def read_json(path: Path) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise AttentionError(
            "{path} cannot be read as JSON ({reason}): copy or save the model again", path=path, reason=error
        ) from error
    if not isinstance(content, dict):
        raise AttentionError("{path} must hold a JSON object: copy or save the model again", path=path)
    return content


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise AttentionError(
            "{folder} cannot be looked into ({reason}): make it readable for this program",
            folder=folder,
            reason=error.strerror,
        ) from error


def check_fits(weights: Weights, dtype: torch.dtype, device: torch.device, name: str) -> None:
    """Raises AttentionError if the model needs more memory than is available; says both sizes."""
    needed = weights.numbers * torch.empty((), dtype=dtype).element_size()
    reading = weights.bytes if weights.format != "safetensors" else 0  # unpickled as a whole beside the model
    for place, size, free in (
        ("this machine", needed + reading, available_memory()),
        (str(device), needed, _device_memory(device)),
    ):
        if free is not None and size > free:
            raise AttentionError(
                "{name} needs about {needed} MB of memory, and {place} has {free} MB free: choose a smaller model, or "
                'dtype="float16"',
                name=name,
                needed=-(-size // 2**20),
                place=place,
                free=free // 2**20,
            )


def available_memory() -> int | None:
    """Bytes that this process may still take; None where the system does not say."""
    found = []
    try:
        found.append(int(re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())[1]) * 1024)
    except (OSError, TypeError):
        try:
            found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        except (AttributeError, OSError, ValueError):
            pass
    # A container may be allowed less than the machine has.
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            root = Path("/sys/fs/cgroup")
            found.append(int((root / limit).read_text()) - int((root / used).read_text()))
        except (OSError, ValueError):
            continue
    return min(found) if found else None


def licence_of(folder: Path) -> str | None:
    """The licence that the model card names in its head, if there is a card."""
    for name in ("README.md", "MODEL_CARD.md"):
        try:
            card = (folder / name).read_text(encoding="utf-8")
        except (OSError, UnicodeError):
            continue
        head = re.match(r"---\s*\n(.*?)\n---", card, re.DOTALL)
        named = re.search(r"^licen[sc]e:\s*(.+)$", head[1] if head else card, re.MULTILINE | re.IGNORECASE)
        if named:
            return named[1].strip().strip("\"'")
    return None


def _device_memory(device: torch.device) -> int | None:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def _numbers_in(path: Path) -> int:
    """How many numbers a safetensors file holds, from its header alone."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        entries = [entry for name, entry in header.items() if name != "__metadata__"]
        return sum(
            (entry["data_offsets"][1] - entry["data_offsets"][0]) // _BYTES_OF.get(entry["dtype"], 1)
            for entry in entries
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise AttentionError(
            "{path} is not a whole safetensors file ({reason}): copy or save the model again", path=path, reason=error
        ) from error
