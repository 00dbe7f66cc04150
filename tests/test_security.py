"""What SECURITY.md says of untrusted files: nothing in them is run, and the tests that it names are there."""

import ast
import hashlib
import io
import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard._problem import Problem
from regard.backbones import load_backbone, make_backbone, save_backbone
from regard.pictures import open_pictures, read
from regard.training import Checkpoint

ROOT = Path(__file__).parent.parent
SOURCE = Path(regard.__file__).parent
# Modules that run what they read.
RUN_WHAT_THEY_READ = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle", "yaml"}


def unsafe(code):
    """What in a program could run, or unpack, what an untrusted file says."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in RUN_WHAT_THEY_READ]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in RUN_WHAT_THEY_READ:
            found.append(node.module)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            given = {k.arg: ast.unparse(k.value) for k in node.keywords}
            if (
                called in ("eval", "exec", "compile", "__import__", "os.system", "os.popen")
                or (called == "torch.load" and given.get("weights_only") != "True")
                or (called in ("np.load", "numpy.load") and given.get("allow_pickle") != "False")
                or called.endswith((".extractall", ".extract", ".unpack_archive"))
                or given.get("shell") == "True"
                or given.get("trust_remote_code", "False") != "False"
            ):
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_source_runs_what_it_reads(path):
    assert unsafe(path.read_text()) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from joblib import load",
        "import yaml",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "np.load(f)",
        "numpy.load(f, allow_pickle=True)",
        "eval(text)",
        "exec(text)",
        "tar.extractall(folder)",
        "subprocess.run(text, shell=True)",
        "AutoModel.from_pretrained(n, trust_remote_code=True)",
    ],
)
def test_unsafe_code_is_seen(code):
    assert unsafe(code)
    assert not unsafe("torch.load(f, weights_only=True); model.eval(); np.load(f, allow_pickle=False); file.read()")


class Bomb:
    """A pickle of it makes a file when it is read."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return (Path.touch, (self.place,))


@pytest.fixture
def mark(tmp_path):
    """A file that must not come to be."""
    return tmp_path / "executed"


def test_the_bomb_goes_off_where_pickles_are_trusted(mark):
    file = io.BytesIO()
    torch.save({"a": Bomb(mark)}, file)
    file.seek(0)
    torch.load(file, weights_only=False)
    assert mark.exists()


def test_the_state_of_a_checkpoint_runs_nothing(tmp_path, mark):
    """Its sums are right: whoever writes a checkpoint writes those as well."""
    folder = tmp_path / "step-00000001"
    folder.mkdir()
    torch.save({"a": Bomb(mark)}, folder / "state.pt")
    sums = {"state.pt": hashlib.sha256((folder / "state.pt").read_bytes()).hexdigest()}
    (folder / "sums.json").write_text(json.dumps(sums))
    with pytest.raises(Exception, match="Weights only load failed"):
        Checkpoint(folder, 1).state()
    assert not mark.exists()


def test_array_files_run_nothing(tmp_path, mark):
    np.save(tmp_path / "a.npy", np.array([Bomb(mark)], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "b.npz", x=np.array([Bomb(mark)], dtype=object))
    for name in ("a.npy", "b.npz"):
        with pytest.raises(Problem, match=f"{name} is not an array that numpy can load without pickle"):
            open_pictures(tmp_path / name)
    assert not mark.exists()


def test_the_folder_of_a_transformers_model_runs_nothing(tmp_path, mark):
    """Neither its weights in the old format nor code that it brings."""
    config = {"model_type": "vit", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save({"a": Bomb(mark)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(Exception, match="Weights only load failed"):
        load_backbone(tmp_path)
    assert not mark.exists()
    (tmp_path / "pytorch_model.bin").unlink()
    (tmp_path / "mine.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Problem, match="is no backbone"):
        load_backbone(tmp_path)
    assert not mark.exists()


def test_a_saved_backbone_names_only_models(tmp_path):
    save_backbone(make_backbone("small", widths=[4], depths=[1]), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("pipeline", "ViTConfig", "nothing"):
        ours = {**config, "family": "transformers", "class": name}
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit", "regard": ours}))
        with pytest.raises(Problem, match=f"^{name} is no model of transformers"):
            load_backbone(tmp_path)


def test_pictures_of_kinds_that_start_programs_are_refused(tmp_path):
    """PostScript under the name of a PNG would start an interpreter."""
    file = tmp_path / "a.png"
    file.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(Problem, match="is not a picture that can be read"):
        read(file)


def test_shards_are_not_unpacked_and_follow_no_links(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "secret.png")
    link = tarfile.TarInfo("../a.png")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.png")
    for kind in ("", "gz"):
        with tarfile.open(tmp_path / f"a{kind}.tar", f"w:{kind}") as tar:
            tar.addfile(link)
    with pytest.raises(Problem, match="no pictures in it"):
        open_pictures(tmp_path / "a.tar")
    with pytest.raises(Problem, match="is not a plain tar"):
        open_pictures(tmp_path / "agz.tar")
    assert {p.name for p in tmp_path.iterdir()} == {"secret.png", "a.tar", "agz.tar"}


def test_tests_that_are_named_are_there():
    text = (ROOT / "SECURITY.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 8
    for file, test in named:
        assert not test or f"def {test}(" in (ROOT / file).read_text(), (file, test)
    for path in re.findall(r"`(src/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path
