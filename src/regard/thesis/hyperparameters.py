"""Table 6.1 of the thesis, beside what settings of ours say."""

from __future__ import annotations

from regard.continuous import GaussianBasis
from regard.thesis.setup import GRID
from regard.vqa.output import value_function
from regard.vqa.settings import TrainSettings, thesis_schedule

# As printed; equations as text.
TABLE_6_1: dict[str, object] = {
    "Batch size": 64,
    "Word embeddings size": 300,
    "Input image features size": 2048,
    "Input question features size": 512,
    "Fused multimodal features size": 1024,
    "Multi-head attention hidden size": 512,
    "Number of MCA layers": 6,
    "Number of attention heads": 8,
    "Dropout rate": 0.1,
    "MLP size in flatten layers": 512,
    "Optimizer": "Adam",
    "Base learning rate at epoch t starting from 1": "min(2.5 t 1e-5, 1e-4)",
    "Learning rate decay ratio at epoch t in {10, 12}": 0.2,
    "Number of epochs": 13,
    "N": [49, 100],
    "mu": "linearly spaced in [0, 1]^2",
    "Sigma": "0.001 I",
    "Padding": "Yes",
    "Ridge penalty": 0.01,
    "Number of integration intervals (2D continuous sparsemax)": 100,
}
"""Table 6.1, entry by entry."""


def hyperparameters(settings: TrainSettings, shape: tuple[int, int, int] | None = None) -> dict[str, object]:
    """What these settings say to each entry of `TABLE_6_1`.

    `settings`: of a run.
    `shape`: of its features; default None, unknown: they are made by `regard features`.

    >>> ours = hyperparameters(TrainSettings(), (14, 14, 2048))
    >>> [entry for entry in TABLE_6_1 if ours[entry] != TABLE_6_1[entry]]
    ['Number of integration intervals (2D continuous sparsemax)']
    """
    model = settings.model
    rates = [settings.lr * factor for factor in map(thesis_schedule(per_epoch=1), range(settings.epochs or 1))]
    printed = [min(2.5e-5 * t, 1e-4) for t in range(1, 10)]
    as_printed = settings.schedule == "thesis" and all(
        abs(rate - wanted) < 1e-12 for rate, wanted in zip(rates, printed, strict=False)
    )
    functions = value_function(model.basis, GRID[:2] if shape is None else shape[:2], model.padding)
    basis = functions.basis
    sizes = [len(value_function(name, GRID[:2]).basis) for name in ("thesis-49", "thesis-100")]
    isotropic = isinstance(basis, GaussianBasis) and basis.covariance.unique().numel() <= 2
    variance = float(basis.covariance.max()) if isinstance(basis, GaussianBasis) else None
    return {
        "Batch size": settings.batch,
        "Word embeddings size": model.words,
        "Input image features size": "that of the features" if shape is None else shape[2],
        "Input question features size": model.width,
        "Fused multimodal features size": model.fused,
        "Multi-head attention hidden size": model.width,
        "Number of MCA layers": model.layers,
        "Number of attention heads": model.heads,
        "Dropout rate": model.dropout,
        "MLP size in flatten layers": model.flat,
        "Optimizer": settings.optimizer.capitalize(),
        "Base learning rate at epoch t starting from 1": (
            "min(2.5 t 1e-5, 1e-4)" if as_printed else f"{settings.schedule}, at most {settings.lr:g}"
        ),
        "Learning rate decay ratio at epoch t in {10, 12}": 0.2 if settings.schedule == "thesis" else "none",
        "Number of epochs": settings.epochs or "by the number of questions",
        "N": sizes if len(basis) in sizes else len(basis),
        "mu": "linearly spaced in [0, 1]^2" if isinstance(basis, GaussianBasis) else "none: cosines",
        "Sigma": f"{variance:.3g} I" if isotropic and variance is not None else "by the spacing",
        "Padding": "Yes" if functions.padding else "No",
        "Ridge penalty": model.ridge_penalty,
        "Number of integration intervals (2D continuous sparsemax)": "none: exact",
    }
