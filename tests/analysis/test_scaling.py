"""Classical scaling gives back points that lie in a plane, and says how much of a matrix a plane can hold."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform

from attention_core import AttentionError
from attention_core.analysis.scaling import classical_scaling

rng = np.random.default_rng(7)


def test_points_of_a_plane_come_back_up_to_a_turn():
    points = rng.normal(size=(11, 2))
    distances = squareform(pdist(points))
    found = classical_scaling(distances)
    np.testing.assert_allclose(squareform(pdist(found.points)), distances, atol=1e-9)
    assert found.kept == pytest.approx(1) and np.allclose(found.points.mean(0), 0)


def test_a_line_by_hand():
    """Points 0, 1 and 3 on a line stand at -4/3, -1/3 and 5/3 of it, the farthest on the positive side."""
    found = classical_scaling(np.array([[0, 1, 3], [1, 0, 2], [3, 2, 0.0]]), 1)
    np.testing.assert_allclose(found.points[:, 0], [-4 / 3, -1 / 3, 5 / 3])
    assert found.kept == pytest.approx(1)


def test_what_a_plane_cannot_hold_is_told():
    """Four points each 1 from the others need three equal dimensions: a plane holds two thirds."""
    found = classical_scaling(1 - np.eye(4))
    assert found.kept == pytest.approx(2 / 3)


def test_the_same_matrix_gives_the_same_picture():
    distances = squareform(pdist(rng.normal(size=(7, 3))))
    first, second = classical_scaling(distances), classical_scaling(distances.copy())
    np.testing.assert_array_equal(first.points, second.points)
    assert (first.points.max(0) == np.abs(first.points).max(0)).all()


def test_items_without_a_distance_are_left_out():
    distances = squareform(pdist(rng.normal(size=(5, 2))))
    holes = np.insert(np.insert(distances, 2, np.nan, 0), 2, np.nan, 1)
    found = classical_scaling(holes)
    assert np.isnan(found.points[2]).all()
    np.testing.assert_allclose(np.delete(found.points, 2, 0), classical_scaling(distances).points)


def test_few_or_equal_items():
    assert classical_scaling(np.zeros((1, 1))).points.tolist() == [[0, 0]]
    alike = classical_scaling(np.zeros((3, 3)))
    assert not alike.points.any() and np.isnan(alike.kept)
    two = classical_scaling(np.array([[0, 2], [2, 0.0]])).points
    assert sorted(two[:, 0]) == pytest.approx([-1, 1]) and two[:, 1] == pytest.approx(0, abs=1e-9)


def test_what_is_no_matrix_of_distances_is_refused():
    with pytest.raises(AttentionError, match=r"shape \(items, items\), got \(2, 3\)"):
        classical_scaling(np.zeros((2, 3)))
    for bad in ([[0, 1], [2, 0]], [[0, -1], [-1, 0]], [[1, 1], [1, 0]]):
        with pytest.raises(AttentionError, match="symmetric, and 0 on the diagonal"):
            classical_scaling(np.array(bad, dtype=float))
