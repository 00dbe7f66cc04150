"""Additive attention in a recurrent sequence-to-sequence model (Bahdanau et al., 2015), which learns to reverse.

The encoder reads digits from both sides; the decoder writes them in reverse order. At every step its last state s is
the query, and the encoder's states h are the keys and the values: scores v.tanh(W s + U h), weights by softmax or by
sparsemax, and their context. The picture shows the weights of one sequence: who reverses reads from the end.

    python examples/reverse.py --out reverse.png
"""

import argparse

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import regard
from regard.nn import Learned

DIGITS, WIDTH = 10, 48


class Reverser(nn.Module):
    """Digits (B, T) to scores of what to write (B, T, 10), and weights (B, T, T)."""

    def __init__(self, map: regard.Softmax | regard.Sparsemax) -> None:
        """Create the layers."""
        super().__init__()
        self.map, self.embedding = map, nn.Embedding(DIGITS + 1, WIDTH)  # the last is read before the first digit
        self.encoder = nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRUCell(2 * WIDTH, WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.affinity = Learned(regard.Additive, v=torch.empty(WIDTH).uniform_(-1, 1) / WIDTH**0.5)
        self.out = nn.Linear(2 * WIDTH, DIGITS)

    def forward(self, digits: Tensor, truth: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Equations (2.10) to (2.12) of the thesis; `truth` (B, T) is read in training in place of what was written."""
        h, last = self.encoder(self.embedding(digits))
        s, k = last.transpose(0, 1).flatten(1), self.key(h)
        written, scores, weights = torch.full((len(digits),), DIGITS), [], []
        for i in range(digits.shape[1]):
            p = regard.attention_weights(self.query(s).unsqueeze(1), k, self.affinity(), self.map)
            c = (p @ h).squeeze(1)
            s = self.decoder(torch.cat([self.embedding(written), c], -1), s)
            scores.append(self.out(torch.cat([s, c], -1)))
            weights.append(p.squeeze(1))
            written = scores[-1].argmax(-1) if truth is None else truth[:, i]
        return torch.stack(scores, 1), torch.stack(weights, 1)


def main() -> None:
    """Train with both maps on 4 to 12 digits, and draw the weights of 12."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="training steps (default 600)")
    parser.add_argument("--out", default="reverse.png", help="the picture (default reverse.png)")
    options = parser.parse_args()
    figure = Figure(figsize=(9, 5), layout="constrained")
    for map, ax in zip((regard.Softmax(), regard.Sparsemax()), figure.subplots(1, 2), strict=True):
        torch.manual_seed(0)
        model, name = Reverser(map), type(map).__name__.lower()
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for step in range(options.steps):
            digits = torch.randint(0, DIGITS, (64, 4 + step % 9))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(digits, digits.flip(1))[0].mT, digits.flip(1)).backward()
            optimizer.step()
        digits = torch.randint(0, DIGITS, (500, 12))
        with torch.no_grad():
            scores, weights = model(digits)
        right, read = (scores.argmax(-1) == digits.flip(1)).float().mean(), (weights > 0).sum(-1).float().mean()
        print(f"{name}: {right:.3f} of the digits right, {read:.1f} of 12 read to write one", flush=True)
        ax.imshow(weights[0], cmap="magma", vmin=0, vmax=1)
        ax.set(title=f"{name}: {right:.3f} right", xlabel="read", ylabel="written")
        for axis, line in ((ax.xaxis, digits[0]), (ax.yaxis, scores[0].argmax(-1))):
            axis.set_ticks(range(12), [str(digit) for digit in line.tolist()])
    figure.savefig(options.out, dpi=100)


if __name__ == "__main__":
    main()
