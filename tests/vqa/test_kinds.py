"""Kinds of output attention: one value for one thing, one place for its name, and an error that says what to write."""

import ast
import dataclasses
import math
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard.cli import application
from regard.vqa import kinds
from regard.vqa.kinds import (
    KINDS,
    NAMES,
    Continuous,
    Discrete,
    Fitting,
    Kind,
    MixtureOf,
    MixtureSelected,
    named_map,
    parse,
)
from regard.vqa.output import OutputAttention
from regard.vqa.settings import ModelSettings

WRITTEN = {
    "discrete-softmax": Discrete("softmax"),
    "discrete-sparsemax": Discrete("sparsemax"),
    "discrete-entmax": Discrete("entmax-1.5"),
    "discrete-entmax-1.3": Discrete("entmax-1.3"),
    "discrete-tvmax": Discrete("tvmax-0.1"),
    "discrete-tvmax-0": Discrete("tvmax-0"),
    "continuous-softmax": Continuous("softmax"),
    "continuous-sparsemax": Continuous("sparsemax"),
    "continuous-entmax": Continuous("entmax-1.5"),
    "continuous-entmax-2.5": Continuous("entmax-2.5"),
    "mixture-1": MixtureOf(1),
    "mixture-12-sparse": MixtureOf(12, sparse=True),
    "mixture-3-paraboloids": MixtureOf(3, family="paraboloid"),
    "mixture-4-paraboloids-sparse": MixtureOf(4, sparse=True, family="paraboloid"),
    "mixture-selected": MixtureSelected(),
    "mixture-selected-0.1": MixtureSelected(0.1),
    "mixture-selected-0.5": MixtureSelected(0.5),
    "mixture-selected-0.0000001": MixtureSelected(1e-7),
    "mixture-selected-0.1234567890123": MixtureSelected(0.1234567890123),
}


@pytest.mark.parametrize(("name", "kind"), WRITTEN.items())
def test_a_name_and_its_value(name, kind):
    assert parse(name) == kind == parse(kind)
    assert str(kind) == name
    assert hash(parse(name)) == hash(kind)
    assert f"{type(kind).__name__}(" in repr(kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind.other = 1


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("discrete-entmax-1.5", "discrete-entmax"),
        ("discrete-entmax-2.0", "discrete-sparsemax"),
        ("continuous-entmax-1.50", "continuous-entmax"),
        ("continuous-entmax-2", "continuous-sparsemax"),
        ("continuous-entmax-1", "continuous-softmax"),
        ("mixture-selected-0.10", "mixture-selected-0.1"),
        ("mixture-selected-1.00", "mixture-selected-1"),
    ],
)
def test_every_spelling_of_one_kind_is_one_value(spelled, name):
    assert parse(spelled) == parse(name)
    assert str(parse(spelled)) == name
    assert ModelSettings(attention=spelled) == ModelSettings(attention=parse(name)) == ModelSettings(attention=name)


UNKNOWN = """
    softmax mixture-0 mixture-x mixture-2-dense discrete-mean discrete-softmax-2 continuous continuous-mean
    continuous-entmax-x mixture-4-sparse-paraboloids mixture-4-paraboloid mixture-selected-paraboloids
    mixture-selected- mixture-selected--1 discrete-entmax-1e3 discrete-entmax-nan
"""


@pytest.mark.parametrize("name", ["", *UNKNOWN.split()])
def test_an_unknown_name_says_what_can_be_written(name):
    with pytest.raises(ValueError, match=rf"^attention: got {re.escape(repr(name))}, expected one of ") as caught:
        parse(name)
    assert "\n" not in str(caught.value)
    assert all(known in str(caught.value) for known in NAMES)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: parse("discrete-entmax-0.5"), "alpha"),
        (lambda: Continuous("tvmax"), "map"),
        (lambda: parse("continuous-entmax-3.1"), "alpha"),
        (lambda: parse("continuous-entmax-0.5"), "alpha"),
        (lambda: MixtureOf(0), "components"),
        (lambda: MixtureOf(2, family="cosine"), "family"),
        (lambda: ModelSettings(basis="cosine"), "basis"),
        (lambda: MixtureSelected(-1.0), "price"),
        (lambda: MixtureSelected(math.nan), "price"),
        (lambda: Fitting(-1), "price"),
        (lambda: Fitting(em_iterations="many"), "em_iterations"),
        (lambda: Fitting(em_iterations=0), "em_iterations"),
        (lambda: ModelSettings(basis="thesis-50"), "basis"),
        (lambda: ModelSettings(placement="edge"), "placement"),
        (lambda: ModelSettings(ridge_penalty=0), "ridge_penalty"),
        (lambda: ModelSettings(price=-1), "price"),
        (lambda: ModelSettings(em_iterations="many"), "em_iterations"),
        (lambda: ModelSettings(whiten=True), "whiten"),
        (lambda: named_map("tvmax"), "map"),
        (lambda: ModelSettings(map="tvmax"), "map"),
        (lambda: ModelSettings(map="entmax-0.5"), "alpha"),
        (lambda: ModelSettings(attention="entmax"), "attention"),
    ],
)
def test_values_are_checked(make, argument):
    with pytest.raises(ValueError, match=f"^{argument}: got "):
        make()


def test_names_of_maps():
    s, mask = torch.randn(3, 12), torch.rand(3, 12) < 0.8
    expected = {
        "softmax": regard.softmax,
        "sparsemax": regard.sparsemax,
        "entmax": partial(regard.entmax, alpha=1.5),
        "entmax-1.3": partial(regard.entmax, alpha=1.3),
        "tvmax": partial(regard.tvmax, gamma=0.1, shape=(3, 4)),
        "tvmax-0.7": partial(regard.tvmax, gamma=0.7, shape=(3, 4)),
    }
    for name, wanted in expected.items():
        spelled, map_ = named_map(name, (3, 4))
        assert spelled == name
        assert torch.equal(map_(s, mask=mask), wanted(s, mask=mask))


def test_labels_tell_kinds_apart():
    labels = [kind.label for kind in (*KINDS, *WRITTEN.values())]
    assert len(set(labels)) == len({*KINDS, *WRITTEN.values()})
    said = {name: parse(name).label for name in ("discrete-softmax", "discrete-tvmax", "mixture-2", "mixture-selected")}
    assert list(said.values()) == ["discrete softmax", "TVmax", "2 components", "selected K"]


def test_a_module_takes_a_name_or_a_value():
    pool = OutputAttention(6, (3, 3), MixtureOf(2)).eval()
    x = torch.randn(2, 9, 6)
    assert torch.equal(pool(x).context, pool(x, kind="mixture-2").context)
    assert torch.equal(pool(x, kind=Discrete("entmax-1.3")).context, pool(x, kind="discrete-entmax-1.3").context)
    assert not torch.equal(pool(x, kind="discrete-entmax-1.3").context, pool(x, kind="discrete-entmax").context)
    looked = pool(x, kind="continuous-entmax-1.7")
    assert looked.density.alpha == 1.7
    assert not torch.equal(looked.context, pool(x, kind="continuous-softmax").context)
    assert "mixture-2, 3 x 3 cells" in repr(pool)


def test_the_command_line_takes_its_lists_from_there():
    said = " ".join(
        CliRunner(env={"COLUMNS": "300", "TERM": "dumb"}).invoke(application(), ["ask", "--help"]).output.split()
    )
    assert all(name in said.replace(" │ │ ", " ") for name in NAMES)
    assert all(isinstance(kind, Kind) for listed in (kinds.COMPARED, kinds.EVALUATED, kinds.DEMO) for kind in listed)


def test_no_list_of_kinds_is_written_twice():
    """Outside of kinds.py a file names at most one kind: a default. In what it does; its help and docstrings may."""
    folder = Path(regard.__file__).parent
    name = re.compile(r"(discrete|continuous|mixture)-(softmax|sparsemax|entmax|tvmax|selected|\d)[\w.-]*")
    for path in folder.rglob("*.py"):
        if path.name != "kinds.py":
            strings = [n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)]
            assert len({s for s in strings if isinstance(s, str) and name.fullmatch(s)}) <= 1, path
    labels = re.compile("|".join(re.escape(kind.label) for kind in KINDS if kind.label != "TVmax"))
    for path in folder.rglob("*.js"):
        assert not name.search(path.read_text()), path
        assert not labels.search(path.read_text()), path  # the server sends them


def test_the_table_in_the_docs_has_every_kind():
    page = (Path(__file__).parent.parent.parent / "docs" / "vqa.md").read_text()
    rows = re.findall(r"^\| (`.*?) \| `(.*?)` \|", page.partition("| name | value |")[2], re.MULTILINE)
    names = {name for first, _ in rows for name in re.findall(r"`(.*?)`", first)}
    assert names >= set(NAMES)
    assert all(str(parse(name)) == name for name in names)
    values = {Discrete, Continuous, MixtureOf, MixtureSelected}
    assert {value.partition("(")[0] for _, value in rows} == {kind.__name__ for kind in values}
    assert all(f"`{eval(value)}`" in first for first, value in rows)
