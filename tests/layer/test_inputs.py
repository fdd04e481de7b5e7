"""Matrices that a person types."""

import pytest
import torch

from attention_core import AttentionError
from attention_core.layer.inputs import matrix_from_csv


@pytest.mark.parametrize(
    "text", ["1,2\n3,4", "1;2\n\n3;4\n", "1\t2\n3\t4", "1 2\n 3   4", '"1","2"\n"3","4"', "\ufeff1, 2\r\n3, 4"]
)
def test_rows_are_lines(text):
    assert matrix_from_csv(text).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_numbers_are_kept_as_typed():
    matrix = matrix_from_csv("0.1,1e300")
    assert matrix.dtype == torch.float64
    assert matrix.tolist() == [[0.1, 1e300]]


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "X is empty"),
        ("1,2\n3", "line 2 has 1 numbers, the first row has 2"),
        ('"1,2', "line 1, column 1 is '\"1'"),
        ("1,a", "line 1, column 2 is 'a'"),
        ("1,", "line 1, column 2 is ''"),
        ("1,inf", "line 1, column 2 is 'inf'"),
        ("1,nan", "line 1, column 2 is 'nan'"),
        ("1," + "1" * 200_000, "line 1, column 2 is '1111"),
        ("1\n" * 65, "up to 64 rows and 256 columns, not 65 x 1"),
    ],
)
def test_what_is_no_matrix_is_refused_in_one_sentence(text, said):
    with pytest.raises(AttentionError) as error:
        matrix_from_csv(text, "X")
    assert said in str(error.value)
    assert len(str(error.value)) < 200
