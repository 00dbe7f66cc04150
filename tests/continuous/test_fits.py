"""Every spelling of one fit is one value; objects print as what they are."""

import inspect
from functools import partial

import pytest
import torch

import regard
from regard import continuous as C
from regard.continuous.fits import FITS, as_fit
from regard.nn import ContinuousAttentionPool
from regard.nn._spelled import read_fit, spell_fit

CELLS = C.grid(4, 5)
SPELLINGS = {
    "one": [
        C.MatchMoments(),
        C.match_moments,
        "match_moments",
        partial(C.match_moments),
        partial(C.match_moments, alpha=1),
    ],
    "paraboloid": [C.MatchMoments(2), partial(C.match_moments, alpha=2), C.MatchMoments(alpha=2.0)],
    "two": [C.FitMixture(), C.fit_mixture, "fit_mixture", partial(C.fit_mixture, components=2)],
    "sparse": [C.FitMixture(3, mixing="sparsemax"), partial(C.fit_mixture, mixing="sparsemax", components=3)],
    "selected": [C.SelectMixture(3), partial(C.select_mixture, max_components=3)],
}
EACH = [
    pytest.param(name, fit, id=f"{name} {place}") for name, fits in SPELLINGS.items() for place, fit in enumerate(fits)
]


@pytest.mark.parametrize(("name", "spelling"), EACH)
def test_one_value_one_density_one_line_of_json(name, spelling):
    first = SPELLINGS[name][0]
    assert as_fit(spelling) == first
    assert hash(as_fit(spelling)) == hash(first)
    assert read_fit(spell_fit(spelling)) == first
    pool = ContinuousAttentionPool(3, (4, 5), fit=spelling)
    assert pool.fit == first
    weights = torch.rand(2, 20)
    torch.manual_seed(1)  # random starts of the one that selects
    density = as_fit(spelling)(weights, CELLS)
    torch.manual_seed(1)
    expected = type(first).function(weights, CELLS, **first.parameters)
    assert type(density) is type(expected)
    assert torch.equal(density.mean, expected.mean)
    assert torch.equal(density.covariance, expected.covariance)


def test_the_values_have_the_defaults_of_their_functions():
    for name, kind in FITS.items():
        signature = inspect.signature(kind.function).parameters
        assert kind.function.__name__ == name
        assert kind().parameters == {key: signature[key].default for key in kind().parameters}
        assert signature.keys() - kind().parameters.keys() <= {"weights", "locations", "mask", "generator"}


def test_any_callable_is_a_fit_and_mistakes_are_named():
    own = lambda weights, locations, *, mask: C.match_moments(weights, locations, 2, mask)  # noqa: E731
    assert as_fit(own) is own
    pool = ContinuousAttentionPool(3, (4, 5), fit=own, fit_test="match_moments")
    assert type(pool.train()(torch.randn(1, 20, 3)).density) is C.Paraboloid
    assert type(pool.eval()(torch.randn(1, 20, 3)).density) is C.Gaussian
    with pytest.raises(ValueError, match=r"^fit: got 'moments', expected one of"):
        as_fit("moments")
    for wrong, said in ((C.MatchMoments, "Make one"), (3, "For example MatchMoments")):
        with pytest.raises(TypeError, match=rf"^fit: .*{said}"):
            as_fit(wrong)
    with pytest.raises(ValueError, match=r"^fit: got match_moments with beta = 2"):
        read_fit({"name": "match_moments", "beta": 2})


def test_a_config_without_all_parameters_is_read():
    assert read_fit({"name": "fit_mixture", "components": 3}) == C.FitMixture(3)


def test_objects_print_as_a_name_and_shapes():
    weights = torch.ones(2, 20) / 20
    attended = C.continuous_attention(torch.zeros(2, 20, 3), weights, CELLS, C.GaussianBasis.on_grid(3, 3))
    lines = {
        "Gaussian(mean=(2,), cov=(2, 2))": C.Gaussian(torch.zeros(2), torch.eye(2)),
        "Paraboloid(mean=(2, 2), cov=(2, 2, 2))": C.match_moments(weights, CELLS, 2),
        "BetaGaussian(mean=(2, 2), cov=(2, 2, 2), alpha=1.5)": C.match_moments(weights, CELLS, 1.5),
        "Mixture(mixing=(2, 2), parts=Gaussian(mean=(2, 2, 2), cov=(2, 2, 2, 2)))": C.fit_mixture(weights, CELLS),
        "Locations(points=(20, 2), cell=(2,), shape=(4, 5))": CELLS,
        "GaussianBasis(centres=(9, 2), covariance=(1, 2, 2))": C.GaussianBasis.on_grid(3, 3),
        "FourierBasis(numbers=(9, 2))": C.FourierBasis.on_grid(3, 3),
        "Attended(context=(2, 3), density=Gaussian(mean=(2, 2), cov=(2, 2, 2)), weights=(2, 20))": attended,
        "Bilinear(weight=(4, 4))": regard.Bilinear(torch.eye(4)),
        "Dot(scale=None)": regard.Dot(),
        "Pooled(context=(1, 4), weights=(1, 1, 3))": regard.nn.AttentionPool(4)(torch.zeros(1, 3, 4)),
    }
    for line, thing in lines.items():
        assert repr(thing) == line
    plan = repr(regard.sinkhorn(torch.zeros(3, 3)))
    assert plan.startswith("Transport(plan=(3, 3), potentials=((3,), (3,)), residual=(), iterations=")
