"""The application: one page, and the JSON API under it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Annotated, Any, Protocol

from fastapi import Body, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import JSONResponse
from torch import Tensor

import regard
from regard._problem import Problem
from regard.explore._arrival import Arrivals
from regard.explore._guard import Guard
from regard.explore._limits import Limits
from regard.explore._look import Looking, key_of, means, read_view
from regard.explore._playground import play
from regard.explore._requests import Answer, Batch, Columns, Histograms, LookAt, Play, Points, Trouble
from regard.explore._samples import SamplePicture, look_pictures
from regard.explore._transport import assign, move
from regard.explore._uploads import decode, read_form
from regard.explore._work import Busy, Workers
from regard.vqa.predict import NoKnownWord

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    413: {"model": Trouble, "description": "Larger than the server's limit"},
    422: {"model": Trouble, "description": "Something about the request is wrong; the message says what"},
    503: {"model": Trouble, "description": "Busy: ask again in a moment"},
}
PICTURE = {
    "sample": {"type": "string", "description": "the name of a picture that /api/state lists"},
    "picture": {"type": "string", "format": "binary", "description": "or a picture of your own"},
}


def _form(required: list[str], **fields: dict[str, str]) -> dict[str, Any]:
    """The description of a form with a picture and other fields."""
    schema = {"type": "object", "required": required, "properties": fields | PICTURE}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


FORM = _form(
    ["question"],
    question={"type": "string"},
    attention={"type": "string", "description": "one of those that /api/state lists"},
)
LOOK_FORM = _form([], view={"type": "string", "description": f"as JSON: {', '.join(LookAt.model_fields)}"})


class Answerer(Protocol):
    """A model that answers questions, from several threads at once: `regard.vqa.Predictor`."""

    @property
    def attentions(self) -> Sequence[str]:
        """The names of its attentions, that of the training first."""

    @property
    def labels(self) -> Mapping[str, str]:
        """From the name of an attention to its label on the page."""

    def ask(self, picture: Tensor, question: str, attention: str | None = None) -> Any:
        """A prediction, with `to_json()`."""


def create_app(
    predictor: Answerer | None = None,
    samples: dict[str, SamplePicture] | None = None,
    limits: Limits | None = None,
    *,
    hosts: frozenset[str] | None = None,
    model: str = "",
    hint: str = "",
    words: Sequence[str] = (),
    looking: Looking | None = None,
) -> FastAPI:
    """The application for one model, which all threads share.

    `predictor`: the model; default None: the page opens on a photograph to look at, and shows `hint`.
    `samples`: pictures to choose from, by name; default none.
    `limits`: of requests; default `Limits()`.
    `hosts`: host names that requests may have; default None, any.
    `model`: the name of the model on the page.
    `hint`: how to get a model.
    `words`: some that the model knows, for the page to offer; default none.
    `looking`: what looks at pictures; default patches by their colours, without a model.

    >>> app = create_app(hint="There is no model yet.")
    >>> "/api/playground" in app.openapi()["paths"]
    True
    """
    limits, samples, looking = limits or Limits(), samples or {}, looking or Looking()
    shown = look_pictures(samples.values())
    app = FastAPI(title="regard explore", version=regard.__version__, docs_url=None, redoc_url=None,
                  openapi_url="/api/openapi.json")  # fmt: skip
    app.add_middleware(GZipMiddleware, minimum_size=1000)
    arrivals = Arrivals(limits)
    app.add_middleware(Guard, arrivals=arrivals, hosts=hosts)
    _handle_errors(app)
    _serve_page(app, shown)
    answering = Workers(limits.workers, limits.waiting)
    playing = Workers(limits.workers, limits.waiting)
    seeing = Workers(limits.workers, limits.waiting)
    app.state.stop = lambda: [part() for part in (arrivals.stop, answering.stop, playing.stop, seeing.stop)]
    attentions = [] if predictor is None else list(predictor.attentions)
    labels = {} if predictor is None else {name: predictor.labels[name] for name in attentions}

    @app.get("/api/state", summary="What there is: the model, its attentions, pictures to choose from, limits")
    def state() -> dict[str, Any]:
        return {
            "version": regard.__version__,
            "model": {"name": model, "attentions": attentions, "labels": labels, "words": list(words)}
            if predictor
            else None,
            "hint": hint,
            "samples": [sample.to_json() for sample in samples.values()],
            "look": looking.describe()
            | {"samples": [{"name": sample.name, "label": sample.label} for sample in shown.values()]},
            "limits": {"bytes": limits.picture_bytes, "pixels": limits.picture_pixels,
                       "letters": limits.question_letters},
        }  # fmt: skip

    def chosen(
        fields: dict[str, str], upload: bytes | None, among: dict[str, SamplePicture]
    ) -> tuple[Callable[[], Tensor], str]:
        """What reads the picture of a form, and a name for it."""
        if upload is not None:
            return lambda: decode(upload, limits), key_of(upload)
        if fields.get("sample") in among:
            return lambda: among[fields["sample"]].picture, f"sample {fields['sample']}"
        raise Problem(f"there is no picture. Send one, or name a sample: {', '.join(among) or 'there are none'}.")

    def answer(predictor: Answerer, fields: dict[str, str], upload: bytes | None) -> dict[str, Any]:
        question, attention = fields.get("question", "").strip(), fields.get("attention") or None
        if not question:
            raise Problem("the question is empty. Ask something about the picture.")
        if len(question) > limits.question_letters:
            raise Problem(f"the question has more than {limits.question_letters} letters. Ask something shorter.")
        if attention is not None and attention not in attentions:
            raise Problem(f"there is no attention of that name. Choose one of {', '.join(attentions)}.")
        picture = chosen(fields, upload, samples)[0]()
        prediction: dict[str, Any] = predictor.ask(picture, question, attention).to_json()
        return prediction

    @app.post("/api/ask", responses={200: {"model": Answer}, **ERROR_RESPONSES}, openapi_extra=FORM,
              summary="Ask about a picture: the answer, and where the model looked")  # fmt: skip
    async def ask(request: Request) -> Response:
        if predictor is None:
            raise Problem(hint or "there is no model here.")
        fields, upload = await read_form(request, limits)
        with answering.place():
            return await _timed(answering, lambda: answer(predictor, fields, upload))

    def look(fields: dict[str, str], upload: bytes | None) -> dict[str, Any]:
        picture, key = chosen(fields, upload, shown)
        return looking.look(picture, key, read_view(fields.get("view", "")))

    @app.post("/api/look", responses=ERROR_RESPONSES, openapi_extra=LOOK_FORM,
              summary="What one place of a picture looks at: every map, layer and head")  # fmt: skip
    async def see(request: Request) -> Response:
        fields, upload = await read_form(request, limits)
        with seeing.place():
            return await _timed(seeing, lambda: look(fields, upload))

    @app.post("/api/means", responses=ERROR_RESPONSES, summary="Means over pictures, with 95 % intervals")
    async def mean(request: Columns) -> Response:
        with playing.place():
            return await _timed(playing, lambda: means(request))

    @app.post("/api/playground", responses=ERROR_RESPONSES, summary="Every map and density of a field of scores")
    async def playground(request: Play) -> Response:
        with playing.place():
            return await _timed(playing, lambda: play(request))

    @app.post(
        "/api/transport", responses=ERROR_RESPONSES, summary="The plan and the distance between points or histograms"
    )
    async def transport(request: Annotated[Points | Histograms, Body(discriminator="kind")]) -> Response:
        with playing.place():
            return await _timed(playing, lambda: move(request))

    @app.post("/api/assign", responses=ERROR_RESPONSES, summary="SwAV's assignment of a batch to prototypes")
    async def assignment(request: Batch) -> Response:
        with playing.place():
            return await _timed(playing, lambda: assign(request))

    return app


async def _timed(workers: Workers, job: Callable[[], dict[str, Any]]) -> Response:
    """The result of `job` as JSON, with its time in a `server-timing` header."""

    def timed() -> tuple[str, float]:
        start = time.perf_counter()
        text = json.dumps(job())
        return text, 1e3 * (time.perf_counter() - start)

    text, milliseconds = await workers.do(timed)
    return Response(text, media_type="application/json", headers={"server-timing": f"work;dur={milliseconds:.1f}"})


def _serve_page(app: FastAPI, samples: dict[str, SamplePicture]) -> None:
    """Serve the files of the page, read once, here: a request names one of them, and never a path."""
    folder = files("regard.explore") / "static"
    page = {f.name: (f.read_bytes(), MEDIA_TYPES[f.name.rpartition(".")[2]]) for f in folder.iterdir() if "." in f.name}

    def served(name: str) -> Response:
        if name not in page:
            raise HTTPException(404, "There is no such page.")
        content, kind = page[name]
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return served("index.html")

    @app.get("/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        return served(name)

    @app.get("/api/samples/{name}", summary="The file of a picture to choose", response_class=Response)
    async def sample(name: str) -> Response:
        if name not in samples:
            raise HTTPException(404, "There is no such picture.")
        return Response(samples[name].file, media_type=samples[name].kind, headers={"cache-control": "no-cache"})

    small = {name: sample.thumbnail() for name, sample in samples.items()}

    @app.get("/api/thumbnails/{name}", summary="A small copy of it", response_class=Response)
    async def thumbnail(name: str) -> Response:
        if name not in small:
            raise HTTPException(404, "There is no such picture.")
        return Response(small[name], media_type="image/jpeg", headers={"cache-control": "no-cache"})


def _handle_errors(app: FastAPI) -> None:
    """Every error is one line of JSON, without internal details."""

    @app.exception_handler(NoKnownWord)
    async def no_known_word(_: Request, error: NoKnownWord) -> Response:
        return JSONResponse({"error": str(error), "unknown": error.unknown, "known": error.examples}, 422)

    @app.exception_handler(Problem)
    async def problem(_: Request, error: Problem) -> Response:
        return JSONResponse({"error": str(error)}, 422)

    @app.exception_handler(Busy)
    async def busy(_: Request, __: Busy) -> Response:
        return JSONResponse({"error": "busy: ask again in a moment."}, 503, {"retry-after": "1"})

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body") or "the request"
        return JSONResponse({"error": f"{where[:100]}: {first['msg']}."}, 422)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, __: Exception) -> Response:
        return JSONResponse({"error": "something went wrong here; the server's log has the details."}, 500)
