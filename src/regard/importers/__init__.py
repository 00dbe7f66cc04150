"""Weights of other projects' models, in modules of regard. A weight that has no place is an error that names it.

model = read_mcan("ckpt_small/epoch13.pkl")               # MILVLG's MCAN: a regard.vqa.mcan.MCAN
task = read_swav("swav_800ep_pretrain.pth.tar")           # facebook's SwAV: backbone, projection, prototypes
"""

from regard.importers.alphas import entmax_alphas
from regard.importers.mcan import read_mcan
from regard.importers.non_local import caffe2_nonlocal, mmcv_nonlocal
from regard.importers.swav import read_swav

__all__ = ["caffe2_nonlocal", "entmax_alphas", "mmcv_nonlocal", "read_mcan", "read_swav"]
