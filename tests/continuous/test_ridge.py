import gc

import pytest
import torch
from reference import continuous as reference

from regard import continuous as C
from regard.continuous.ridge import _orthogonal

BASES = {
    "gaussian": C.GaussianBasis.on_grid(3, 4, variance=0.02),
    "paraboloid": C.ParaboloidBasis.on_grid(3, 3, variance=0.05),
    "fourier": C.FourierBasis.on_grid(3, 4),
}


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("penalty", [1e-6, 0.01, 1.0])
@pytest.mark.parametrize("padding", [False, True])
def test_it_minimises_the_ridge_objective(name, penalty, padding):
    """Equation (5.20) as a least squares problem, odd and even sides, padded and not."""
    basis, cells = BASES[name], C.grid(5, 6)
    values = torch.randn(30, 4, dtype=torch.float64)
    coefficients = values.mT @ C.ridge(cells, basis, penalty, padding)
    if padding:
        everywhere, real = cells.padded()
        targets = torch.zeros(len(everywhere), 4, dtype=torch.float64)
        targets[real] = values
        expected = reference.ridge(everywhere.points, basis, penalty, targets)
    else:
        expected = reference.ridge(cells.points, basis, penalty, values)
    torch.testing.assert_close(coefficients, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("length", [5, 8])
@pytest.mark.parametrize("padding", [False, True])
def test_lines_even_and_odd(length, padding):
    basis, cells = C.GaussianBasis.on_line(4, variance=0.02), C.line(length)
    values = torch.randn(length, 3, dtype=torch.float64)
    everywhere, real = cells.padded() if padding else (cells, torch.ones(length, dtype=torch.bool))
    targets = torch.zeros(len(everywhere), 3, dtype=torch.float64)
    targets[real] = values
    expected = reference.ridge(everywhere.points, basis, 0.01, targets)
    torch.testing.assert_close(values.mT @ C.ridge(cells, basis, 0.01, padding), expected)


def test_more_functions_than_locations():
    basis, cells = C.GaussianBasis.on_grid(6, 6, variance=0.02), C.grid(3, 4)
    values = torch.randn(12, 2, dtype=torch.float64)
    expected = reference.ridge(cells.points, basis, 0.1, values)
    torch.testing.assert_close(values.mT @ C.ridge(cells, basis, 0.1), expected)


def test_no_penalty_is_the_pseudo_inverse():
    basis, cells = C.GaussianBasis.on_grid(3, 3, variance=0.05), C.grid(5, 5)
    f = basis(cells.points).mT
    torch.testing.assert_close(C.ridge(cells, basis, 0.0), torch.linalg.pinv(f))


@pytest.mark.parametrize("cells", [C.grid(5, 6), C.grid(3, 4)], ids=["more cells", "as many"])
def test_cosines_are_orthogonal_on_a_grid(cells):
    """F F' = L I, so that there is nothing to solve."""
    basis = BASES["fourier"]
    f = basis(cells.points).mT
    torch.testing.assert_close(f @ f.mT, len(cells) * torch.eye(12, dtype=torch.float64))
    assert _orthogonal(cells, basis)


def test_when_cosines_are_not_orthogonal():
    basis = BASES["fourier"]
    assert not _orthogonal(C.grid(2, 6), basis)
    assert not _orthogonal(C.grid(5, 6, at="corner"), basis)
    assert not _orthogonal(C.Locations(torch.rand(30, 2)), basis)
    assert not _orthogonal(C.grid(5, 6), C.FourierBasis(torch.tensor([[0.5, 1.0]])))
    assert not _orthogonal(C.grid(5, 6), C.FourierBasis(torch.ones(2, 2)))


def test_it_is_solved_once_and_forgotten_with_its_locations():
    basis, cells = C.GaussianBasis.on_grid(3, 3), C.grid(4, 4)
    first = C.ridge(cells, basis)
    assert C.ridge(cells, basis) is first
    assert C.ridge(cells, basis, 0.5) is not first
    assert first.dtype == torch.float64
    del cells
    gc.collect()
    assert len(basis.operators) == 0


@pytest.mark.parametrize("padding", [False, True])
def test_mask_is_the_same_as_leaving_out(padding):
    basis, cells = C.GaussianBasis.on_line(3, variance=0.05), C.line(6)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [False] * 6])
    operators = C.ridge(cells, basis, 0.01, padding, mask)
    torch.testing.assert_close(operators[0], C.ridge(cells, basis, 0.01, padding))
    everywhere, real = cells.padded() if padding else (cells, torch.ones(6, dtype=torch.bool))
    keep = ~real
    keep[real.nonzero().flatten()[:4]] = True
    values = torch.zeros(len(everywhere), 1, dtype=torch.float64)
    values[real.nonzero().flatten()[:4], 0] = torch.arange(1.0, 5.0, dtype=torch.float64)
    expected = reference.ridge(everywhere.points[keep], basis, 0.01, values[keep])
    found = values[real].mT @ operators[1]
    torch.testing.assert_close(found, expected)
    assert operators[2].eq(0).all()


def test_the_setting_of_the_thesis_is_spiky_and_the_default_is_not():
    """The figures that docs and notes quote."""
    cells, setting = C.grid(14, 14), C.thesis()
    spiky = C.diagnose(cells, setting.basis, **setting.options)
    assert spiky.constant[0] < 0.3
    assert spiky.constant[1] > 2
    assert spiky.r2 < 0.9
    default = C.diagnose(cells, C.GaussianBasis.on_grid(10, 10))
    assert default.r2 > 0.999
    assert default.constant[0] > 0.85
    better = C.diagnose(cells, C.GaussianBasis.on_grid(10, 10, spiky.suggested_variance))
    assert better.r2 > 0.9999


def test_diagnosis_of_given_values():
    cells, basis = C.grid(6, 6), C.FourierBasis.on_grid(6, 6)
    exact = C.diagnose(cells, basis, 0.0, values=torch.randn(2, 36, 5))
    assert abs(exact.r2 - 1) < 1e-9
    assert exact.suggested_variance is None
    low = C.diagnose(cells, C.FourierBasis.on_grid(2, 2), 0.0, values=torch.randn(36, 5))
    assert 0 < low.r2 < 0.9


def test_errors():
    with pytest.raises(ValueError, match="penalty: got -1"):
        C.ridge(C.grid(3, 3), BASES["fourier"], -1)
    with pytest.raises(ValueError, match="basis: got 2 dimensions"):
        C.ridge(C.line(3), BASES["fourier"])
    with pytest.raises(ValueError, match="values: got shape"):
        C.diagnose(C.grid(3, 3), BASES["fourier"], values=torch.rand(8, 2))
