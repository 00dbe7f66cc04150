"""Weights of other people's code, in modules of regard. A weight that has no place is refused by name.

model = read_mcan("ckpt_small/epoch13.pkl")               # MILVLG's MCAN: a regard.vqa.mcan.MCAN
task = read_swav("swav_800ep_pretrain.pth.tar")           # facebook's SwAV: backbone, projection, prototypes
"""

from regard.importers.mcan import read_mcan
from regard.importers.swav import read_swav

__all__ = ["read_mcan", "read_swav"]
