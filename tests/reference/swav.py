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


def teacher_centering(logits, temperature, iterations, shift=None):
    """The centering of DINOv2's and iBOT's teacher from its description, in the dtype of the logits, entry by entry
    of the plan: exponentials, all over their sum; prototypes to the same share, samples to the same share, in turn.

    `shift`: what is subtracted from the logits first: "batch", "row", or None, as described.
    """
    if shift is not None:
        logits = logits - (logits.max() if shift == "batch" else logits.max(1, keepdim=True).values)
    plan = torch.exp(logits / temperature)
    samples, prototypes = plan.shape
    plan = plan / plan.sum()
    for _ in range(iterations):
        for k in range(prototypes):
            plan[:, k] = plan[:, k] / plan[:, k].sum() / prototypes
        for n in range(samples):
            plan[n] = plan[n] / plan[n].sum() / samples
    return plan * samples


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


def assigned_loss(scores, labels, temperature):
    """-log softmax of the assigned prototype, averaged over views and samples with an assignment; plain loops."""
    terms = []
    for view in scores.double():
        for row, label in zip(view, labels.tolist(), strict=True):
            if label >= 0:
                z = [float(x) / temperature for x in row]
                terms.append(max(z) + math.log(sum(math.exp(x - max(z)) for x in z)) - z[label])
    return sum(terms) / len(terms) if terms else 0.0


def spherical_kmeans(rows, centroids, iterations):
    """Lloyd's algorithm by cosine, row by row; a centroid without rows stays."""
    rows = [[float(x) for x in row] for row in rows.double()]
    centroids = [[float(x) for x in row] for row in centroids.double()]

    def nearest(row):
        cosines = [sum(a * b for a, b in zip(row, c, strict=True)) for c in centroids]
        return cosines.index(max(cosines))

    for _ in range(iterations):
        labels = [nearest(row) for row in rows]
        for k in range(len(centroids)):
            members = [row for row, label in zip(rows, labels, strict=True) if label == k]
            total = [sum(column) for column in zip(*members, strict=True)] if members else [0.0]
            length = math.sqrt(sum(x * x for x in total))
            if length > 0:
                centroids[k] = [x / length for x in total]
    return torch.tensor(centroids, dtype=torch.float64), [nearest(row) for row in rows]


def larc(w, gradients, lr, momentum, decay, trust):
    """apex's LARC without clipping around torch's SGD, weight by weight: the weights after each gradient."""
    w, speed, path = [float(x) for x in w], [0.0] * len(w), []
    for g in gradients:
        g = [float(x) for x in g]
        size, slope = (math.sqrt(sum(x * x for x in v)) for v in (w, g))
        if size != 0 and slope != 0:
            rate = trust * size / (slope + size * decay + 1e-8)
            g = [rate * (x + decay * y) for x, y in zip(g, w, strict=True)]
        speed = [momentum * v + x for v, x in zip(speed, g, strict=True)]
        w = [x - lr * v for x, v in zip(w, speed, strict=True)]
        path.append(w)
    return torch.tensor(path, dtype=torch.float64)


def learning_rates(steps, warmup, lr, start, final):
    """The published list of learning rates: evenly spaced from `start` to `lr`, both included, then half a cosine."""
    rising = [start + (lr - start) * i / (warmup - 1) for i in range(warmup)]
    rest = steps - warmup
    return rising + [final + 0.5 * (lr - final) * (1 + math.cos(math.pi * t / rest)) for t in range(rest)]
