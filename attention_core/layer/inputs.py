"""What a playground layer is fed with: a text cut into tokens, tokens made into vectors, matrices typed by hand, weights.

Equal tokens have equal vectors, whichever text they stand in; everything random comes from a seed.
"""

from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor, nn

from ..errors import AttentionError
from .multihead import MultiHeadAttention

MAX_TOKENS = 64
EMBEDDINGS = ("random", "one_hot", "sinusoidal", "token_position")
INITS = ("random", "identity", "orthogonal", "zero")
BIASES = ("none", "zero", "random")


def split_text(text: str, unit: str = "words", limit: int = MAX_TOKENS) -> tuple[list[str], int]:
    """A text cut into words (at white space) or characters.

    Args:
        text: any text.
        unit: "words" or "characters"; a line break or a space is a character too.
        limit: how many tokens are kept, from the left.

    Returns:
        (tokens, how many were cut off at the end).
    """
    tokens = text.split() if unit == "words" else list(text.strip())
    return tokens[:limit], max(0, len(tokens) - limit)


def embed(tokens: Sequence[str], d_model: int, kind: str, *, seed: int = 0, vocabulary: Sequence[str] = ()) -> Tensor:
    """Vectors for tokens.

    "random": each distinct token has a vector of standard normal numbers, drawn from the seed and the token itself, so that
    it stays the same when the text around it changes. "one_hot": 1 in the place of the token's first appearance.
    "sinusoidal": the position alone (Vaswani et al. 2017, section 3.5). "token_position": random plus sinusoidal.

    Args:
        tokens: the len tokens.
        d_model: width of a vector, at least 1.
        kind: one of EMBEDDINGS.
        seed: for the random vectors.
        vocabulary: tokens that count as having appeared before (the other text of cross-attention); for "one_hot".

    Returns:
        (1, len, d_model), float32.

    Raises:
        AttentionError: no tokens; an unknown kind; more distinct tokens than d_model for "one_hot".
    """
    if not tokens:
        raise AttentionError("there must be at least one token: type a word")
    if kind == "one_hot":
        places = {token: i for i, token in enumerate(dict.fromkeys([*vocabulary, *tokens]))}
        if len(places) > d_model:
            raise AttentionError(
                "one-hot vectors need a place for each distinct token: {distinct} do not fit d_model ({d_model})",
                distinct=len(places),
                d_model=d_model,
            )
        return nn.functional.one_hot(torch.tensor([places[t] for t in tokens]), d_model).float()[None]
    if kind not in EMBEDDINGS:
        raise AttentionError("embedding must be one of {kinds}, not {kind!r}", kinds=", ".join(EMBEDDINGS), kind=kind)
    x = torch.zeros(len(tokens), d_model)
    if kind in ("random", "token_position"):
        drawn = {token: _token_vector(token, d_model, seed) for token in dict.fromkeys(tokens)}
        x = x + torch.stack([drawn[token] for token in tokens])
    if kind in ("sinusoidal", "token_position"):
        x = x + sinusoidal(len(tokens), d_model)
    return x[None]


def sinusoidal(length: int, d_model: int) -> Tensor:
    """Positions as sines and cosines: PE(p, 2i) = sin(p / 10000^(2i/d_model)), PE(p, 2i + 1) = cos of the same.

    Vaswani et al. 2017, section 3.5. Returns (length, d_model), from -1 to 1.
    """
    even = torch.arange(0, d_model, 2)
    angles = torch.arange(length)[:, None] / 10_000 ** (even / d_model)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :d_model]


def matrix_from_csv(
    text: str, name: str = "the matrix", *, most_rows: int = MAX_TOKENS, most_columns: int = 256
) -> Tensor:
    """A matrix from lines of numbers, separated by commas, semicolons, tabs or spaces.

    Args:
        text: one row a line; blank lines are skipped.
        name: what the message calls it.
        most_rows, most_columns: limits.

    Returns:
        (rows, columns), float64, which holds what was typed; the caller chooses the dtype of the computation.

    Raises:
        AttentionError: no rows; rows of unequal length; something that is no finite number; too large. Names line and column.
    """
    lines = [(number, line) for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1) if line.strip()]
    if not lines:
        raise AttentionError("{name} is empty: give one row of numbers a line, separated by commas", name=name)
    separator = next((s for s in (",", ";", "\t") if s in lines[0][1]), None)
    rows: list[list[float]] = []
    for number, line in lines:
        cells = line.split(separator)
        row = [_number(cell, name, number, column) for column, cell in enumerate(cells, 1)]
        if rows and len(row) != len(rows[0]):
            raise AttentionError(
                "the rows of {name} must be equally long: line {line} has {count} numbers, the first row has {first}",
                name=name,
                line=number,
                count=len(row),
                first=len(rows[0]),
            )
        rows.append(row)
    if len(rows) > most_rows or len(rows[0]) > most_columns:
        raise AttentionError(
            "{name} may have up to {most_rows} rows and {most_columns} columns, not {rows} x {columns}",
            name=name,
            most_rows=most_rows,
            most_columns=most_columns,
            rows=len(rows),
            columns=len(rows[0]),
        )
    return torch.tensor(rows, dtype=torch.float64)


def initialise_(layer: MultiHeadAttention, inits: dict[str, str], biases: dict[str, str], *, seed: int = 0) -> None:
    """Fills a layer's weights and biases in place.

    Matrices: "random" = Xavier uniform (Glorot and Bengio 2010); "identity" = ones on the diagonal; "orthogonal" (Saxe et al.
    2014); "zero". Biases: "random" = normal with standard deviation 0.5; anything else leaves them 0. Each is drawn from its
    own stream of the seed, so that changing one leaves the others as they were.

    Args:
        layer: changed in place.
        inits: for "query", "key", "value" and "out": one of INITS.
        biases: for "qkv" and "out": one of BIASES.
        seed: of all that is random.
    """
    with torch.no_grad():
        for stream, name in enumerate(("query", "key", "value", "out")):
            weight = getattr(layer, f"{name}_weight")
            weight.copy_(_initial(inits[name], weight.shape, torch.Generator().manual_seed(8 * seed + stream)))
            bias = getattr(layer, f"{name}_bias")
            if bias is None:
                continue
            generator = torch.Generator().manual_seed(8 * seed + 4 + stream)
            random = biases["out" if name == "out" else "qkv"] == "random"
            bias.copy_(torch.randn(bias.shape, generator=generator) * 0.5 if random else torch.zeros(bias.shape))


def _initial(init: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    # Drawn in float32 and copied into the layer's dtype: orthogonal has no half-precision form.
    weight = torch.empty(shape)
    if init == "random":
        return nn.init.xavier_uniform_(weight, generator=generator)
    if init == "identity":
        return nn.init.eye_(weight)
    if init == "orthogonal":
        return nn.init.orthogonal_(weight, generator=generator)
    if init == "zero":
        return nn.init.zeros_(weight)
    raise AttentionError("a weight must start as one of {inits}, not {init!r}", inits=", ".join(INITS), init=init)


def _token_vector(token: str, d_model: int, seed: int) -> Tensor:
    digest = blake2b(f"{seed}\0{token}".encode("utf-8", "surrogatepass"), digest_size=7).digest()
    return torch.randn(d_model, generator=torch.Generator().manual_seed(int.from_bytes(digest)))


def _number(cell: str, name: str, line: int, column: int) -> float:
    bare = cell.strip()
    if len(bare) > 1 and bare[0] == bare[-1] == '"':
        bare = bare[1:-1]
    try:
        number = float(bare)
    except ValueError:
        number = float("nan")
    if not abs(number) < float("inf"):
        raise AttentionError(
            "{name} must hold finite numbers: line {line}, column {column} is {cell!r}",
            name=name,
            line=line,
            column=column,
            cell=cell.strip()[:40],
        )
    return number
