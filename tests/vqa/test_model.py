"""MCAN: sizes of the thesis, every output attention on the same parameters, masks, coordinates, schedule."""

import pytest
import torch

from regard.vqa.kinds import NAMES
from regard.vqa.mcan import MCAN, coordinates
from regard.vqa.output import OutputAttention
from regard.vqa.settings import ModelSettings, TrainSettings, small, thesis_schedule


def tiny(**changes):
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 2, "layers": 1, "feed_forward": 32, "flat": 16, "fused": 24, "words": 8}
    return MCAN(small(**(sizes | changes)), vocabulary=20, answers=5, cells=(4, 4), features=12)


def test_sizes_of_the_thesis():
    with torch.device("meta"):
        model = MCAN(ModelSettings(coordinates=False), vocabulary=20000, answers=3129, cells=(14, 14), features=2048)
    assert len(model.encoder) == len(model.decoder) == 6
    parameters = sum(p.numel() for p in model.parameters()) - 20000 * 300
    assert 50e6 < parameters < 60e6
    assert model.cell.in_features == 2048
    assert TrainSettings().epochs == 13


def test_the_schedule_is_that_of_the_table():
    """min(2.5 t 1e-5, 1e-4), a fifth at epochs 10 and 12, t from one."""
    factor = thesis_schedule(per_epoch=7)
    for epoch in range(1, 14):
        expected = min(2.5e-5 * epoch, 1e-4) * 0.2 ** ((epoch >= 10) + (epoch >= 12))
        for step in (7 * (epoch - 1), 7 * epoch - 1):
            assert 1e-4 * factor(step) == pytest.approx(expected)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("basis", ["gaussian", "paraboloid", "thesis-49"])
def test_every_attention_learns_and_shares_its_parameters(kind, basis):
    model = tiny(attention=kind, basis=basis)
    names = {name: p.shape for name, p in tiny().named_parameters()}
    assert {name: p.shape for name, p in model.named_parameters()} == names
    scores, looked = model(torch.randn(3, 4, 4, 12), torch.randint(1, 20, (3, 14)))
    model.loss(scores, torch.rand(3, 5)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert (looked.density is None) == kind.startswith("discrete")


def test_trained_with_one_attention_evaluated_with_another():
    model = tiny().eval()
    features, words = torch.randn(2, 4, 4, 12), torch.randint(1, 20, (2, 14))
    before = model(features, words)
    other = model(features, words, attention="continuous-sparsemax")
    assert torch.allclose(other.looked.weights, before.looked.weights)
    assert not torch.allclose(other.scores, before.scores)
    assert torch.equal(model(features, words).scores, before.scores)
    # The context is the effective weights' expectation, whatever the kind.
    pool = OutputAttention(6, (4, 4), "mixture-2").eval()
    x = torch.randn(2, 16, 6)
    looked = pool(x)
    assert torch.allclose(looked.context, (looked.effective.unsqueeze(1) @ x).squeeze(1), atol=1e-5)


def test_padding_changes_nothing():
    model = tiny().eval()
    features, words = torch.randn(1, 4, 4, 12), torch.tensor([[3, 4, 5]])
    padded = torch.cat([words, torch.zeros(1, 6, dtype=torch.int64)], 1)
    assert torch.allclose(model(features, words).scores, model(features, padded).scores, atol=1e-5)


def test_coordinates_tell_cells_apart():
    place = coordinates(3, 5)
    assert place.shape == (15, 18)
    assert place.abs().max() <= 1
    assert len({tuple(row) for row in place.tolist()}) == 15
    # Without them and without positions, a permutation of the cells gives the same answer.
    model = tiny(coordinates=False, neighbours=False).eval()
    features, words = torch.randn(1, 16, 12), torch.randint(1, 20, (1, 5))
    shuffled = features[:, torch.randperm(16)]
    assert torch.allclose(model(features, words).scores, model(shuffled, words).scores, atol=1e-4)
    model = tiny().eval()
    assert not torch.allclose(model(features, words).scores, model(shuffled, words).scores, atol=1e-4)


def test_other_maps_and_affinities_inside():
    for change in ({"map": "sparsemax"}, {"map": "entmax"}, {"affinity": "wasserstein"}):
        assert tiny(**change)(torch.randn(1, 4, 4, 12), torch.randint(1, 20, (1, 5))).scores.isfinite().all()


def test_standardised_features():
    model = tiny(whiten=False)
    sample = torch.randn(300, 4, 4, 12) * torch.arange(1, 13) + 5
    model.standardise(sample)
    scaled = (sample - model.feature_mean) * model.feature_scale
    assert torch.allclose(scaled.flatten(0, 2).std(0), torch.ones(12), atol=1e-3)


def test_white_features():
    model = tiny(whiten=True)
    # Channels that are nearly the same, and one that never changes.
    sample = torch.randn(300, 4, 4, 12) + 3 * torch.randn(300, 4, 4, 1)
    sample[..., 5] = 1.0
    model.standardise(sample)
    white = ((sample - model.feature_mean) @ model.feature_scale).flatten(0, 2)
    covariance = torch.cov(white.T)
    changing = [i for i in range(12) if i != 5]
    assert torch.allclose(covariance[changing][:, changing], torch.eye(11), atol=0.2)
    assert white[:, 5].abs().max() < 1e-3


@pytest.mark.parametrize(("width", "white"), [(None, True), (12, True), (11, False)])
def test_wide_features_are_only_scaled(width, white):
    model = tiny(whiten=True, whiten_width=width)
    sample = torch.randn(300, 4, 4, 12) + 3 * torch.randn(300, 4, 4, 1)
    model.standardise(sample)
    assert model.whitens is white
    assert model.feature_scale.shape == ((12, 12) if white else (12,))
    if not white:
        assert torch.equal(model.feature_scale, standardised_apart(sample))
    assert model(sample[:2], torch.ones(2, 3, dtype=torch.int64)).scores.isfinite().all()


def standardised_apart(sample):
    model = tiny(whiten=False)
    model.standardise(sample)
    return model.feature_scale


def test_a_cell_sees_its_neighbours_and_no_further():
    model = tiny(coordinates=False, neighbours=True)
    features = torch.randn(1, 16, 12, requires_grad=True)
    model.cell(features)[0, 0].sum().backward()  # the corner of a grid of 4 x 4
    seen = features.grad[0].abs().sum(-1) > 0
    assert seen.nonzero().flatten().tolist() == [0, 1, 4, 5]


@pytest.mark.parametrize("guided_first", [False, True])
@pytest.mark.parametrize(("before", "layers"), [(0, 1), (2, 1), (1, 2)])
def test_questions_about_one_picture_together(before, layers, guided_first):
    features, words = torch.randn(2, 4, 4, 12), torch.randint(1, 20, (3, 5))
    rows = torch.tensor([1, 0, 1])
    model = tiny(before=before, layers=layers, guided_first=guided_first).eval()
    assert (len(model.before), len(model.decoder)) == (before, layers)
    together = model(features, words, rows).scores
    apart = torch.cat([model(features[r : r + 1], words[i : i + 1]).scores for i, r in enumerate(rows.tolist())])
    assert torch.allclose(together, apart, atol=1e-5)


def test_what_is_guided_first_reaches_other_cells():
    """With one layer, a cell hears of what the question says about another one only if guidance comes first."""
    for guided_first in (False, True):
        model = tiny(before=0, guided_first=guided_first, neighbours=False).eval()
        seen = []
        model.flat_picture.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0]))
        nudge = torch.zeros(1, 16, 16)

        def add(module, given, output, nudge=nudge):
            return output[0] + nudge, *output[1:]

        model.decoder[0].multihead_attn.register_forward_hook(add)
        features, words = torch.randn(1, 4, 4, 12), torch.randint(1, 20, (1, 5))
        model(features, words)
        nudge[0, 3] = torch.randn(16)  # the question marks the fourth cell
        model(features, words)
        changed = (seen[0] != seen[1]).any(-1)[0]
        assert changed.sum() == (16 if guided_first else 1)


@pytest.mark.parametrize(
    "changes", [{}, {"before": 1, "guided_first": True}, {"layers": 2}, {"attention": "continuous-softmax"}], ids=str
)
def test_what_is_read_of_a_cell_is_its_own(changes):
    """With `reads="own"` the value of a cell does not change whatever the others hold; its score does."""
    for reads in ("mixed", "own"):
        model = tiny(reads=reads, neighbours=False, **changes).eval()
        assert {n: p.shape for n, p in model.named_parameters()} == {
            n: p.shape for n, p in tiny(neighbours=False, **changes).named_parameters()
        }
        seen = []
        model.flat_picture.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given))
        features, words = torch.randn(1, 4, 4, 12), torch.randint(1, 20, (1, 5))
        others = torch.where(torch.arange(16).reshape(1, 4, 4, 1) == 6, features, torch.randn(1, 4, 4, 12))
        first, second = model(features, words), model(others, words)
        scored, read = zip(*((given[0], given[3]) for given in seen), strict=True)
        assert not torch.allclose(scored[0][0, 6], scored[1][0, 6], atol=1e-3)
        assert (read[0] is None) == (reads == "mixed")
        if reads == "own":
            assert torch.allclose(read[0][0, 6], read[1][0, 6], atol=1e-6)
            assert not torch.allclose(read[0][0, 7], read[1][0, 7], atol=1e-3)
            # The context is the expectation of what is read, not of what is scored.
            for (_, looked), values in ((first, read[0]), (second, read[1])):
                context = model.flat_picture.pool.merge((looked.effective.unsqueeze(1) @ values).squeeze(1))
                assert torch.allclose(looked.context, context, atol=1e-5)
        else:
            context = model.flat_picture.pool.merge((first.looked.effective.unsqueeze(1) @ scored[0]).squeeze(1))
            assert torch.allclose(first.looked.context, context, atol=1e-5)


def test_reads_has_two_values():
    with pytest.raises(ValueError, match="reads: got 'keys', expected one of"):
        small(reads="keys")


def test_one_softmax_over_all_answers():
    scores = torch.randn(4, 5, requires_grad=True)
    targets = torch.tensor([[1.0, 0, 0, 0, 0], [0, 0.9, 0, 0.3, 0], [0, 0, 0, 0, 0.6], [0, 0, 0, 0, 0]])
    model = tiny(scores="softmax")
    loss = model.loss(scores, targets)
    by_hand = -sum(
        share / float(row.sum()) * (scores[i, j] - scores[i].exp().sum().log())
        for i, row in enumerate(targets)
        for j, share in enumerate(row)
        if share
    )
    torch.testing.assert_close(loss, by_hand)
    torch.testing.assert_close(model.probabilities(scores).sum(-1), torch.ones(4))
    assert torch.equal(tiny().probabilities(scores), scores.sigmoid())
    (slope,) = torch.autograd.grad(loss, scores)
    assert bool((slope[3] == 0).all()), "nobody answered it"
    with pytest.raises(ValueError, match="scores: got 'logits', expected one of"):
        small(scores="logits")


def test_questions_about_one_picture_together_each_read_by_itself():
    features, words, rows = torch.randn(2, 4, 4, 12), torch.randint(1, 20, (3, 5)), torch.tensor([1, 0, 1])
    model = tiny(before=1, layers=2, reads="own").eval()
    together = model(features, words, rows).scores
    apart = torch.cat([model(features[r : r + 1], words[i : i + 1]).scores for i, r in enumerate(rows.tolist())])
    assert torch.allclose(together, apart, atol=1e-5)


def test_one_cell_for_statistics():
    model = tiny(whiten=False)
    model.standardise(torch.ones(1, 1, 1, 12))
    assert model.feature_scale.isfinite().all()


def test_wrong_grid():
    with pytest.raises(ValueError, match="4 x 4 cells"):
        tiny()(torch.randn(1, 5, 5, 12), torch.ones(1, 3, dtype=torch.int64))


INSIDE = (
    {},
    {"neighbours": False, "coordinates": False},
    {"before": 1, "guided_first": True},
    {"map": "sparsemax"},
    {"before": 1, "marks": 2, "guided_mixes": False, "sums": True},
)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("changes", INSIDE, ids=str)
def test_cells_that_are_masked_change_nothing(kind, changes):
    model = tiny(attention=kind, layers=2, **changes).double().eval()
    features, words = torch.randn(2, 4, 4, 12, dtype=torch.float64), torch.randint(1, 20, (3, 5))
    mask = torch.rand(2, 4, 4) < 0.6
    mask[:, 1, 1] = True
    rows = torch.tensor([1, 0, 1])
    expected = model(features, words, rows, mask)
    assert (expected.looked.weights[~mask.flatten(1)[rows]] == 0).all()
    assert (expected.looked.effective[~mask.flatten(1)[rows]] == 0).all()
    for content in (0.0, 50.0, float("nan")):
        other = features.masked_fill(~mask.unsqueeze(-1), content)
        got = model(other, words, rows, mask)
        assert torch.allclose(got.scores, expected.scores, atol=1e-10)
        assert torch.allclose(got.looked.effective, expected.looked.effective, atol=1e-10)
    assert not torch.allclose(model(features, words, rows).scores, expected.scores, atol=1e-6)
    whole = model(features, words, rows, torch.ones_like(mask)).scores
    assert torch.allclose(model(features, words, rows).scores, whole, atol=1e-6)
    model(features.requires_grad_(), words, rows, mask).scores.sum().backward()
    assert (features.grad[~mask] == 0).all()
    assert features.grad[mask].abs().sum() > 0


@pytest.mark.parametrize("changes", [{}, {"before": 1}, {"guided_first": True, "layers": 2}], ids=str)
def test_boxes_are_a_picture_with_fewer_cells(changes):
    """Without places, a picture padded to twelve boxes is the same as one of nine."""
    options = {"neighbours": False, "coordinates": False, "whiten": False} | changes
    torch.manual_seed(0)
    many = MCAN(small(**options), vocabulary=20, answers=5, cells=(1, 12), features=6).eval()
    few = MCAN(small(**options), vocabulary=20, answers=5, cells=(1, 9), features=6).eval()
    few.load_state_dict(many.state_dict())
    boxes, words = torch.randn(2, 12, 6), torch.randint(1, 20, (2, 5))
    got = many(boxes, words, cell_mask=torch.arange(12).expand(2, 12) < 9)
    assert torch.allclose(got.scores, few(boxes[:, :9], words).scores, atol=1e-5)


@pytest.mark.parametrize("kind", ["discrete-softmax", "discrete-tvmax", "continuous-softmax", "mixture-2"])
def test_an_empty_question_is_answered_from_the_picture(kind):
    model = tiny(attention=kind, layers=2).eval()
    features = torch.randn(2, 4, 4, 12)
    scores = model(features, torch.zeros(2, 3, dtype=torch.int64)).scores
    assert scores.isfinite().all()
    assert not torch.allclose(scores[0], scores[1])
    assert torch.equal(model.look_at_words(torch.zeros(2, 3, dtype=torch.int64)), torch.zeros(2, 3))
    with torch.no_grad():
        model.embedding.weight[0] = 7.0  # what stands for no word says nothing
    for length in (0, 3, 9):
        empty = torch.zeros(2, length, dtype=torch.int64)
        assert torch.allclose(model(features, empty).scores, scores, atol=1e-6)
    model.train()
    model(features, empty).scores.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kind", ["discrete-softmax", "discrete-tvmax", "continuous-softmax", "mixture-2"])
def test_a_picture_without_cells_leaves_the_question(kind):
    model = tiny(attention=kind, before=1).eval()
    words, mask = torch.randint(1, 20, (2, 5)), torch.zeros(2, 4, 4, dtype=torch.bool)
    one, other = (model(torch.randn(2, 4, 4, 12), words, cell_mask=mask).scores for _ in range(2))
    assert one.isfinite().all()
    assert torch.equal(one, other)


@pytest.mark.parametrize("mask", [torch.ones(2, 4, 4), torch.ones(1, 4, 4, dtype=torch.bool), torch.ones(2, 9) > 0])
def test_wrong_masks_of_cells(mask):
    with pytest.raises(ValueError, match="cell_mask"):
        tiny()(torch.randn(2, 4, 4, 12), torch.ones(2, 3, dtype=torch.int64), cell_mask=mask)


CORNERS = torch.full((1, 100), -9.0)
CORNERS[0, [0, 1, 10, 11, 88, 89, 98, 99]] = 3.0  # all attention in two opposite corners of 10 x 10 cells


def corners(kind, basis="gaussian"):
    """A pool whose scores are given, and its output for features that are the locations of the cells."""
    pool = OutputAttention(2, (10, 10), kind, basis=basis).double().eval()
    pool.pool.score = torch.nn.Identity()
    cells = (torch.arange(10, dtype=torch.float64) + 0.5) / 10
    places = torch.stack(torch.meshgrid(cells, cells, indexing="xy"), -1).reshape(1, 100, 2)
    pool.pool.score.forward = lambda x: CORNERS.double().unsqueeze(-1)
    return pool(places), places


@pytest.mark.parametrize("basis", ["gaussian", "fourier", "paraboloid", "thesis-49", "thesis-100"])
@pytest.mark.parametrize("kind", [name for name in NAMES if not name.startswith("discrete")])
def test_contexts_are_integrals_of_the_value_function(kind, basis):
    """The slow twin: the density on a fine grid, times the value function that the ridge regression gives."""
    looked, places = corners(kind, basis)
    pool = OutputAttention(2, (10, 10), kind, basis=basis)
    setting = pool.regression.setting
    psi = setting.basis(places[0])
    padding = torch.zeros(0, psi.shape[1], dtype=psi.dtype)
    if setting.padding:
        outside = (torch.arange(-5, 15, dtype=torch.float64) + 0.5) / 10
        box = torch.stack(torch.meshgrid(outside, outside, indexing="xy"), -1).reshape(-1, 2)
        padding = setting.basis(box[((box < 0) | (box > 1)).any(-1)])
    rows = torch.cat([psi, padding])
    values = torch.cat([places[0], torch.zeros(len(padding), 2, dtype=psi.dtype)])
    gram = rows.T @ rows + setting.penalty * torch.eye(rows.shape[1], dtype=psi.dtype)
    coefficients = torch.linalg.solve(gram, rows.T @ values)
    side = 240
    fine = (torch.arange(side, dtype=torch.float64) + 0.5) / side * 3 - 1
    points = torch.stack(torch.meshgrid(fine, fine, indexing="xy"), -1).reshape(-1, 2)
    density = looked.density.pdf(points.unsqueeze(1)).squeeze(-1)
    assert float(density.sum() * (3 / side) ** 2) == pytest.approx(1, abs=2e-3)
    expected = (density @ setting.basis(points) @ coefficients) * (3 / side) ** 2
    torch.testing.assert_close(looked.context[0], expected, rtol=0, atol=5e-3)


def test_mixtures_of_paraboloids_leave_out_what_lies_between():
    between = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    gaussians, _ = corners("mixture-2")
    paraboloids, _ = corners("mixture-2-paraboloids")
    assert 0 < gaussians.density.pdf(between) < 1e-3
    assert paraboloids.density.pdf(between) == 0
    torch.testing.assert_close(paraboloids.density.parts.mean, gaussians.density.parts.mean)
    torch.testing.assert_close(paraboloids.density.parts.covariance, gaussians.density.parts.covariance)
    assert paraboloids.density.components.tolist() == [2]
    sparse, _ = corners("mixture-4-paraboloids-sparse")
    assert sparse.density.components.tolist() == [2]
    assert corners("mixture-4-paraboloids")[0].density.components.tolist() == [4]
