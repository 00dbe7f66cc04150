import pytest
import torch

from regard import continuous as C


def test_a_grid_is_numbered_like_an_image():
    cells = C.grid(2, 3)
    image = torch.zeros(2, 3, 2, dtype=torch.float64)
    for row in range(2):
        for column in range(3):
            image[row, column] = torch.tensor([(column + 0.5) / 3, (row + 0.5) / 2])
    torch.testing.assert_close(cells.points, image.flatten(0, 1))
    assert cells.sides.tolist() == [1 / 3, 1 / 2]
    assert cells.shape == (2, 3)


def test_the_convention_of_the_thesis_is_an_option():
    assert C.line(4, at="corner").points.flatten().tolist() == [0, 0.25, 0.5, 0.75]
    torch.testing.assert_close(C.grid(3, 3, at="corner").points, C.grid(3, 3).points - 1 / 6)


@pytest.mark.parametrize("n", [1, 4, 5])
def test_padding_surrounds_a_line(n):
    padded, real = C.line(n).padded()
    assert len(padded) == n + 2 * ((n + 1) // 2)
    torch.testing.assert_close(padded.points[real], C.line(n).points)
    steps = padded.points.flatten().diff()
    torch.testing.assert_close(steps, torch.full_like(steps, 1 / n))


@pytest.mark.parametrize("shape", [(4, 4), (3, 6)])
def test_padding_surrounds_a_grid(shape):
    cells = C.grid(*shape)
    padded, real = cells.padded()
    torch.testing.assert_close(padded.points[real], cells.points)
    low, high = padded.points.amin(0), padded.points.amax(0)
    torch.testing.assert_close(low + high, torch.ones(2, dtype=torch.float64))
    assert (~real).sum() == len(padded) - len(cells)


def test_errors():
    with pytest.raises(ValueError, match="height: got 0"):
        C.grid(0, 3)
    with pytest.raises(ValueError, match="at: got 'middle'"):
        C.line(3, at="middle")
    with pytest.raises(ValueError, match="points: got shape"):
        C.Locations(torch.rand(3, 2, 2))
    with pytest.raises(ValueError, match="cell: got shape"):
        C.Locations(torch.rand(3, 2), torch.ones(3))
    with pytest.raises(ValueError, match="padding: got scattered points"):
        C.ridge(torch.rand(9, 2), C.GaussianBasis.on_grid(2, 2), padding=True)
    with pytest.raises(TypeError, match="locations: got list"):
        C.match_moments(torch.rand(2), [[0.0], [1.0]])
