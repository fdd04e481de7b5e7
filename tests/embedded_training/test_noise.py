"""BART's noise on token ids."""

import numpy as np
import pytest

from attention_core.embedded_training.noise import EVALUATION, IGNORED, Noise, Sampler, collate, corrupt, count_tokens
from attention_core.embedded_training.prepare import BOS_ID, EOS_ID, MASK_ID, PAD_ID, Book

VOCAB_SIZE = 211
# Three sentences of 7, 5 and 11 units; every second unit has two pieces; no id comes twice.
_ids = iter(range(MASK_ID + 1, VOCAB_SIZE))
TEXT = [[(next(_ids),) if u % 2 else (next(_ids), next(_ids)) for u in range(n)] for n in (7, 5, 11)]
TARGET = [BOS_ID, *(i for sentence in TEXT for unit in sentence for i in unit), EOS_ID]
QUIET = Noise(infill_ratio=(0.0, 0.0), permute=0.0, clean=0.0, bare=0.0, single=0.0)


def test_no_noise_is_a_copy():
    example = corrupt(TEXT, QUIET, np.random.default_rng(0), VOCAB_SIZE)
    assert example.source == example.target == TARGET
    assert not any(example.masked) and set(example.encoder_labels) == {IGNORED}
    clean = corrupt(TEXT, Noise(clean=1.0), np.random.default_rng(0), VOCAB_SIZE)
    assert clean.source == TARGET


@pytest.mark.parametrize("seed", range(20))
def test_infilling_hides_whole_units_behind_single_masks(seed):
    noise = Noise(infill_ratio=(0.3, 0.3), permute=0.0, clean=0.0, bare=0.0, single=0.0)
    example = corrupt(TEXT, noise, np.random.default_rng(seed), VOCAB_SIZE)
    assert example.target == TARGET
    visible = [i for i, hidden in zip(TARGET, example.masked, strict=True) if not hidden]
    assert [i for i in example.source if i != MASK_ID] == visible
    for sentence in TEXT:
        for unit in sentence:
            assert len({example.masked[TARGET.index(i)] for i in unit}) == 1
    # No two masks side by side, unless one of them stands for an empty span.
    hidden_units = sum(example.masked[TARGET.index(unit[0])] for sentence in TEXT for unit in sentence)
    assert 1 <= hidden_units <= round(0.3 * 23) + 1
    assert not example.masked[0] and not example.masked[-1]


def test_permutation_moves_sentences_whole_and_keeps_the_target():
    noise = Noise(infill_ratio=(0.0, 0.0), permute=1.0, clean=0.0, bare=0.0, single=0.0)
    orders = set()
    for seed in range(30):
        example = corrupt(TEXT, noise, np.random.default_rng(seed), VOCAB_SIZE)
        assert example.target == TARGET and not any(example.masked)
        flat = [tuple(i for unit in sentence for i in unit) for sentence in TEXT]
        order = sorted(range(3), key=lambda s: example.source.index(flat[s][0]))
        assert example.source == [BOS_ID, *(i for s in order for i in flat[s]), EOS_ID]
        orders.add(tuple(order))
    assert len(orders) == 6


def test_single_masks_are_asked_of_the_encoder():
    noise = Noise(infill_ratio=(0.0, 0.0), permute=0.0, clean=0.0, bare=0.0, single=1.0)
    asked = replaced = 0
    for seed in range(50):
        example = corrupt(TEXT, noise, np.random.default_rng(seed), VOCAB_SIZE)
        assert len(example.source) == len(TARGET)
        for piece, label, wanted, masked in zip(
            example.source, example.encoder_labels, TARGET, example.masked, strict=True
        ):
            if label == IGNORED:
                assert piece == wanted and not masked
            else:
                assert label == wanted and masked == (piece != wanted)
                asked += 1
                replaced += masked
    assert 0.10 < asked / (50 * (len(TARGET) - 2)) < 0.18
    assert 0.65 < replaced / asked < 0.92


def test_collate_shifts_right_and_pads():
    first = corrupt(TEXT, QUIET, np.random.default_rng(0), VOCAB_SIZE)
    second = corrupt(TEXT[:1], EVALUATION, np.random.default_rng(0), VOCAB_SIZE)
    batch = collate([first, second])
    assert batch.source.shape == batch.source_mask.shape == batch.encoder_labels.shape == (2, len(TARGET))
    assert batch.decoder_input[0].tolist() == [EOS_ID, *TARGET[:-1]]
    assert batch.labels[0].tolist() == TARGET
    n = len(second.target)
    assert batch.labels[1, :n].tolist() == second.target and set(batch.labels[1, n:].tolist()) == {IGNORED}
    assert set(batch.decoder_input[1, n:].tolist()) == {PAD_ID}
    assert batch.source_mask.sum(1).tolist() == [len(TARGET), len(second.source)]


def sampler(**arguments) -> Sampler:
    names = {TEXT[0][1]}
    return Sampler([Book("b", [TEXT] * 5)], names, [(7, 7, 7)], np.random.default_rng(3), **arguments)


def test_names_are_replaced_everywhere_alike():
    text = [*TEXT, TEXT[0]]
    swapped = sampler().swap_names(text)
    assert [len(sentence) for sentence in swapped] == [7, 5, 11, 7]
    assert swapped[0][1] == swapped[3][1] == (7, 7, 7)
    assert swapped[0] == swapped[3]
    kept = sum(a == b for s, t in zip(text, swapped, strict=True) for a, b in zip(s, t, strict=True))
    assert 0.7 * 30 < kept < 30


def test_batches_keep_to_the_budget():
    batches = sampler(swap=0.0).batches(200)
    for _ in range(20):
        texts = next(batches)
        longest = max(count_tokens(text) + 2 for text in texts)
        assert longest * len(texts) <= 200
