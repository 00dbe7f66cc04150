"""A web page to explore attention: ask a model where it looks, play with maps and densities, watch transport.

    regard explore [CHECKPOINT]

One static page, and a JSON API under it (`/api/openapi.json`).
"""

from regard.explore._app import create_app
from regard.explore._limits import Limits
from regard.explore._serve import serve

__all__ = ["Limits", "create_app", "serve"]
