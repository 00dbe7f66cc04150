"""EfficientNet-Lite with its tables written out, and TensorFlow's "same" convolution as a loop over windows."""

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d

# Side of the picture, then width and number of blocks of the seven stages, of lite0 to lite4.
SIZES = (224, 240, 260, 280, 300)
WIDTHS = (
    (16, 24, 40, 80, 112, 192, 320),
    (16, 24, 40, 80, 112, 192, 320),
    (16, 24, 48, 88, 120, 208, 352),
    (24, 32, 48, 96, 136, 232, 384),
    (24, 32, 56, 112, 160, 272, 448),
)
DEPTHS = (
    (1, 2, 2, 3, 3, 4, 1),
    (1, 3, 3, 4, 4, 5, 1),
    (1, 3, 3, 4, 4, 5, 1),
    (1, 3, 3, 5, 5, 6, 1),
    (1, 4, 4, 6, 6, 8, 1),
)
KERNELS, STRIDES, EXPANSIONS = (3, 3, 5, 3, 5, 5, 3), (1, 2, 2, 2, 1, 2, 1), (1, 6, 6, 6, 6, 6, 6)


def same_borders(side: int, kernel: int, stride: int) -> tuple[int, int]:
    """The zeros on both sides, by the two cases of TensorFlow's manual."""
    if side % stride == 0:
        zeros = max(kernel - stride, 0)
    else:
        zeros = max(kernel - side % stride, 0)
    return zeros // 2, zeros - zeros // 2


def same_conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """A convolution (C, H, W) by (D, C, k, k), a window at a time; what lies outside of the map counts as zero."""
    _, height, width = x.shape
    kernel = weight.shape[-1]
    top, left = same_borders(height, kernel, stride)[0], same_borders(width, kernel, stride)[0]
    out = torch.zeros(len(weight), -(-height // stride), -(-width // stride), dtype=x.dtype)
    for i in range(out.shape[1]):
        for j in range(out.shape[2]):
            for a in range(kernel):
                for b in range(kernel):
                    row, column = i * stride + a - top, j * stride + b - left
                    if 0 <= row < height and 0 <= column < width:
                        out[:, i, j] += weight[:, :, a, b] @ x[:, row, column]
    return out


def blocks(number: int) -> list[tuple[int, int, int, int, int]]:
    """Inputs, outputs, kernel, stride and expansion of every block."""
    found, inputs = [], 32
    for width, depth, kernel, stride, expansion in zip(
        WIDTHS[number], DEPTHS[number], KERNELS, STRIDES, EXPANSIONS, strict=True
    ):
        for i in range(depth):
            found.append((inputs, width, kernel, stride if i == 0 else 1, expansion))
            inputs = width
    return found


def shapes(number: int) -> dict[str, tuple[int, ...]]:
    """The shape of every weight, by the names of the packages that bring weights, classifier left out."""
    found: dict[str, tuple[int, ...]] = {}

    def layer(conv: str, norm: str, *shape: int) -> None:
        found[f"{conv}.weight"] = shape
        found[f"{norm}.num_batches_tracked"] = ()
        found.update({f"{norm}.{part}": shape[:1] for part in ("weight", "bias", "running_mean", "running_var")})

    layer("_conv_stem", "_bn0", 32, 3, 3, 3)
    for i, (inputs, outputs, kernel, _, expansion) in enumerate(blocks(number)):
        name, wide = f"_blocks.{i}.", inputs * expansion
        if expansion > 1:
            layer(f"{name}_expand_conv", f"{name}_bn0", wide, inputs, 1, 1)
        layer(f"{name}_depthwise_conv", f"{name}_bn1", wide, 1, kernel, kernel)
        layer(f"{name}_project_conv", f"{name}_bn2", outputs, wide, 1, 1)
    layer("_conv_head", "_bn1", 1280, WIDTHS[number][-1], 1, 1)
    return found


def weights(number: int) -> dict[str, Tensor]:
    """Random weights as a package has them, scaled so that signals neither die nor saturate; with the classifier."""
    made: dict[str, Tensor] = {}
    for name, shape in shapes(number).items():
        if name.endswith("num_batches_tracked"):
            made[name] = torch.tensor(7)
        elif len(shape) == 4:
            made[name] = torch.randn(shape) * (shape[1] * shape[2] * shape[3]) ** -0.5
        else:
            made[name] = torch.rand(shape) + (0.5 if name.endswith(("_var", ".weight")) else -0.5)
    return {**made, "_fc.weight": torch.randn(1000, 1280), "_fc.bias": torch.randn(1000)}


def features(given: dict[str, Tensor], number: int, x: Tensor) -> Tensor:
    """The feature map (B, 1280, h, w) of pictures (B, 3, H, W) in evaluation, with the borders of pictures of SIZES."""
    side = SIZES[number]

    def layer(x: Tensor, conv: str, norm: str, stride: int = 1, active: bool = True) -> Tensor:
        weight = given[f"{conv}.weight"].to(x.dtype)
        before, after = same_borders(side, weight.shape[-1], stride)
        canvas = x.new_zeros(*x.shape[:2], before + x.shape[2] + after, before + x.shape[3] + after)
        canvas[:, :, before : before + x.shape[2], before : before + x.shape[3]] = x
        y = conv2d(canvas, weight, stride=stride, groups=x.shape[1] // weight.shape[1])
        mean, variance, scale, shift = (
            given[f"{norm}.{part}"].to(x.dtype) for part in ("running_mean", "running_var", "weight", "bias")
        )
        y = batch_norm(y, mean, variance, scale, shift, eps=1e-3)
        return y.clamp(0, 6) if active else y

    x = layer(x, "_conv_stem", "_bn0", 2)
    side = -(-side // 2)
    for i, (inputs, outputs, _, stride, expansion) in enumerate(blocks(number)):
        name = f"_blocks.{i}."
        y = layer(x, f"{name}_expand_conv", f"{name}_bn0") if expansion > 1 else x
        y = layer(y, f"{name}_depthwise_conv", f"{name}_bn1", stride)
        y = layer(y, f"{name}_project_conv", f"{name}_bn2", active=False)
        x = x + y if stride == 1 and inputs == outputs else y
        side = -(-side // stride)
    return layer(x, "_conv_head", "_bn1")
