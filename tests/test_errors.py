"""The one error: its text, its parts, and that it survives being pickled."""

import copy
import pickle

import pytest

from attention_core import AttentionError


def test_template_and_values_stand_apart():
    error = AttentionError("d_model ({d_model}) must be divisible by num_heads ({num_heads})", d_model=10, num_heads=3)
    assert str(error) == "d_model (10) must be divisible by num_heads (3)"
    assert error.template == "d_model ({d_model}) must be divisible by num_heads ({num_heads})"
    assert error.values == {"d_model": 10, "num_heads": 3}
    # What a page does with it: a translated template, the same values.
    assert "{num_heads} 不能整除 {d_model}".format(**error.values) == "3 不能整除 10"


def test_is_a_value_error():
    with pytest.raises(ValueError, match="no such file"):
        raise AttentionError("no such file")


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_survives_copies(again):
    error = again(AttentionError("{n} of {n}", n=3))
    assert type(error) is AttentionError
    assert (str(error), error.template, error.values) == ("3 of 3", "{n} of {n}", {"n": 3})


@pytest.mark.parametrize("value", ["{x}", "{}", "$a*b*", "<s>", "{0.__class__}", "猫"])
def test_values_with_markup_are_taken_as_they_are(value):
    assert str(AttentionError("not {value!r}", value=value)) == f"not {value!r}"
