"""Pictures: what is drawn is what was given, it goes where it is told, and it is read without colour."""

import io
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from PIL import Image

from regard import continuous as C
from regard import show, sinkhorn
from regard.show._canvas import COLOUR_MAP

CELLS = C.grid(8, 8)


def weights():
    w = torch.zeros(8, 8)
    w[1:3, 1:3], w[5:7, 6] = 0.2, 0.1
    return w


def rendered(figure):
    """The figure as RGB values, with what is inside its first axes."""
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=100)
    return numpy.asarray(Image.open(written).convert("RGB"), dtype=float) / 255


def luminance(rgb):
    linear = numpy.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def ellipses(ax):
    return [p for p in ax.patches if isinstance(p, Ellipse)]


DRAWN = {
    "grid": lambda ax: show.grid(torch.rand(3, 20, 30), weights(), ax=ax),
    "density": lambda ax: show.density(None, C.match_moments(weights().flatten(), CELLS, 2), ax=ax),
    "compare": lambda ax: show.compare(torch.rand(20, 30), {"a": weights(), "b": weights()}, ax=ax),
    "weights_1d": lambda ax: show.weights_1d(torch.rand(5), ax=ax),
    "transport": lambda ax: show.transport(torch.rand(4, 5), ax=ax),
    "points": lambda ax: show.transport(torch.rand(4, 5), torch.rand(4, 2), torch.rand(5, 2), ax=ax),
    "prototypes": lambda ax: show.prototypes(torch.rand(6, 3, 4, 4), torch.randn(6, 3), ax=ax),
}


@pytest.mark.parametrize("name", DRAWN)
def test_draws_into_the_axes_given_or_into_a_figure_of_its_own(name):
    ours = Figure(layout="constrained")
    left, right = ours.subplots(1, 2)
    assert DRAWN[name](right) is ours
    assert not left.has_data()
    assert right.has_data() or right.child_axes
    rendered(ours)
    assert len(numpy.unique(rendered(DRAWN[name](None)))) > 10


@pytest.mark.parametrize(
    "vision",
    [
        numpy.eye(3),
        # Red-blind, green-blind and blue-blind sight: the matrices of Machado, Oliveira and Fernandes at full severity.
        numpy.array([[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]),
        numpy.array([[0.3674, 0.8609, -0.2283], [0.2801, 0.6728, 0.0471], [-0.0118, 0.0429, 0.9689]]),
        numpy.array([[1.2555, -0.0768, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]),
    ],
    ids=["usual", "red-blind", "green-blind", "blue-blind"],
)
def test_colours_rise_in_lightness_for_every_eye(vision):
    seen = numpy.clip(COLOUR_MAP(numpy.linspace(0, 1, 64))[:, :3] @ vision.T, 0, 1)
    steps = numpy.diff(luminance(seen))
    assert (steps > 0).all()


@pytest.mark.parametrize("image", [None, torch.ones(3, 8, 8), torch.zeros(3, 8, 8)], ids=["none", "white", "black"])
def test_heavier_cells_are_brighter_in_grey_print(image):
    figure = show.grid(image, weights(), bar=False)
    grey = luminance(rendered(figure))
    box = figure.axes[0].get_window_extent()
    scale = 100 / figure.dpi

    def at(column, row):
        x = box.x0 + (column + 0.5) / 8 * box.width
        y = figure.bbox.height - (box.y1 - (row + 0.5) / 8 * box.height)
        return grey[int(y * scale), int(x * scale)]

    assert at(1, 1) > at(6, 5) > at(4, 4) + 0.02


def test_cells_without_weight_are_clear_and_the_picture_keeps_its_shape():
    figure = show.grid(torch.rand(3, 20, 40), weights())
    under, over = figure.axes[0].images
    assert ((over.get_alpha() > 0) == (weights() > 0).numpy()).all()
    assert figure.axes[0].get_aspect() == 0.5
    assert float(under.get_array().max()) <= 0.5


def test_negative_weights_are_hatched():
    w = weights()
    w[0, 0], w[0, 1] = -0.1, -1e-4
    drawn = show.grid(None, w, bar=False)
    (hatched,) = drawn.axes[0].collections
    assert hatched.get_array().mask.sum() == 63
    assert not show.grid(None, weights(), bar=False).axes[0].collections


def test_the_edge_of_a_bounded_support_is_thick_and_where_the_support_ends():
    density = C.match_moments(weights().flatten(), CELLS, 2)
    figure = show.density(None, density)
    (edge,) = ellipses(figure.axes[0])
    support = density.support
    assert edge.get_linewidth() > 2
    assert edge.get_center() == pytest.approx(support.centre.tolist())
    assert [edge.width / 2, edge.height / 2] == pytest.approx(support.axes.tolist(), rel=1e-4)
    turn = (edge.angle - float(support.angle.rad2deg())) % 180
    assert min(turn, 180 - turn) < 1e-2
    assert not ellipses(show.density(None, C.match_moments(weights().flatten(), CELLS, 1)).axes[0])


def test_a_batch_of_one_is_one_density():
    mixtures = [C.fit_mixture(w, CELLS, alpha=2) for w in (weights().flatten(), weights().flatten()[None])]
    one, batch = (show.density(None, m).axes[0] for m in mixtures)
    assert [e.get_center() for e in ellipses(one)] == [e.get_center() for e in ellipses(batch)]
    assert len(ellipses(batch)) == 2


def test_every_component_that_takes_part_has_its_outline_and_share():
    parts = C.Gaussian(torch.tensor([[0.2, 0.2], [0.5, 0.5], [0.8, 0.8]]), 0.01 * torch.eye(2).expand(3, 2, 2))
    ax = show.density(None, C.Mixture(torch.tensor([0.75, 0.0, 0.25]), parts)).axes[0]
    assert [e.get_center() for e in ellipses(ax)] == [pytest.approx((0.2, 0.2)), pytest.approx((0.8, 0.8))]
    assert [t.get_text() for t in ax.texts] == ["0.75", "0.25"]
    assert all(e.get_linestyle() != "-" for e in ellipses(ax))


def test_compare_has_one_scale_in_one_unit_and_one_bar():
    w = weights() / weights().sum()
    density = C.match_moments(w.flatten(), CELLS)
    figure = show.compare(torch.rand(3, 8, 8), {"weights": w, "even": torch.full((4, 4), 1 / 16), "density": density})
    titles = [a.get_title() for a in figure.axes]
    assert titles[:4] == ["picture", "weights", "even", "density"]
    assert len(figure.axes) == 5
    norms = [a.images[1].norm for a in figure.axes[1:3]] + [figure.axes[3].collections[0].norm]
    assert all(n is norms[0] for n in norms)
    assert norms[0].vmax == pytest.approx(float(w.max()) * 64)
    assert float(figure.axes[2].images[1].get_array().max()) == pytest.approx(1)


def test_sequences_show_weights_words_and_the_density_per_cell():
    w = torch.tensor([0.1, 0.6, 0.3])
    figure = show.weights_1d({"w": w, "half": w / 2}, ["a", "b", "c"], C.Gaussian(torch.tensor([0.5]), torch.eye(1)))
    ax = figure.axes[0]
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([*w.tolist(), *(w / 2).tolist()])
    assert [t.get_text() for t in ax.get_xticklabels()] == ["a", "b", "c"]
    assert max(ax.lines[0].get_ydata()) == pytest.approx((2 * torch.pi) ** -0.5 / 3, rel=1e-3)
    assert ax.lines[0].get_xdata()[[0, -1]].tolist() == [-0.5, 2.5]


def test_transport_draws_the_plan_and_only_lines_that_carry_mass():
    result = sinkhorn(torch.randn(5, 3), eps=0.5, tol=1e-5)
    figure = show.transport(result)
    assert numpy.allclose(figure.axes[0].images[0].get_array(), result.plan.numpy())
    plan = torch.tensor([[0.5, 0.0], [0.0, 0.5]])
    lines = show.transport(plan, torch.rand(2, 2), torch.rand(2, 2)).axes[0].collections[0]
    assert len(lines.get_segments()) == 2


def test_prototypes_show_the_nearest_crops_best_first():
    crops = torch.arange(6.0).reshape(6, 1, 1, 1).expand(6, 3, 2, 2) / 6
    scores = torch.tensor([[0.1, 0.9], [0.5, 0.1], [0.9, 0.2], [0.2, 0.3], [0.3, 0.8], [0.7, 0.0]])
    ax = show.prototypes(crops, scores, which=[1, 0], nearest=2).axes[0]
    assert [round(float(i.get_array().mean()) * 6) for i in ax.images] == [0, 4, 2, 5]
    assert [t.get_text() for t in ax.texts if "\n" in t.get_text()] == [
        "prototype 1\nnearest to 3",
        "prototype 0\nnearest to 3",
    ]


def test_prototypes_beside_one_another():
    """Column by column, each as wide as its crops and its title."""
    ax = show.prototypes(torch.rand(9, 3, 2, 2), torch.randn(9, 5), nearest=3, columns=2).axes[0]
    titles = {t.get_text().split("\n")[0]: t.get_position() for t in ax.texts if "\n" in t.get_text()}
    assert titles["prototype 3"][1] == titles["prototype 0"][1]
    assert titles["prototype 3"][0] > max(i.get_extent()[1] for i in ax.images[:9])
    assert max(i.get_extent()[1] for i in ax.images) <= ax.get_xlim()[1]
    assert len(ax.images) == 15


@pytest.mark.parametrize(
    "call",
    [
        lambda: show.grid(None, torch.rand(4)),
        lambda: show.grid(None, torch.full((2, 2), float("nan"))),
        lambda: show.grid(torch.rand(2, 3, 8, 8), weights()),
        lambda: show.density(None, C.match_moments(torch.rand(3, 64), CELLS)),
        lambda: show.density(None, C.match_moments(torch.rand(4), C.line(4))),
        lambda: show.compare(None, {}),
        lambda: show.weights_1d(torch.rand(2, 3)),
        lambda: show.weights_1d(torch.rand(3), ["one"]),
        lambda: show.weights_1d(torch.rand(3), density=C.match_moments(torch.rand(64), CELLS)),
        lambda: show.transport(torch.randn(3, 3) - 5),
        lambda: show.transport(torch.rand(3)),
        lambda: show.transport(torch.rand(3, 3), torch.rand(3, 2)),
        lambda: show.prototypes(torch.rand(4, 3, 2, 2), torch.rand(3, 2)),
        lambda: show.prototypes(torch.rand(4, 3, 2, 2), torch.rand(4, 2), which=[2]),
    ],
)
def test_wrong_arguments_are_named(call):
    with pytest.raises(ValueError, match=r": got .*, expected "):
        call()


@pytest.mark.parametrize(
    "image", [numpy.zeros((4, 6, 3), numpy.uint8), Image.new("RGBA", (6, 4)), torch.zeros(1, 4, 6)]
)
def test_pictures_come_in_any_usual_form(image):
    assert show.grid(image, weights()).axes[0].get_aspect() == pytest.approx(4 / 6)


class TestNotebook:
    def opened(self, density):
        return Image.open(io.BytesIO(density._repr_png_()))

    def test_densities_and_mixtures_show_themselves(self):
        one = self.opened(C.match_moments(torch.rand(64), CELLS, 2))
        many = self.opened(C.fit_mixture(torch.rand(2, 5, 64), CELLS))
        line = self.opened(C.fit_mixture(torch.rand(2, 6), C.line(6), alpha=1.5))
        assert {p.format for p in (one, many, line)} == {"PNG"}
        assert many.width > one.width

    def test_nothing_to_draw_gives_the_usual_text(self):
        assert C.Gaussian(torch.zeros(3), torch.eye(3))._repr_png_() is None
        assert C.Gaussian(torch.zeros(0, 2), torch.eye(2).expand(0, 2, 2))._repr_png_() is None

    def test_without_matplotlib_the_core_still_works(self):
        code = (
            "import sys; sys.modules['matplotlib'] = None\n"
            "import torch, regard\n"
            "print(regard.continuous.Gaussian(torch.zeros(2), torch.eye(2))._repr_png_())"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "None\n"


def test_the_example_draws_every_kind(tmp_path):
    example = Path(__file__).parent.parent.parent / "examples" / "pictures.py"
    done = subprocess.run([sys.executable, example, "--out", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 7
