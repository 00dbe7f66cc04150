"""Large pictures: each is shrunk before the next is read, so that memory does not grow with their number of pixels."""

import weakref

import torch

from regard.backbones import make_backbone
from regard.pictures import square
from regard.swav._evaluate import gather
from regard.swav._pretrain import _recalibrate


class Large:
    """A source of pictures that counts how many of them are alive when the next one is read."""

    def __init__(self, count):
        self.count, self.alive, self.most = count, [], 0
        self.labels, self.classes = [i % 2 for i in range(count)], ["a", "b"]

    def __len__(self):
        return self.count

    def picture(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, 256, (3, 40, 60), dtype=torch.uint8, generator=generator)

    def __getitem__(self, index):
        self.most = max(self.most, sum(reference() is not None for reference in self.alive))
        picture = self.picture(index)
        self.alive.append(weakref.ref(picture))
        return picture

    def name(self, index):
        return str(index)


def test_an_evaluation_keeps_no_picture_at_full_size():
    source = Large(12)
    x, y = gather(source, 8, most=20, seed=0)
    assert x.shape == (12, 3, 8, 8)
    assert source.most <= 1
    expected = {tuple(square(source.picture(i), 8).flatten().tolist()): source.labels[i] for i in range(12)}
    assert [expected[tuple(picture.flatten().tolist())] for picture in x] == y.tolist()


def test_nor_do_the_statistics_of_batch_norms():
    source = Large(12)
    _recalibrate(make_backbone("small", widths=[4], depths=[1], size=8), source)
    assert source.most <= 1
