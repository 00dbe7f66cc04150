"""`--preset thesis` is the thesis, entry by entry; `full` what is done better; stored models keep what they had."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner
from vqa_v2_folder import store_features, write_vqa_v2

from regard._problem import Problem
from regard.cli import application
from regard.continuous import fit_mixture, grid, match_moments, ridge, select_mixture, thesis
from regard.training import Running, latest
from regard.vqa.evaluate_run import evaluate_run
from regard.vqa.folder import AnsweringFolder
from regard.vqa.jobs import Job, run_jobs
from regard.vqa.kinds import Continuous, Fitting, MixtureOf, MixtureSelected
from regard.vqa.mcan import MCAN
from regard.vqa.output import OutputAttention
from regard.vqa.read import read_questions
from regard.vqa.settings import (
    LAMBDAS,
    ModelSettings,
    TrainSettings,
    full,
    preset_training,
    price_of,
    settings_of,
    small,
    small_training,
    thesis_schedule,
)
from regard.vqa.store import changed_run, load_run
from regard.vqa.train import train

TINY = {"width": 16, "heads": 2, "layers": 1, "feed_forward": 32, "flat": 16, "fused": 24, "words": 8}

# Table 6.1, sections 6.2.1 to 6.2.3 and 6.3.1, by hand; what the thesis takes over from MCAN is marked.
THESIS = {
    "words": 300,
    "tokens": 14,  # MCAN
    "width": 512,
    "heads": 8,
    "layers": 6,
    "before": 0,
    "guided_first": False,
    "feed_forward": 2048,  # MCAN
    "flat": 512,
    "fused": 1024,
    "dropout": 0.1,
    "norm_first": False,
    "unbiased_norm": False,  # "LayerNorm", 6.2.1
    "coordinates": False,
    "standardise": False,
    "neighbours": False,
    "whiten": False,
    "whiten_width": None,
    "reads": "mixed",
    "scores": "sigmoid",
    "guided_mixes": True,
    "marks": 0,
    "sums": False,
    "attention": "discrete-softmax",
    "basis": "thesis-100",
    "padding": True,
    "ridge_penalty": 0.01,
    "placement": "corner",  # l / sqrt(L), 6.2.2
    "cell_variance": False,
    "price": 500 / 196,  # Figures 6.9 to 6.11
    "em_iterations": "thesis",
    "map": "softmax",
    "affinity": "dot",
    "self_attention": "discrete",
}
TRAINED = {
    "epochs": 13,
    "batch": 64,
    "lr": 1e-4,
    "optimizer": "adam",
    "schedule": "thesis",
    "above": 8,  # MCAN
    "seed": 0,
    "accumulate": 1,
    "clip": None,
    "patience": None,
    "glove": None,
    "anneal": None,
    "grouped": False,
}


def test_the_preset_is_the_thesis_entry_by_entry():
    written = json.loads(json.dumps(preset_training("thesis").to_json()))
    assert written.pop("model") == THESIS
    assert written == TRAINED
    assert preset_training("thesis") == TrainSettings()
    rates = [1e-4 * thesis_schedule(1)(epoch) for epoch in range(13)]
    assert rates == pytest.approx([2.5e-5, 5e-5, 7.5e-5, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 2e-5, 2e-5, 4e-6, 4e-6])
    iterations = preset_training("thesis").model.fitting.iterations
    assert [iterations(k) for k in (2, 4, None)] == [2, 5, 20]  # Table 6.3: 2, 5, 20, 20, 20


def test_the_basis_is_that_of_the_table():
    for name, side in (("thesis-49", 7), ("thesis-100", 10)):
        pool = OutputAttention(4, (14, 14), "continuous-softmax", basis=name, placement="corner")
        setting = pool.regression.setting
        assert setting.options == {"penalty": 0.01, "padding": True}
        assert torch.equal(setting.basis.covariance, 0.001 * torch.eye(2, dtype=torch.float64)[None])
        ends = torch.linspace(0, 1, side, dtype=torch.float64)
        assert torch.allclose(setting.basis.centres, torch.cartesian_prod(ends, ends).flip(-1))
        where = torch.arange(14, dtype=torch.float64) / 14  # l / sqrt(L)
        assert torch.allclose(pool.regression.where.points, torch.cartesian_prod(where, where).flip(-1))


def test_padding_and_penalty_of_the_regression():
    def operator(**options):
        return OutputAttention(4, (5, 5), "continuous-softmax", **options).regression.operator(
            torch.device("cpu"), None
        )

    basis = thesis(7, 7).basis
    for padding, wanted in ((None, True), (True, True), (False, False)):
        expected = ridge(grid(5, 5), basis, 0.01, wanted)
        assert torch.allclose(operator(basis="thesis-49", padding=padding), expected)
    assert torch.allclose(operator(padding=None), operator(padding=False))
    assert not torch.allclose(operator(padding=True), operator(padding=False))
    assert not torch.allclose(operator(ridge_penalty=1.0), operator())


@pytest.mark.parametrize("kind", ["continuous-softmax", "mixture-2", "mixture-4", "mixture-selected"])
def test_how_densities_are_fitted(kind):
    """Moments at the corners with 1e-6 in place of a cell's variance, EM's steps and the price of the settings."""
    torch.manual_seed(0)
    x = torch.randn(3, 36, 4)
    settings = {"basis": "thesis-49", "placement": "corner", "cell_variance": False}
    fitting = Fitting(price=0.2, em_iterations="thesis")
    pool = OutputAttention(4, (6, 6), kind, fitting=fitting, **settings).eval()
    looked = pool(x)
    p = looked.weights.double()
    t = grid(6, 6, at="corner").points
    mean = p @ t
    spread = torch.einsum("bl,bli,blj->bij", p, t - mean[:, None], t - mean[:, None]) + 1e-6 * torch.eye(2)
    if kind == "continuous-softmax":
        assert torch.allclose(looked.density.mean.double(), mean, atol=1e-6)
        assert torch.allclose(looked.density.covariance.double(), spread, atol=1e-6)
        with_cells = OutputAttention(4, (6, 6), kind, basis="thesis-49").eval()
        with_cells.load_state_dict(pool.state_dict())
        assert torch.allclose(with_cells(x).density.mean.double(), mean + 1 / 12, atol=1e-6)
        inside = spread + (1 / 36 / 12 - 1e-6) * torch.eye(2)
        assert torch.allclose(with_cells(x).density.covariance.double(), inside, atol=1e-6)
        return
    where = pool.regression.fitted_on
    if kind == "mixture-selected":
        starts = torch.Generator().manual_seed(0)
        expected = select_mixture(looked.weights, where, penalty=0.2, iterations=20, generator=starts)
    else:
        steps = {"mixture-2": 2, "mixture-4": 5}[kind]
        expected = fit_mixture(looked.weights, where, int(kind[-1]), steps)
        other = fit_mixture(looked.weights, where, int(kind[-1]), steps + 1)
        assert not torch.equal(looked.density.parts.mean, other.parts.mean)
    assert torch.equal(looked.density.parts.mean, expected.parts.mean)
    assert torch.equal(looked.density.mixing, expected.mixing)


@pytest.mark.parametrize("kind", ["continuous-softmax", "continuous-sparsemax", "mixture-2", "mixture-4"])
def test_the_thesis_model_learns_also_from_one_cell_alone(kind):
    model = MCAN(ModelSettings(**TINY, attention=kind), vocabulary=9, answers=3, cells=(14, 14), features=8)
    with torch.no_grad():
        model.flat_picture.pool.score[-1].weight.mul_(1e4)  # weights on one cell: a density without width
    scores, looked = model(torch.randn(2, 14, 14, 8), torch.randint(1, 9, (2, 5)))
    assert looked.weights.max() > 0.999
    model.loss(scores, torch.rand(2, 3)).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_kinds_without_settings_are_what_they_were():
    """Five steps of EM, twenty where the number is selected, a price of 0.1: whoever sets nothing."""
    weights, where = torch.rand(2, 16).softmax(-1), grid(4, 4)
    two = MixtureOf(2).fit(weights, where, None, training=False)
    assert torch.equal(two.parts.mean, fit_mixture(weights, where, 2, 5).parts.mean)
    starts = torch.Generator().manual_seed(0)
    chosen = MixtureSelected().fit(weights, where, None, training=False)
    expected = select_mixture(weights, where, penalty=0.1, iterations=20, generator=starts)
    assert torch.equal(chosen.parts.mean, expected.parts.mean)
    dear = MixtureSelected(50).fit(weights, where, None, training=False, fitting=Fitting(price=0.0))
    assert dear.components.tolist() == [1, 1]  # its own price, not the model's
    one = Continuous("softmax").fit(weights, where, None, training=False)
    assert torch.equal(one.mean, match_moments(weights, where).mean)


def test_lambda_in_both_scales():
    assert [price_of(penalty) for penalty in LAMBDAS] == [10 / 196, 100 / 196, 500 / 196]
    assert price_of(10, cells=100) == 0.1


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings")
    torch.manual_seed(0)
    data = write_vqa_v2(folder / "vqa", train=16)
    store_features(data, folder / "features", ("train", "val"))
    return folder


def trained(place, out, settings):
    from regard.vqa.feature_store import FeatureStore

    store = FeatureStore.open(place / "features")
    train(out, read_questions(place / "vqa"), store, settings, running=Running(progress=False))
    return load_run(out)


def test_features_are_taken_as_they_are_unless_standardised(place, tmp_path):
    settings = TrainSettings(model=ModelSettings(**TINY), epochs=1, above=2)
    run = trained(place, tmp_path / "thesis", settings)
    assert not run.model.feature_mean.any()
    assert (run.model.feature_scale == 1).all()
    assert settings_of(AnsweringFolder(tmp_path / "thesis").read_config()) == settings
    run = trained(place, tmp_path / "full", replace(settings, model=full(**TINY)))
    assert run.model.feature_mean.any()


def test_a_run_from_before_keeps_what_it_had(place, tmp_path):
    """Its config has no word of the new settings: it is loaded, evaluated and resumed as it was."""
    settings = small_training(model=small(**TINY, attention="mixture-2"), epochs=1, above=2)
    trained(place, tmp_path, settings)
    new = ("standardise", "padding", "ridge_penalty", "placement", "cell_variance", "price", "em_iterations")
    checkpoint = latest(tmp_path)
    paths = [tmp_path / "config.json", checkpoint.folder / "config.json"]
    for path in paths:
        config = json.loads(path.read_text())
        config["model"] = {name: value for name, value in config["model"].items() if name not in new}
        path.write_text(json.dumps(config))
    run = load_run(tmp_path)
    assert run.model.settings == settings.model
    assert run.model.flat_picture.fitting == Fitting(0.1, "usual")
    job = Job(AnsweringFolder(tmp_path), place / "vqa", place / "features", settings)
    AnsweringFolder(tmp_path).write_done(1.0)
    assert run_jobs([job], _settings_of) == [settings]


def _settings_of(job):
    return settings_of(job.out.read_config())


def test_evaluated_with_another_basis_price_and_map(place, tmp_path):
    settings = small_training(model=small(**TINY, attention="continuous-softmax"), epochs=1, above=2)
    run = trained(place, tmp_path / "run", settings)
    other = changed_run(run, {"basis": "thesis-49", "em_iterations": 3, "map": "sparsemax", "price": 9.0})
    assert other.model.settings.basis == "thesis-49"
    assert run.model.settings.basis == "gaussian"
    assert all(torch.equal(a, b) for a, b in zip(run.model.parameters(), other.model.parameters(), strict=True))
    with pytest.raises(Problem, match=r"trained with other coordinates, which have weights\. Train another"):
        changed_run(run, {"coordinates": False})
    with pytest.raises(Problem, match="basis: got 'cubes'"):
        changed_run(run, {"basis": "cubes"})
    words = ["evaluate", tmp_path / "run", place / "vqa", "--attention", "mixture-selected", "--price", "50"]
    done = CliRunner().invoke(application(), [*map(str, words), "--basis", "thesis-100", "--em-iterations", "2"])
    assert done.exit_code == 0, done.exception
    assert "trained with continuous-softmax; here with basis thesis-100, price 50.0, em_iterations 2" in done.stdout
    assert "K = 1" in done.stdout
    assert "K = 2" not in done.stdout  # at that price
    free = evaluate_run(tmp_path / "run", place / "vqa", [], changes={"price": 0.0})
    assert "K = 2" in free


def test_evaluate_refuses_them_for_a_backbone_and_a_basis_that_does_not_exist(place, tmp_path):
    def refused(*words):
        done = CliRunner().invoke(application(), list(map(str, words)), prog_name="regard")
        assert done.exit_code != 0
        return str(done.exception) + done.output

    backbone = place / "features" / "backbone"
    assert "--basis is for questions" in refused("evaluate", backbone, "--basis", "thesis-49")
    assert "--attention is for questions" in refused("evaluate", backbone, "--attention", "mixture-2")
    for command in ("train", "compare"):
        said = refused(command, place / "vqa", "--basis", "thesis-50", "--out", tmp_path / "run")
        assert "thesis-50" in said
        asked = ["--em-iterations", "many", "--features", place / "features", "--out", tmp_path / "run"]
        said = refused(command, place / "vqa", *asked)
        assert "em_iterations: got 'many'" in said
    assert not (tmp_path / "run").exists()
