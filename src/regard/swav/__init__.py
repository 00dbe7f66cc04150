"""SwAV: a backbone from pictures without labels, by swapped assignments between views (Caron et al. 2020).

    folder = pretrain("photos/", preset="small", out="out/run", steps=3000)   # a path, a tensor or a source
    backbone = regard.backbones.load_backbone(folder)
    print(evaluate_backbone(backbone, regard.pictures.open_pictures("labelled/")).table())

The parts: `views` cuts the crops of a batch, `codes` assigns samples evenly to prototypes by Sinkhorn, `swapped_loss`
predicts codes from other views, `Queue` stores past embeddings, `Watch` warns of collapse.
"""

from typing import TYPE_CHECKING

from regard._lazy import lazily

if TYPE_CHECKING:
    from regard.swav._public import *  # noqa: F403
else:
    __getattr__, __dir__ = lazily(__name__)
