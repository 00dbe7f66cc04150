"""Shares of inputs in the outputs of a self-attention, pair by pair: what the measure means, and slow."""

import torch


def shares_by_pairs(shares, p, v, projection, before, bias):
    """For every output its parts as vectors, and the component of each along their sum."""
    batch, heads, cells, _ = p.shape
    out = torch.zeros_like(shares)
    for b in range(batch):
        for target in range(cells):
            vectors = []
            for source in range(cells):
                vector = sum(p[b, h, target, source] * (v[b, h, source] @ projection[h]) for h in range(heads))
                vectors.append(vector + before[b, target] + bias if source == target else vector)
            whole = sum(vectors)
            for source, vector in enumerate(vectors):
                out[b, source] += shares[b, target] * (vector @ whole) / (whole @ whole)
    return out
