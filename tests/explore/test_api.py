"""The API under the page: right answers, clear refusals, and nothing on the disk."""

import io
import json
import math
import random
import tempfile
import threading
import time
from importlib.resources import files

import httpx
import numpy
import psutil
import pytest
import torch
from fake_model import FakePredictor
from fastapi.testclient import TestClient
from PIL import Image

from regard import continuous as C
from regard import entmax, sparsemax
from regard.explore import Limits, create_app
from regard.explore._samples import drawn_scenes

LIMITS = Limits(picture_bytes=400_000, picture_pixels=1_000_000, waiting=2, workers=1)
PAGE = [file.name for file in (files("regard.explore") / "static").iterdir()]
PLAY = {"blobs": [{"x": 0.3, "y": 0.35}, {"x": 0.7, "y": 0.6, "size": 0.08}]}


@pytest.fixture(scope="module")
def pictures():
    return {scene.name: scene for scene in drawn_scenes()}


@pytest.fixture
def model():
    return FakePredictor()


@pytest.fixture
def client(model, pictures):
    return TestClient(create_app(model, pictures, LIMITS, model="fake"), raise_server_exceptions=False)


def encoded(kind="PNG", mode="RGB", size=(12, 8), colour=0, **options):
    written = io.BytesIO()
    Image.new(mode, size, colour).save(written, kind, **options)
    return written.getvalue()


def ask(client, picture=None, question="is it bright?", **fields):
    files = {"picture": ("../../etc/passwd", picture, "image/png")} if picture is not None else None
    return client.post("/api/ask", data={"question": question} | fields, files=files or {"none": (None, "")})


class TestAsk:
    def test_answers_as_the_model_does(self, client, model, pictures):
        for attention in model.attentions:
            got = ask(client, sample="scene-1", attention=attention)
            wanted = model.ask(pictures["scene-1"].picture, "is it bright?", attention).to_json()
            assert got.status_code == 200
            assert got.text == json.dumps(wanted)
            assert "dur=" in got.headers["server-timing"]

    def test_says_its_attentions_in_words(self, client, model):
        said = client.get("/api/state").json()["model"]
        assert said == {"name": "fake", "attentions": list(model.attentions), "labels": model.labels, "words": []}

    def test_an_uploaded_copy_of_a_sample_gets_the_same_answer(self, client, pictures):
        file = client.get("/api/samples/scene-2").content
        assert ask(client, file).json() == ask(client, sample="scene-2").json()
        assert file == pictures["scene-2"].file

    @pytest.mark.parametrize(
        ("picture", "bright"),
        [
            (encoded(), False),
            (encoded("JPEG", "CMYK", colour=(0, 0, 0, 0)), True),
            (encoded("JPEG", "L", colour=255), True),
            (encoded("PNG", "I;16", colour=60000), True),
            (encoded("PNG", "RGBA", colour=(0, 0, 0, 0)), True),
            (encoded("WEBP", colour=(250, 250, 250)), True),
            (encoded("TIFF", colour=(250, 250, 250)), True),
            (encoded("GIF", "P", save_all=True, append_images=[Image.new("P", (12, 8), 255)]), False),
        ],
        ids=["png", "cmyk", "grey", "16-bit", "transparent", "webp", "tiff", "animated"],
    )
    def test_reads_pictures_of_many_kinds(self, client, picture, bright):
        got = ask(client, picture)
        assert got.status_code == 200, got.text
        assert got.json()["answer"] == ("yes" if bright else "no")

    def test_turns_a_picture_as_its_camera_was_held(self, client):
        picture = Image.new("L", (64, 32))
        picture.paste(255, (0, 0, 8, 32))
        exif = Image.Exif()
        exif[0x0112] = 6  # the left side is the top
        written = io.BytesIO()
        picture.save(written, "JPEG", exif=exif, quality=95)
        weights = torch.tensor(ask(client, written.getvalue()).json()["weights"])
        assert weights[0].sum() > 0.99

    @pytest.mark.parametrize(
        "picture",
        [
            b"",
            b"not a picture",
            b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
            b"<!doctype html><img src=x onerror=alert(1)>",
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            encoded(size=(300, 300), colour=(1, 2, 3))[:120],
            b"\x89PNG\r\n\x1a\n" + b"\0" * 100,
            encoded(size=(1200, 1200)),
            b"RIFF\0\0\0\0AVI LIST",
            numpy.random.RandomState(0).bytes(450_000),
        ],
        ids=["empty", "text", "svg", "html", "eps", "truncated", "broken", "pixels", "avi", "bytes"],
    )
    def test_says_in_one_line_what_is_wrong_with_a_picture(self, client, model, picture):
        got = ask(client, picture)
        assert got.status_code in (413, 422)
        assert 10 < len(got.json()["error"]) < 200
        assert "\n" not in got.json()["error"]
        assert "Traceback" not in got.text
        assert model.asked == 0

    @pytest.mark.parametrize(
        "fields",
        [
            {"question": "   "},
            {"question": "x" * 301},
            {"attention": "no such"},
            {"sample": "../../../etc/passwd"},
            {"sample": ""},
        ],
    )
    def test_refuses_what_is_not_there(self, client, fields):
        got = ask(client, **({"sample": "scene-4"} | fields))
        assert got.status_code == 422
        assert got.json()["error"]

    def test_a_question_in_unknown_words_is_told_with_known_ones(self, client):
        got = ask(client, sample="scene-1", question="Kalinka, kalinka!")
        assert got.status_code == 422
        assert got.json()["unknown"] == ["kalinka", "kalinka"]
        assert got.json()["known"] == ["bright", "dark"]
        assert "confidence" not in ask(client, sample="scene-1").text

    def test_a_body_that_never_said_its_size_is_cut_off(self, client):
        def pieces():
            yield b'--b\r\nContent-Disposition: form-data; name="picture"; filename="a"\r\n\r\n'
            for _ in range(100):
                yield b"\0" * 10_000

        got = client.post("/api/ask", content=pieces(), headers={"content-type": "multipart/form-data; boundary=b"})
        assert got.status_code == 413

    def test_uploads_never_touch_the_disk(self, pictures, monkeypatch):
        def written(self):
            raise AssertionError("written to the disk")

        monkeypatch.setattr(tempfile.SpooledTemporaryFile, "rollover", written)
        client = TestClient(create_app(FakePredictor(), pictures, Limits()))
        noise = numpy.random.RandomState(0).randint(0, 256, (900, 900, 3), dtype=numpy.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).save(file, "PNG")
        assert len(file.getvalue()) > 2_000_000
        assert ask(client, file.getvalue()).status_code == 200

    def test_without_a_model_says_how_to_get_one(self, pictures):
        client = TestClient(create_app(None, pictures, hint="make demo trains one."))
        assert client.get("/api/state").json()["model"] is None
        assert ask(client, sample="scene-4").json() == {"error": "make demo trains one."}
        assert client.post("/api/playground", json=PLAY).status_code == 200


class TestPage:
    def test_serves_its_own_files_and_nothing_else(self, client):
        page = client.get("/")
        assert page.status_code == 200
        assert "default-src 'self'" in page.headers["content-security-policy"]
        for name in PAGE:
            assert client.get(f"/{name}").status_code == 200
        for path in (
            "/_app.py",
            "/../_app.py",
            "/%2e%2e/_app.py",
            "/static/app.js",
            "/etc/passwd",
            "/api/samples/..%2fx",
        ):
            assert client.get(path).status_code == 404

    def test_loads_nothing_from_elsewhere(self, client):
        for name in ("", *PAGE):
            assert "://" not in client.get(f"/{name}").text

    def test_the_api_is_described(self, client):
        described = client.get("/api/openapi.json").json()
        assert {
            "/api/look",
            "/api/means",
            "/api/ask",
            "/api/playground",
            "/api/transport",
            "/api/assign",
            "/api/state",
        } <= set(described["paths"])
        body = described["paths"]["/api/ask"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
        assert set(body["properties"]) == {"question", "attention", "sample", "picture"}
        assert "503" in described["paths"]["/api/ask"]["post"]["responses"]

    def test_answers_only_to_its_own_name_and_page(self, pictures):
        client = TestClient(
            create_app(None, pictures, hosts=frozenset({"localhost"})), base_url="http://localhost:8000"
        )
        assert client.get("/api/state").status_code == 200
        assert client.get("/api/state", headers={"host": "evil.example"}).status_code == 400
        elsewhere = {"sec-fetch-site": "cross-site"}
        assert client.post("/api/playground", json=PLAY, headers=elsewhere).status_code == 403
        assert client.get("/api/state", headers=elsewhere | {"sec-fetch-mode": "cors"}).status_code == 403
        assert client.get("/", headers=elsewhere | {"sec-fetch-mode": "navigate"}).status_code == 200


def half(weights):
    """The share of the cells that holds half of the weight, cell by cell."""
    ordered, taken, area = sorted(weights.tolist(), reverse=True), 0.0, 0.0
    for weight in ordered:
        part = min(1.0, (0.5 - taken) / weight)
        taken, area = taken + part * weight, area + part
        if part < 1:
            break
    return area / len(ordered)


def half_of_a_paraboloid(density):
    """Of a paraboloid over an ellipse of area A, the mass within a part a of the area is 1 - (1 - a)^2."""
    return float(math.pi * density.support.axes.prod()) * (1 - math.sqrt(0.5))


class TestPlayground:
    def got(self, client, **changes):
        got = client.post("/api/playground", json=PLAY | changes)
        assert got.status_code == 200, got.text
        return got.json()

    def test_maps_and_densities_are_those_of_the_library(self, client):
        got = self.got(client, alpha=1.7, components=3)
        scores = torch.tensor(got["scores"], dtype=torch.float64).flatten()
        cells, weights = C.grid(14, 14), entmax(scores, 1.7)
        panels = got["panels"]
        assert torch.tensor(panels["sparsemax"]["weights"]).flatten() == pytest.approx(sparsemax(scores), abs=1e-5)
        assert torch.tensor(panels["entmax"]["weights"]).flatten() == pytest.approx(weights, abs=1e-5)
        wanted = C.match_moments(weights, cells, 2)
        (only,) = panels["paraboloid"]["density"]["components"]
        assert only["mean"] == pytest.approx(wanted.mean.tolist(), abs=1e-4)
        assert panels["paraboloid"]["density"]["family"] == "paraboloid"
        assert panels["sparsemax"]["half"] == pytest.approx(half(sparsemax(scores)), abs=1e-5)
        assert panels["paraboloid"]["half"] == pytest.approx(half_of_a_paraboloid(wanted), rel=0.03)
        assert panels["paraboloid"]["entropy"] == pytest.approx(float(wanted.entropy()) / math.log(2), abs=1e-3)
        axes = wanted.support.axes
        assert panels["paraboloid"]["support"] == pytest.approx(float(math.pi * axes.prod()), rel=0.03)
        assert len(panels["mixture"]["density"]["components"]) == 3

    def test_the_page_is_told_what_to_write_over_each_panel(self, client):
        panels = self.got(client, alpha=1.7, components=3)["panels"]
        selected = len(panels["selected"]["density"]["components"])
        assert [panels[name]["label"] for name in ("entmax", "tvmax", "mixture", "selected", "effective-gaussian")] == [
            "entmax 1.7",
            "TVmax",
            "3 components",
            f"selected K = {selected}",
            "effective weights, continuous softmax",
        ]

    def test_every_slider_changes_what_it_should_and_only_that(self, client):
        before = self.got(client)["panels"]
        changed = {
            "gamma": {"tvmax"},
            "eps": {"sinkhorn"},
            "functions": {"effective-gaussian", "effective-paraboloid"},
            "components": {"mixture"},
            "chosen": {"sinkhorn"},
        }
        for name, panels in changed.items():
            value = {"gamma": 0.5, "eps": 2.0, "functions": 5, "components": 3, "chosen": 1}[name]
            after = self.got(client, **{name: value})["panels"]
            assert {key for key in before if before[key] != after[key]} == panels, name

    def test_mass_in_the_box(self, client):
        everything = {"left": 0, "top": 0, "right": 1, "bottom": 1}
        half = {"left": 0, "top": 0.5, "right": 1, "bottom": 0}  # the upper half, corners in any order
        whole, upper = (self.got(client, box=b)["panels"] for b in (everything, half))
        for name in ("softmax", "sparsemax", "tvmax"):
            assert whole[name]["mass"] == pytest.approx(1, abs=1e-4)
            rows = torch.tensor(whole[name]["weights"])
            assert upper[name]["mass"] == pytest.approx(float(rows[:7].sum()), abs=1e-4)
        assert whole["mixture"]["mass"] == pytest.approx(1, abs=0.02)


class TestTransport:
    def test_the_distance_comes_down_to_the_exact_one(self, client):
        x, y = ([[i / 10, 0.1] for i in range(6)], [[i / 10 + 0.3, 0.1] for i in range(6)])
        got = client.post("/api/transport", json={"kind": "points", "x": x, "y": y, "eps": 0.01}).json()
        ladder = [rung["distance"] for rung in got["ladder"]]
        assert ladder == sorted(ladder, reverse=True)
        assert ladder[-1] == pytest.approx(0.3, abs=0.01)
        assert got["ladder"][0]["debiased"] == pytest.approx(0.3, abs=0.01)
        assert torch.tensor(got["plan"]).sum(1) == pytest.approx(torch.full((6,), 1 / 6), abs=1e-4)

    def test_histograms(self, client):
        a, b = [1, 1, 0, 0], [0, 0, 1, 1]
        asked = {"kind": "histograms", "a": a, "b": b, "eps": 0.002, "ladder": False}
        got = client.post("/api/transport", json=asked).json()
        assert got["exact"] == pytest.approx(0.5)
        assert got["distance"] == pytest.approx(0.5, abs=0.01)
        assert got["ladder"] is None

    def test_codes_share_the_batch_out(self, client):
        got = client.post("/api/assign", json={"iterations": 100, "eps": 0.3}).json()
        assert got["shares"] == pytest.approx([1 / 6] * 6, abs=0.01)
        assert max(got["nearest"]) > 0.3


class TestUnderLoad:
    @pytest.fixture
    def address(self, model, pictures):
        import uvicorn

        app = create_app(model, pictures, LIMITS)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        model.hold.clear()
        server.should_exit = True
        thread.join()

    def test_a_full_queue_says_busy_and_slow_answers_hold_up_nothing_else(self, address, model):
        statuses = []

        def asker():
            got = httpx.post(
                f"{address}/api/ask", data={"question": "q?", "sample": "scene-4"}, files={"n": (None, "")}, timeout=60
            )
            statuses.append((got.status_code, got.json()))

        model.hold.set()
        askers = [threading.Thread(target=asker) for _ in range(8)]
        for one in askers:
            one.start()
        deadline = time.monotonic() + 20
        while len(statuses) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        # One is being answered and two wait; the other five were told at once.
        assert [s for s, _ in statuses] == [503] * 5
        assert statuses[0][1] == {"error": "busy: ask again in a moment."}
        assert httpx.get(address, timeout=5).status_code == 200
        assert httpx.post(f"{address}/api/assign", json={}, timeout=20).status_code == 200
        model.hold.clear()
        for one in askers:
            one.join()
        assert sorted(s for s, _ in statuses) == [200] * 3 + [503] * 5
        assert (
            httpx.post(
                f"{address}/api/ask", data={"question": "q?", "sample": "scene-4"}, files={"n": (None, "")}
            ).status_code
            == 200
        )


def malformed(draw, client):
    """One request with something wrong about it, drawn at random."""
    path = draw.choice(["/api/ask", "/api/playground", "/api/transport", "/api/assign", "/api/state", "/", "/x"])
    picture = bytearray(encoded(draw.choice(["PNG", "JPEG", "GIF", "TIFF", "WEBP"]), size=(40, 30)))
    for _ in range(draw.randrange(1, 12)):
        picture[draw.randrange(len(picture))] = draw.randrange(256)
    picture = bytes(picture[: draw.randrange(1, len(picture) + 1)])
    values = [None, -1, 1e400, float("nan"), "x" * 500, [], {}, [[[]]], True, "\ud800", 10**40, {"x": {"y": []}}]
    kind = draw.randrange(7)
    if kind == 0:
        return client.post(
            "/api/ask", data={"question": draw.choice(["", "q", "\0", "é" * 200])}, files={"picture": ("a", picture)}
        )
    if kind == 1:
        return client.post(
            path, content=draw.randbytes(draw.randrange(400)), headers={"content-type": "application/json"}
        )
    if kind == 2:
        body = PLAY | {draw.choice(["alpha", "blobs", "box", "cells", "eps", "other"]): draw.choice(values)}
        return client.post("/api/playground", content=json.dumps(body), headers={"content-type": "application/json"})
    if kind == 3:
        body = {
            "kind": draw.choice(["points", "histograms", "x", None]),
            draw.choice(["x", "y", "a", "b"]): draw.choice(values),
        }
        return client.post("/api/transport", content=json.dumps(body), headers={"content-type": "application/json"})
    if kind == 4:
        odd = draw.choice(
            ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=b", "x/y"]
        )
        body = b"--b\r\nContent-Disposition: form-data; " + draw.randbytes(30) + b"\r\n\r\n" + picture + b"\r\n--b--"
        return client.post("/api/ask", content=body, headers={"content-type": odd})
    if kind == 5:
        body = draw.choice([b"[" * 20_000, b"9" * 20_000, b"{" + b'"a":' * 500, b"\xff\xfe", b"null", b'"text"', b""])
        return client.post(path, content=body, headers={"content-type": "application/json"})
    return client.request(
        draw.choice(["PUT", "DELETE", "PATCH", "OPTIONS", "GET"]), path + "?" + "a" * draw.randrange(999)
    )


def test_malformed_requests_get_clear_refusals_and_cost_no_memory(client):
    draw = random.Random(8)
    seen, grown = [], []
    for number in range(500):
        got = malformed(draw, client)
        seen.append(got.status_code)
        assert got.status_code < 500, got.text
        assert "Traceback" not in got.text
        if got.status_code >= 400:
            assert got.json()["error"]
        if number in (199, 499):
            grown.append(psutil.Process().memory_info().rss)
    assert sum(s >= 400 for s in seen) > 300
    assert grown[1] - grown[0] < 20e6
