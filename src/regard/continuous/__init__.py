"""Continuous attention: densities instead of weights.

A map on R^d turns a quadratic score into a density; the context is the expectation of a continuous value function under
it.

    cells   = grid(14, 14)
    basis   = GaussianBasis.on_grid(10, 10)
    density = match_moments(weights, cells, alpha=2)
    out     = continuous_attention(values, weights, cells, basis, alpha=2)
"""

from regard.continuous.attention import Attended, continuous_attention, read_out
from regard.continuous.basis import Basis
from regard.continuous.deformed import escort, exp_beta, log_beta
from regard.continuous.density import Density, Ellipse, Gaussian, Interval
from regard.continuous.fit import fit_mixture, log_likelihood, select_mixture
from regard.continuous.fits import Fit, FitMixture, MatchMoments, SelectMixture
from regard.continuous.fourier import FourierBasis
from regard.continuous.locations import Locations, grid, line
from regard.continuous.mixture import Mixture
from regard.continuous.moments import from_canonical, from_cholesky, match_moments
from regard.continuous.radial import GaussianBasis, ParaboloidBasis
from regard.continuous.ridge import Diagnosis, Setting, diagnose, ridge, thesis
from regard.continuous.truncated import BetaGaussian, Paraboloid, PearsonTypeII

__all__ = [
    "Attended",
    "Basis",
    "BetaGaussian",
    "Density",
    "Diagnosis",
    "Ellipse",
    "Fit",
    "FitMixture",
    "FourierBasis",
    "Gaussian",
    "GaussianBasis",
    "Interval",
    "Locations",
    "MatchMoments",
    "Mixture",
    "Paraboloid",
    "ParaboloidBasis",
    "PearsonTypeII",
    "SelectMixture",
    "Setting",
    "continuous_attention",
    "diagnose",
    "escort",
    "exp_beta",
    "fit_mixture",
    "from_canonical",
    "from_cholesky",
    "grid",
    "line",
    "log_beta",
    "log_likelihood",
    "match_moments",
    "read_out",
    "ridge",
    "select_mixture",
    "thesis",
]
