"""The order of samples in groups, written out: lists of the whole epoch."""

import torch

from regard.training import generator


def epoch_order(sizes, mixed, seed, epoch):
    """All samples of an epoch: shuffled groups, cut into windows, the samples of each window shuffled."""
    if len(sizes) <= mixed:
        return torch.randperm(sum(sizes), generator=generator(seed, epoch)).tolist()
    members, first = [], 0
    for size in sizes:
        members.append(list(range(first, first + size)))
        first += size
    groups = torch.randperm(len(sizes), generator=generator(seed, epoch, 601)).tolist()
    order = []
    for window, start in enumerate(range(0, len(groups), mixed)):
        samples = [sample for group in groups[start : start + mixed] for sample in members[group]]
        shuffling = torch.randperm(len(samples), generator=generator(seed, epoch, 602, window)).tolist()
        order += [samples[i] for i in shuffling]
    return order
