"""The device of a command: its name, what there is, what Lightning is told; and nothing in a step is read."""

from types import SimpleNamespace

import pytest
import torch
import waits
from torch.overrides import TorchFunctionMode

from regard._problem import Problem
from regard.training import Running, _device
from regard.training._device import check_device_name, choose_device, computing_on, devices_here, sent
from regard.training._fabric import _placed, make_fabric
from regard.training._loop import _loader


@pytest.fixture
def machine(monkeypatch):
    """A machine with these devices."""

    def has(*names):
        monkeypatch.setattr(_device, "devices_here", lambda: [*names, "cpu"])

    return has


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda", "cuda:0", "cuda:13", "mps", "xpu", "xpu:2"])
def test_names(name):
    assert check_device_name(name) == name
    assert Running(device=name).device == name


@pytest.mark.parametrize("name", ["gpu", "cpu:1", "mps:0", "cuda:", "cuda:-1", "CUDA", "", None, 1, "cuda:1 "])
def test_what_is_no_name(name):
    with pytest.raises(ValueError, match=r"device: got .*, expected auto, cpu, cuda, cuda:1, mps, xpu\..*cuda\."):
        check_device_name(name)
    with pytest.raises(ValueError, match="device: got"):
        Running(device=name)


def test_the_best_there_is(machine):
    machine("cuda:0", "cuda:1")
    assert choose_device() == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    assert choose_device("cpu") == torch.device("cpu")
    machine("xpu:0", "mps")
    assert choose_device().type == "xpu"
    assert choose_device(kinds=("cuda", "mps", "cpu")).type == "mps"
    machine("mps")
    assert choose_device().type == "mps"
    assert choose_device(needs_float64=True).type == "cpu"
    assert choose_device("mps", needs_float64=True).type == "mps"
    machine()
    assert choose_device().type == "cpu"


def test_what_is_not_there(machine, monkeypatch):
    machine("cuda:0", "cuda:1")
    with pytest.raises(Problem, match=r"device cuda:2 is not there\. This machine has cuda:0, cuda:1, cpu\. Take one"):
        choose_device("cuda:2")
    machine()
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(Problem, match=r"This machine has cpu\. torch .* is built without cuda\. Install .*https"):
        choose_device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(Problem, match=r"No GPU is visible: look at nvidia-smi .*CUDA_VISIBLE_DEVICES"):
        choose_device("cuda")
    with pytest.raises(Problem, match="Mac with an Apple processor"):
        choose_device("mps")
    with pytest.raises(Problem, match=r"xpu cannot be used for training\. Take one of cuda, mps, cpu\."):
        choose_device("xpu", kinds=("cuda", "mps", "cpu"), use="training")


def test_those_of_this_machine(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices_here() == ["cuda:0", "cuda:1", "mps", "cpu"]


@pytest.mark.parametrize(
    ("device", "devices", "given"),
    [
        ("auto", 1, ("cuda", 1)),
        ("cuda", 8, ("cuda", 8)),
        ("cuda", "auto", ("cuda", "auto")),
        ("cuda:1", 1, ("cuda", [1])),
        ("cuda:0", "auto", ("cuda", [0])),
        ("cpu", 2, ("cpu", 2)),
    ],
)
def test_what_lightning_is_told(machine, device, devices, given):
    machine("cuda:0", "cuda:1", "xpu:0", "mps")
    assert _placed(Running(device=device, devices=devices), False) == given


def test_one_device_is_not_several(machine):
    machine("cuda:0", "cuda:1")
    with pytest.raises(Problem, match=r"device cuda:1 is one, and devices is 2\. Take device cuda, or one device\."):
        _placed(Running(device="cuda:1", devices=2), False)
    machine("xpu:0")
    assert _placed(Running(), False) == ("cpu", 1)  # Lightning has no accelerator for it
    machine("mps")
    assert _placed(Running(), True) == ("cpu", 1)


def test_fabric_on_the_cpu():
    assert make_fabric(Running(device="cpu")).device == torch.device("cpu")


@pytest.mark.parametrize(("kind", "pinned"), [("cuda", True), ("cpu", False), ("mps", False)])
def test_batches_are_pinned_for_cuda_alone(kind, pinned):
    fabric = SimpleNamespace(device=torch.device(kind), global_rank=0, world_size=1)
    settings = SimpleNamespace(batch_size=2, seed=0, accumulate=1, steps=3)
    call = SimpleNamespace(settings=settings, running=Running(), start=0)
    assert _loader([0] * 8, call, fabric).pin_memory is pinned


def test_copies_do_not_wait_for_cuda_alone():
    class Told:
        def __init__(self):
            self.calls = []

        def pin_memory(self):
            self.calls.append("pinned")
            return self

        def to(self, device, non_blocking=False):
            self.calls.append((device.type, non_blocking))
            return self

    assert sent(Told(), torch.device("cuda")).calls == ["pinned", ("cuda", True)]
    assert sent(Told(), torch.device("mps")).calls == [("mps", False)]


class Placed(torch.nn.Linear):
    """Remembers where it was put."""

    def to(self, device):
        self.places = [*getattr(self, "places", ()), device.type]
        return self


def test_a_module_is_brought_back_whatever_happens():
    layer = Placed(2, 2)

    def fail():
        with computing_on(layer, torch.device("cuda")):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert layer.places == ["cuda", "cpu"]


class Fetched(TorchFunctionMode):
    """Counts what brings tensors to the CPU."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.item):
            self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


def read_in(task, batch):
    """What a step reads, from the loss to the gradients; the first one fills caches."""
    task.loss(batch)[0].backward()
    with Fetched() as fetched, waits.Waits() as waiting:
        loss, numbers = task.loss(batch)
        loss.backward()
        task.before_update(1)
        task.after_update(1)
    assert all(not isinstance(value, float) for value in numbers.values())
    return fetched.names + waiting.names


@pytest.fixture
def as_on_a_device():
    from regard import native

    with waits.as_on_a_device(), native.switched_off():
        yield


@pytest.mark.parametrize("attention", ["discrete-softmax", "continuous-softmax"])
def test_a_step_of_answering_reads_nothing(as_on_a_device, attention):
    from regard.vqa.mcan import MCAN
    from regard.vqa.settings import ModelSettings, TrainSettings
    from regard.vqa.train import Answering

    settings = TrainSettings(model=ModelSettings(width=16, heads=2, layers=1, words=8, attention=attention))
    model = MCAN(settings.model, vocabulary=12, answers=5, cells=(4, 4), features=6)
    batch = {"features": torch.randn(2, 16, 6), "words": torch.randint(1, 12, (2, 7)), "targets": torch.rand(2, 5)}
    assert read_in(Answering(model, settings, {}), batch) == []


@pytest.mark.parametrize("pool", ["continuous-softmax", "discrete-softmax", "average"])
def test_a_step_of_classifying_reads_nothing(as_on_a_device, pool):
    from regard.classify.settings import ClassifierSettings
    from regard.classify.train import make_task

    task = make_task((1, 1, 6) if pool == "average" else (4, 4, 6), 3, ClassifierSettings(pool=pool), "")
    cells = (1, 1) if pool == "average" else (4, 4)
    assert read_in(task, {"features": torch.randn(2, *cells, 6), "labels": torch.tensor([0, 2])}) == []


def test_a_step_of_pretraining_reads_nothing(as_on_a_device):
    from regard.swav import preset
    from regard.swav._pretrain import build

    settings = preset("small", batch_size=4, prototypes=3, queue=0, backbone_options={"widths": [4], "depths": [1]})
    pictures = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    batch = {"pictures": pictures, "aspect": torch.ones(4), "index": torch.arange(4), "epoch": 0}
    assert read_in(build(settings), batch) == []
