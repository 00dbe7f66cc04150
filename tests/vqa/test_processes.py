"""The gradient of two processes with half a batch each, averaged as DDP does, is that of one with the whole."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from regard.vqa.mcan import MCAN
from regard.vqa.settings import small, small_training
from regard.vqa.train import Answering


def task():
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 2, "feed_forward": 32, "flat": 16, "fused": 24, "words": 8}
    model = MCAN(small(**sizes), vocabulary=20, answers=5, cells=(4, 4), features=12)
    return Answering(model, small_training(model=model.settings), {})


def examples():
    generator = torch.Generator().manual_seed(1)
    return {
        "features": torch.randn(8, 4, 4, 12, generator=generator),
        "words": torch.randint(1, 20, (8, 6), generator=generator),
        "targets": torch.rand(8, 5, generator=generator),
    }


def worker(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mine = task()
    mine.loss({name: x[rank::2] for name, x in examples().items()})[0].backward()
    gradients = torch.cat([p.grad.flatten() for p in mine.parameters() if p.grad is not None])
    dist.all_reduce(gradients)
    if rank == 0:
        torch.save(gradients / 2, folder / "two.pt")
    dist.barrier()  # none leaves while another still hears from it
    dist.destroy_process_group()


def test_two_processes_have_the_gradient_of_one(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one = task()
    one.loss(examples())[0].backward()
    gradients = torch.cat([p.grad.flatten() for p in one.parameters() if p.grad is not None])
    mp.spawn(worker, (tmp_path,), nprocs=2)
    two = torch.load(tmp_path / "two.pt", weights_only=True)
    assert torch.allclose(gradients, two, atol=1e-5 * float(gradients.abs().max()))
