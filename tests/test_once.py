"""What holds a plan or a rotation fixed in its gradient refuses a second derivative instead of getting it wrong."""

import pytest
import torch

import regard
from regard import wasserstein as W


def square_matrices(x):
    return x.mT @ x + torch.eye(2, dtype=x.dtype)


@pytest.mark.parametrize(
    "distance",
    [
        lambda x, y: W.bures_w2(x[0], square_matrices(x), y[0], square_matrices(y)),
        lambda x, y: W.factored_w2(x[0], x.mT, y[0], y.mT),
        lambda x, y: W.entropic_wasserstein(x, y, eps=0.5),
        lambda x, y: W.exact_wasserstein(x, y),
        lambda x, y: (regard.sinkhorn(x @ y.mT).plan * x.square().sum()).square().sum(),
    ],
    ids=["bures", "factored", "entropic", "exact", "sinkhorn"],
)
def test_raises(distance):
    x, y = torch.randn(2, 3, 2, dtype=torch.float64).requires_grad_()
    (first,) = torch.autograd.grad(distance(x, y), x, create_graph=True)
    assert first.isfinite().all()
    with pytest.raises(RuntimeError, match="was differentiated twice"):
        torch.autograd.grad(first.sum(), x)


def test_the_others_have_one():
    x, y = torch.randn(2, 3, dtype=torch.float64).requires_grad_()
    torch.autograd.gradgradcheck(lambda x: W.gaussian_w2(x, y.exp(), y, y.exp()), x)
