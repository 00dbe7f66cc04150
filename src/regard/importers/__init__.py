"""Weights of other projects' models, read into regard's modules: from tensors by name, never from a pickle."""

from regard.importers.alphas import entmax_alphas
from regard.importers.non_local import caffe2_nonlocal, mmcv_nonlocal

__all__ = ["caffe2_nonlocal", "entmax_alphas", "mmcv_nonlocal"]
