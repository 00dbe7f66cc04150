"""Modules that travel: pickle, torch.save, deepcopy, another process, the meta device and then weights from a file."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch

import regard
from regard.continuous import FourierBasis, GaussianBasis, ParaboloidBasis, grid, line, ridge
from regard.vqa.mcan import MCAN
from regard.vqa.settings import small

BASES = {
    "gaussian": lambda: GaussianBasis.on_grid(3, 3),
    "paraboloid": lambda: ParaboloidBasis.on_grid(3, 3),
    "fourier": lambda: FourierBasis.on_grid(3, 3),
}


def mcan(kind):
    settings = small(attention=kind, width=16, words=8, heads=2, feed_forward=16, flat=16, fused=16)
    return MCAN(settings, vocabulary=9, answers=4, cells=(3, 3), features=8)


MODULES = {
    **{
        f"pool {name}": lambda basis=basis: regard.nn.ContinuousAttentionPool(8, grid(3, 3), basis())
        for name, basis in BASES.items()
    },
    "pool default": lambda: regard.nn.ContinuousAttentionPool(8, (3, 3)),
    "pool line": lambda: regard.nn.ContinuousAttentionPool(8, line(9)),
    "self-attention": lambda: regard.nn.ContinuousSelfAttention(8, 2, (3, 3)),
    **{kind: lambda kind=kind: mcan(kind) for kind in ("discrete-softmax", "continuous-softmax", "mixture-2")},
}


def outputs(module):
    x = torch.linspace(-1, 1, 2 * 9 * 8).reshape(2, 9, 8)
    with torch.no_grad():
        if isinstance(module, MCAN):
            return module(x.unflatten(1, (3, 3)), torch.tensor([[1, 2, 3], [4, 5, 0]]))[0]
        result = module(x)
        return result if isinstance(result, torch.Tensor) else result[0]


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def built_on_meta(module, make):
    with torch.device("meta"):
        empty = make()
    empty = empty.to_empty(device="cpu")
    empty.load_state_dict(module.state_dict())
    return empty.eval()


def moved_to_meta_and_back(module, make):
    empty = copy.deepcopy(module).to("meta").to_empty(device="cpu")
    empty.load_state_dict(module.state_dict())
    return empty


WAYS = {
    "pickle": lambda module, make: pickle.loads(pickle.dumps(module)),
    "deepcopy": lambda module, make: copy.deepcopy(module),
    "torch.save": lambda module, make: saved_and_loaded(module),
    "built on meta": built_on_meta,
    "moved to meta": moved_to_meta_and_back,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODULES)
def test_modules_arrive_as_they_left(name, way):
    module = MODULES[name]().eval()
    expected = outputs(module)  # fills the caches too
    assert torch.equal(outputs(WAYS[way](module, MODULES[name])), expected)


@pytest.mark.parametrize("name", BASES)
def test_a_basis_travels_after_its_operator_was_solved(name):
    basis, cells = BASES[name](), grid(3, 3)
    operator = ridge(cells, basis)
    for arrived in (pickle.loads(pickle.dumps(basis)), copy.deepcopy(basis)):
        assert torch.equal(ridge(cells, arrived), operator)


def test_another_process_gets_the_module():
    """As torch.multiprocessing and the strategies of Lightning start them: the module is pickled."""
    code = (
        "import sys, pickle, torch; module = pickle.load(sys.stdin.buffer);"
        "print(float(module(torch.ones(1, 9, 8)).context.detach().sum()))"
    )
    module = regard.nn.ContinuousAttentionPool(8, (3, 3)).eval()
    here = float(module(torch.ones(1, 9, 8)).context.detach().sum())
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(module), capture_output=True, check=True)
    assert float(done.stdout) == pytest.approx(here, rel=1e-6)


def test_a_default_dtype_of_float64_changes_no_result():
    """Set before the import, as many scripts of physics do."""
    code = """
import torch
torch.set_default_dtype(torch.float64)
import regard
from regard.swav import Crops, views
from regard.nn import ContinuousAttentionPool, MultiheadAttention, NonLocal2d
x = torch.rand(2, 9, 8)
assert ContinuousAttentionPool(8, (3, 3))(x).context.dtype == torch.float64
assert MultiheadAttention(8, 2, map="sparsemax")(x, x, x)[0].dtype == torch.float64
assert NonLocal2d(8)(torch.rand(1, 8, 3, 3)).dtype == torch.float64
assert regard.sinkhorn(torch.rand(3, 4, dtype=torch.float32)).plan.dtype == torch.float32
pictures = torch.randint(0, 256, (5, 3, 12, 12), dtype=torch.uint8)
crops = views(pictures, torch.ones(5), torch.arange(5), Crops(size=8, local=3, local_size=4), seed=0)
assert all(view.dtype == torch.float32 for view in crops)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
