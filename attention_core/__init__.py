"""Attention, step by step: a layer written from scratch, and the heads of real models, in one form.

Nothing here knows a screen. The public names below are resolved when first used, so that the layer alone costs no
import of transformers.

Axes (glossary of shapes)
    batch       texts computed together
    heads       attention heads of one layer, counted from 0
    query_len   positions that look (rows, from the top)
    key_len     positions looked at (columns)
    head_dim    width of one head's query, key and value vectors
    d_model     width of the layer's input and output

    scores, mask, weights: (batch, heads, query_len, key_len); query: (batch, heads, query_len, head_dim);
    key, value: (batch, heads, key_len, head_dim); output: (batch, query_len, d_model).

Masks are boolean and **True means "may attend"**, as in ``scaled_dot_product_attention`` and in the masks that
tokenizers return. ``nn.MultiheadAttention`` means the opposite; ``attention_core.masks`` converts.

Names (ours / BART / BERT / Vaswani et al. 2017)
    query weight     q_proj     self.query     W_i^Q
    key weight       k_proj     self.key       W_i^K
    value weight     v_proj     self.value     W_i^V
    out weight       out_proj   output.dense   W^O
    d_model          d_model    hidden_size    d_model
    num_heads        encoder_attention_heads, decoder_attention_heads / num_attention_heads / h
    head_dim         head_dim   attention_head_size   d_k = d_v
    kind "encoder"   encoder.layers.N.self_attn      encoder.layer.N.attention    encoder self-attention
    kind "decoder"   decoder.layers.N.self_attn      (BertLMHeadModel)            masked decoder self-attention
    kind "cross"     decoder.layers.N.encoder_attn   crossattention               encoder-decoder attention
"""

from importlib import import_module

_HOMES = {
    "AttentionError": "errors",
    "AttentionSteps": "layer.attention",
    "Projections": "layer.projections",
    "attention_steps": "layer.attention",
    "attention_weights": "layer.attention",
    "attention_context": "layer.attention",
    "AttentionConfig": "layer.multihead",
    "MultiHeadAttention": "layer.multihead",
    "load_model": "extract.models",
    "trace": "extract.trace",
    "Trace": "extract.trace",
}
_MODULES = {"interventions": "extract.interventions", "masks": "layer.masks", "presets": "layer.presets"}

__all__ = sorted([*_HOMES, *_MODULES])


def __getattr__(name: str):
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"{__name__}.{_MODULES[name]}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
