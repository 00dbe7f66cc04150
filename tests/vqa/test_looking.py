"""Looking with another attention does not change the model: many threads, one predictor, the answers given alone."""

import copy
import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from regard.backbones import make_backbone
from regard.scenes import Scenes
from regard.vqa.evaluate import evaluate_model
from regard.vqa.kinds import NAMES, MixtureSelected
from regard.vqa.mcan import MCAN
from regard.vqa.output import OutputAttention
from regard.vqa.predict import Predictor
from regard.vqa.records import Answers
from regard.vqa.settings import small
from regard.vqa.words import Words

QUESTIONS = ("What colour is the ring?", "How many rings are there?", "Is there a red square?", "What is it?")
FOUR = ("discrete-sparsemax", "continuous-softmax", "continuous-sparsemax", "mixture-2")
SIZES = {"width": 16, "heads": 2, "layers": 1, "feed_forward": 32, "flat": 16, "fused": 24, "words": 8}


@pytest.fixture(scope="module")
def predictor():
    torch.manual_seed(0)
    backbone = make_backbone("small", size=32, widths=[4, 8], depths=[1, 1], stem_stride=4)
    words, answers = Words.of(QUESTIONS), Answers(tuple(f"answer {i}" for i in range(6)))
    model = MCAN(small(**SIZES), vocabulary=len(words), answers=len(answers), cells=(4, 4), features=12)
    with torch.no_grad():
        model.flat_picture.pool.score[3].weight *= 30  # so that attentions differ
    return Predictor(model, backbone, words, answers, stages=True)


@pytest.fixture(scope="module")
def pictures():
    return Scenes("val", 5, size=32).pictures


def told(prediction):
    return {name: value for name, value in prediction.to_json().items() if name != "seconds"}


def tensors(prediction):
    density = prediction.density
    return [prediction.weights, prediction.effective, *([] if density is None else [density.mean, density.covariance])]


def test_four_threads_ask_one_predictor_with_four_attentions(predictor, pictures):
    cases = [(p, q, a) for p in range(5) for q in QUESTIONS for a in FOUR] * 5
    assert len(cases) == 400
    alone = {case: predictor.ask(pictures[case[0]], *case[1:], top=6) for case in dict.fromkeys(cases)}
    assert len({str(told(p)["top"]) for p in alone.values()}) > 60  # attentions give other answers
    random.Random(0).shuffle(cases)
    state = torch.get_rng_state()
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda case: predictor.ask(pictures[case[0]], *case[1:], top=6), cases))
    for case, got in zip(cases, answers, strict=True):
        wanted = alone[case]
        assert got.attention == case[2]
        assert got.top == wanted.top
        assert all(torch.equal(a, b) for a, b in zip(tensors(got), tensors(wanted), strict=True))
        assert told(got) == told(wanted)
    assert torch.equal(torch.get_rng_state(), state)


def whole(module):
    """All that a module is made of: parts, tensors, attributes, hooks."""
    parts = {name: id(part) for name, part in module.named_modules()}
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules()]
    values = {name: (id(x), x._version) for name, x in [*module.named_parameters(), *module.named_buffers()]}
    return parts, hooks, values, str(module)


@pytest.mark.parametrize("name", NAMES)
def test_asking_changes_nothing(predictor, pictures, name):
    state = torch.get_rng_state()
    before = [whole(part) for part in (predictor.model, predictor.backbone)]
    own = told(predictor.ask(pictures[0], QUESTIONS[0]))
    predictor.ask(pictures[0], QUESTIONS[0], name)
    assert [whole(part) for part in (predictor.model, predictor.backbone)] == before
    assert told(predictor.ask(pictures[0], QUESTIONS[0])) == own
    assert own["attention"] == predictor.attention == predictor.model.attention == "discrete-softmax"
    assert torch.equal(torch.get_rng_state(), state)


def test_a_kind_is_no_attribute_to_set(predictor):
    with pytest.raises(AttributeError):
        predictor.model.attention = "mixture-2"


def test_looking_equals_a_model_that_was_made_with_that_attention(predictor):
    features, words = torch.randn(3, 4, 4, 12), torch.randint(1, 5, (3, 6))
    mask = torch.rand(3, 4, 4) < 0.7
    for name in NAMES:
        made = MCAN(
            small(**SIZES, attention=name), vocabulary=len(predictor.words), answers=6, cells=(4, 4), features=12
        )
        made.load_state_dict(predictor.model.state_dict())
        for cell_mask in (None, mask):
            wanted = made.eval()(features, words, cell_mask=cell_mask)
            got = predictor.model(features, words, cell_mask=cell_mask, attention=name)
            assert torch.equal(got.scores, wanted.scores)
            assert torch.equal(got.looked.effective, wanted.looked.effective)


def test_asked_then_trained(predictor, pictures):
    """What asking has kept for the next time can be trained with."""
    predictor.ask(pictures[0], QUESTIONS[0], "continuous-softmax")
    features, words = torch.randn(2, 4, 4, 12), torch.randint(1, 5, (2, 6))
    predictor.model(features, words, attention="continuous-softmax").scores.sum().backward()
    assert all(p.grad.isfinite().all() for p in predictor.model.parameters() if p.grad is not None)
    predictor.model.zero_grad()


@pytest.mark.parametrize("own", ["discrete-softmax", "continuous-softmax"])
def test_a_model_that_has_looked_is_copied_and_pickled(own):
    torch.manual_seed(0)
    pool, x = OutputAttention(6, (3, 4), own).eval(), torch.randn(2, 12, 6)
    expected = pool(x, kind="mixture-2").context
    for other in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):
        assert torch.equal(other(x, kind="mixture-2").context, expected)


@pytest.mark.parametrize("name", ["discrete-entmax", "continuous-softmax", "mixture-2"])
def test_one_graph(name):
    """A module that was made with a kind has all that it needs: nothing is solved while it is traced."""
    pool, x = OutputAttention(6, (3, 4), name).eval(), torch.randn(2, 12, 6)
    traced = torch.compile(lambda x: pool(x).context, backend="eager", fullgraph=True)
    assert torch.allclose(traced(x), pool(x).context, atol=1e-6)


class Nothing:
    """No examples, as `evaluate_model` takes them."""

    has_regions, questions = False, ()

    def __len__(self):
        return 0


def test_an_evaluation_names_what_it_looked_with(predictor):
    found = [
        evaluate_model(predictor.model, Nothing(), predictor.answers, kind).attention
        for kind in (None, MixtureSelected(1))
    ]
    assert found == ["discrete-softmax", "mixture-selected-1"]
