"""SwAV, slowly: one view of one sample after the other."""

import math

import torch


def loss(scores, code, temperature):
    """-1/C sum over codes, mean over other views and samples, of sum_k q_k log p_k; plain loops."""
    views, batch, prototypes = scores.shape
    total = 0.0
    for s in range(len(code)):
        for v in range(views):
            if v == s:
                continue
            for n in range(batch):
                z = scores[v, n].double() / temperature
                top = max(float(x) for x in z)
                norm = top + math.log(sum(math.exp(float(x) - top) for x in z))
                for k in range(prototypes):
                    total -= float(code[s, n, k]) * (float(z[k]) - norm)
    return total / (len(code) * (views - 1) * batch)


def sinkhorn(scores, eps, iterations):
    """The published loop, in float64: columns (prototypes) and then rows (samples)."""
    q = torch.exp((scores.double() - scores.double().max()) / eps)
    for _ in range(iterations):
        q = q / q.sum(0, keepdim=True) / q.shape[1]
        q = q / q.sum(1, keepdim=True) / q.shape[0]
    return q * q.shape[0]


def resample(row, start, length, size):
    """One row of pixels, cut and resized as PIL's BILINEAR does it: a triangle as wide as a step, or a pixel."""
    step = length / size
    reach = max(1.0, step)
    out = []
    for i in range(size):
        at = start + (i + 0.5) * step
        weights = [max(0.0, 1 - abs(j + 0.5 - at) / reach) for j in range(len(row))]
        out.append(sum(w * float(x) for w, x in zip(weights, row, strict=True)) / sum(weights))
    return out
