"""The page's first tab: what a place of a picture looks at, without a model and with one; API and real browser."""

import csv
import io
import json
from pathlib import Path

import pytest
import torch
from browsing import drawn, opened, quiet, served, settled, state, until, watched
from fastapi.testclient import TestClient
from PIL import Image

import regard
from regard.explore import Limits, create_app
from regard.explore._look import Looking
from regard.explore._samples import photograph
from regard.patches.photograph import describe_patches

FIRST = "#look-maps figure:first-child canvas"


def vision_model(heads=4):
    transformers = pytest.importorskip("transformers")
    from regard.looking import VisionModel

    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": heads, "intermediate_size": 48}
    sizes["hidden_size"] = 8 * heads
    model = transformers.ViTForImageClassification(
        transformers.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=7)
    )
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                x.normal_(std=0.5)
    return VisionModel.of(model)


@pytest.fixture(scope="module")
def model():
    return vision_model()


@pytest.fixture(scope="module")
def clients(model):
    limits = Limits(picture_bytes=400_000, picture_pixels=1_000_000)
    apps = (create_app(None, limits=limits), create_app(None, limits=limits, looking=Looking(model, "tiny")))
    return [TestClient(app, raise_server_exceptions=False) for app in apps]


def encoded(size=(60, 40), colour="white", kind="PNG"):
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    return file.getvalue()


def look(client, picture=None, sample="cat", **view):
    files = {"picture": ("a", picture, "image/png")} if picture is not None else {"none": (None, "")}
    data = {"view": json.dumps(view)} | ({} if picture is not None else {"sample": sample})
    return client.post("/api/look", data=data, files=files)


class TestApi:
    def test_without_a_model_weights_are_those_of_patches(self, clients):
        got = look(clients[0], place=[0.35, 0.375], alpha=1.7, scale=3).json()
        features = describe_patches(photograph().picture.float() / 255)
        scores = 3 * features[7 * 30 + 10] @ features.T
        assert got["grid"] == [20, 30]
        assert got["cell"] == [7, 10]
        maps = {one["label"]: one for one in got["maps"]}
        assert list(maps) == ["softmax", "entmax 1.7", "sparsemax", "TVmax 0.1", "normmax 2"]
        for label, expected in {
            "softmax": regard.softmax(scores),
            "entmax 1.7": regard.entmax(scores, 1.7),
            "TVmax 0.1": regard.tvmax(scores, 0.1, shape=(20, 30)),
        }.items():
            assert torch.tensor(maps[label]["weights"]).flatten() == pytest.approx(expected, abs=1e-5)
        assert got["multiples"] == got["answers"] == {}

    def test_with_a_model_multiples_are_the_models_own_weights(self, clients, model):
        got = look(clients[1], layer=1, head=2).json()
        assert got["cell"] is None
        view = model.view(photograph().picture)
        weights = view.seen[1].weights.rows([0])[0, :, 0, 1:].view(4, 4, 4)
        assert torch.tensor(got["multiples"]["model"][1]) == pytest.approx(16 * weights, abs=2e-3)
        expected = weights[2] / weights[2].sum()  # softmax of the scores of patches alone
        assert torch.tensor(got["maps"][0]["weights"]) == pytest.approx(expected, abs=1e-5)
        assert got["elsewhere"] == pytest.approx(1 - float(weights[2].sum()), abs=1e-5)
        assert sum(got["answers"]["model"].values()) < 1
        assert got["class_token"]

    def test_an_exchanged_map_changes_pictures_and_answers_and_is_taken_back(self, clients, model):
        before = model.model.config._attn_implementation
        own = look(clients[1], layer=0).json()
        got = look(clients[1], layer=0, exchange=True, alpha=2).json()
        assert set(got["answers"]) == {"model", "entmax-2"}
        assert got["answers"]["model"] == own["answers"]["model"] != got["answers"]["entmax-2"]
        zeros = [(torch.tensor(got["multiples"][name][0]) == 0).sum() for name in ("model", "entmax-2")]
        assert zeros[0] < zeros[1]
        assert model.model.config._attn_implementation == before

    def test_mass_in_a_region_against_chance_and_every_other_place(self, clients):
        left = [[0, 0], [0.5, 0], [0.5, 1], [0, 1]]
        got = look(clients[0], place=[0.1, 0.5], outline=left).json()["maps"][2]
        weights = torch.tensor(got["weights"])
        assert got["chance"] == pytest.approx(0.5)
        assert got["mass"] == pytest.approx(float(weights[:, :15].sum()), abs=1e-4)
        region = torch.zeros(20, 30)
        region[:, :15] = 1
        moved = [float((weights * region.roll((i, j), (0, 1))).sum()) for i in range(20) for j in range(30)]
        ends = torch.tensor(moved).quantile(torch.tensor([0.025, 0.975]))
        assert [got["low"], got["high"]] == pytest.approx(ends.tolist(), abs=1e-4)
        assert look(clients[0], outline=[[0.1, 0.1], [0.2, 0.2]]).json()["maps"][0]["mass"] is None

    @pytest.mark.parametrize("client", [0, 1])
    @pytest.mark.parametrize("size", [(1, 1), (600, 2), (64, 64)])
    def test_pictures_of_one_colour_and_any_shape(self, clients, client, size):
        got = look(clients[client], encoded(size))
        assert got.status_code == 200, got.text
        weights = torch.tensor(got.json()["maps"][0]["weights"])
        assert weights.sum() == pytest.approx(1, abs=1e-3)

    @pytest.mark.parametrize(
        "picture", [b"", b"not a picture", encoded()[:60], b"\x89PNG\r\n\x1a\n" + b"\0" * 99, encoded((1200, 1200))]
    )
    def test_a_broken_picture_is_one_line(self, clients, picture):
        for client in clients:
            got = look(client, picture)
            assert got.status_code in (413, 422)
            assert 10 < len(got.json()["error"]) < 200

    @pytest.mark.parametrize(
        "view", [{"place": [2, 0]}, {"alpha": 0.5}, {"outline": [[0, 0]] * 65}, {"no": 1}, {"head": -1}, {"layer": 1e9}]
    )
    def test_requests_out_of_bounds(self, clients, view):
        assert look(clients[1], **view).status_code == 422
        assert clients[0].post("/api/look", data={"view": "{"}, files={"n": (None, "")}).status_code == 422
        assert look(clients[0], sample="../x").status_code == 422

    def test_layers_and_heads_beyond_the_last_are_the_last(self, clients):
        got = look(clients[1], layer=99, head=99).json()
        assert (got["layer"], got["head"]) == (1, 3)

    def test_means_over_pictures(self, clients):
        got = clients[0].post("/api/means", json={"columns": {"a": [0.2, 0.4, 0.6], "b": [0.5, 0.5, 0.5]}}).json()
        assert got["a"]["mean"] == pytest.approx(0.4)
        assert got["a"]["low"] < 0.4 < got["a"]["high"]
        assert clients[0].post("/api/means", json={"columns": {"a": []}}).status_code == 422

    def test_what_is_kept_of_pictures_is_bounded(self, model, monkeypatch):
        looking = Looking(model)
        client = TestClient(create_app(None, looking=looking))
        monkeypatch.setattr("regard.explore._look.KEPT_VIEWS", 3)
        for shade in range(6):
            assert look(client, encoded(colour=(shade, 0, 0))).status_code == 200
        assert len(looking._views) == 3
        monkeypatch.setattr("regard.explore._look.KEPT_BYTES", 1)
        look(client, encoded())
        assert len(looking._views) == 1


@pytest.fixture(scope="module")
def addresses(browser, model):
    with served(create_app(None), create_app(None, looking=Looking(model, "tiny"))) as found:
        yield found


@pytest.fixture
def page(browser, addresses):
    with watched(browser, *addresses) as page:
        yield page


def titled(page, text):
    until(page, f"document.getElementById('look-title').textContent.includes({text!r})")


class TestInTheBrowser:
    def test_click_a_cell_and_draw_a_region(self, page, addresses):
        opened(page, addresses[0])
        page.wait_for_selector("#look-maps canvas")
        titled(page, "row 8, column 11 of 20")
        assert not page.locator("#no-model").is_visible()  # it would be empty
        assert page.locator("#look-maps h3").all_text_contents()[:4] == [
            "softmax",
            "entmax 1.5",
            "sparsemax",
            "TVmax 0.1",
        ]
        before, box = drawn(page, FIRST), page.locator("#look-canvas").bounding_box()
        page.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + 0.1 * box["height"])
        titled(page, "row 3, column 28 of 20")
        settled(page, FIRST, before)
        page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.2 * box["height"])
        page.mouse.down()
        for x, y in ((0.6, 0.2), (0.6, 0.7), (0.2, 0.7)):
            page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=6)
        page.mouse.up()
        page.get_by_text("in the region").first.wait_for()
        chance = page.locator("#look-maps figure").first.locator("dd").nth(3).text_content()
        assert 17 < float(chance.split()[0]) < 22
        assert state(page)["region"].count("~") > 5
        page.get_by_role("button", name="No region").click()
        page.get_by_text("in the region").first.wait_for(state="detached")

    def test_keyboard_alone(self, page, addresses):
        opened(page, addresses[0])
        titled(page, "row 8, column 11")
        page.locator("#look-canvas").focus()
        page.keyboard.press("ArrowRight")
        titled(page, "row 8, column 12")
        page.keyboard.press("Shift+ArrowDown")
        page.keyboard.press("Shift+ArrowRight")
        titled(page, "row 9, column 13")
        page.get_by_text("in the region").first.wait_for()
        quiet(page)
        assert page.locator("#look-maps figure").first.locator("dd").nth(3).text_content() == "0.7\u00a0%"  # 4 of 600
        page.keyboard.press("Escape")
        page.get_by_text("in the region").first.wait_for(state="detached")
        page.go_back()
        page.get_by_text("in the region").first.wait_for()

    def test_several_pictures_one_broken_a_table_and_files(self, browser, addresses):
        with watched(browser, *addresses, refusals=True) as page:
            opened(page, addresses[0])
            titled(page, "row 8, column 11")
            page.locator("#look-upload").set_input_files(
                [
                    {"name": "a.png", "mimeType": "image/png", "buffer": encoded((60, 40), "red")},
                    {"name": "no.png", "mimeType": "image/png", "buffer": b"\x89PNG\r\n\x1a\n" + b"\0" * 99},
                    {"name": 'b "two".png', "mimeType": "image/png", "buffer": encoded((40, 60), "blue")},
                ]
            )
            until(page, "document.querySelectorAll('#look-table tbody tr').length === 3")
            until(page, "document.getElementById('message').textContent.includes('no.png is not a picture')")
            until(page, "document.querySelector('#look-table tfoot td') !== null")
            assert "mean of 3" in page.locator("#look-table tfoot").text_content()
            with page.expect_download() as saved:
                page.get_by_role("button", name="CSV").click()
            with Path(saved.value.path()).open(newline="") as file:
                rows = list(csv.DictReader(file))
            assert len(rows) == 15
            assert {row["picture"] for row in rows} == {"cat", "a.png", 'b "two".png'}
            with page.expect_download() as saved:
                page.get_by_role("button", name="JSON").click()
            written = json.loads(Path(saved.value.path()).read_text())
            assert len(written["rows"]) == 15
            assert written["settings"]["alpha"] == 1.5
            page.get_by_role("button", name="a cat").click()
            until(page, "location.hash.includes('picture=cat')")

    def test_with_a_model_layers_heads_and_another_map(self, page, addresses):
        opened(page, addresses[1])
        titled(page, "the class token looks at: layer 1, the mean of 4 heads")
        assert page.get_by_role("radio", name="layer").count() == 10  # two layers of four heads and their mean
        before = drawn(page, FIRST)
        page.get_by_role("radio", name="layer 0, head 2").click()
        titled(page, "layer 0, head 2")
        settled(page, FIRST, before)
        page.keyboard.press("ArrowRight")
        titled(page, "layer 0, head 3")
        page.get_by_label("exchange the map").check()
        page.get_by_role("heading", name="entmax 1.5 in every layer").first.wait_for()
        assert page.locator("#look-answers-lists ol").count() == 2
        page.locator("#look-canvas").click(position={"x": 5, "y": 5})
        titled(page, "row 1, column 1 of 4")
        page.get_by_role("button", name="Class token").click()
        titled(page, "the class token")

    def test_twelve_heads_have_room_and_numbers(self, browser):
        app = create_app(None, looking=Looking(vision_model(heads=12), "twelve"))
        with served(app) as found, watched(browser, *found) as page:
            opened(page, found[0])
            titled(page, "the mean of 12 heads")
            assert page.evaluate(
                "[...document.querySelectorAll('#look-multiples > div')].every(e => e.scrollWidth <= e.clientWidth)"
            )
            numbers = page.locator(".multiples-row.heads span").all_text_contents()
            assert numbers == ["head", "mean", *map(str, range(12))]
            middles = """s => [...document.querySelectorAll(s)].map(e => {
                const { x, width } = e.getBoundingClientRect(); return x + width / 2; })"""
            columns = [
                page.evaluate(middles, selector) for selector in (".heads span", ".multiples-row:last-child > *")
            ]
            assert columns[0][1:] == pytest.approx(columns[1][1:], abs=1)

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_on_a_phone_with_a_finger(self, browser, addresses, scheme):
        phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
        with watched(browser, *addresses, color_scheme=scheme, **phone) as page:
            opened(page, addresses[1], "#exchange=1")
            titled(page, "class token")
            quiet(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            box = page.locator("#look-canvas").bounding_box()
            page.touchscreen.tap(box["x"] + box["width"] - 4, box["y"] + 4)
            titled(page, "row 1, column 4 of 4")
            assert page.locator(FIRST).evaluate("c => c.getBoundingClientRect().top") < 844
