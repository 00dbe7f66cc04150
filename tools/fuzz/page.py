"""The API of the page by schemathesis: requests made from its own description, right and wrong ones."""

from __future__ import annotations

import contextlib
import random
from typing import Any


def operations() -> list[Any]:
    """The operations of the page with a model that answers at once; empty without schemathesis."""
    try:
        import schemathesis
    except ImportError:
        return []
    from fake_model import FakePredictor

    from regard.explore import create_app
    from regard.explore._samples import drawn_scenes

    app = create_app(FakePredictor(), {scene.name: scene for scene in drawn_scenes()}, model="fake")
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", app)
    return [result.ok() for result in schema.get_all_operations()]


def api(draw: random.Random, found: list[Any], cases: int = 4) -> dict[str, int]:
    """Some requests to one operation, each checked against the description: no status 500, and what is promised."""
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis.errors import Unsatisfiable
    from schemathesis.checks import not_a_server_error
    from schemathesis.generation import GenerationMode

    operation = draw.choice(found)
    mode = draw.choice([GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
    statuses: dict[str, int] = {}

    @seed(draw.getrandbits(32))
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def requests(case: Any) -> None:
        response = case.call(timeout=50)
        case.validate_response(response, checks=[not_a_server_error])
        name = f"{operation.method.upper()} {operation.path} {response.status_code}"
        statuses[name] = statuses.get(name, 0) + 1

    with contextlib.suppress(Unsatisfiable):  # an operation without arguments has no wrong ones
        requests()
    return statuses
