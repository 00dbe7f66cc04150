"""Visual attention: affinities, maps and expectations, exact, fast and differentiable."""

from typing import TYPE_CHECKING

from regard._lazy import lazily

__version__ = "0.1.0"

if TYPE_CHECKING:
    from regard._public import *  # noqa: F403
else:
    __getattr__, __dir__ = lazily(__name__)
