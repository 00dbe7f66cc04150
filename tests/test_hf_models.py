"""A part of what docs/hf-models.md says of transformers' architectures; `make hf-models` repeats it all."""

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
import transformers
from transformers import CONFIG_MAPPING

from tools.hf_models import PAGE, read, try_one
from tools.hf_zoo.compare import distance
from tools.hf_zoo.models import architectures

SAID = read(PAGE.read_text())
VERSION = re.search(r"transformers (\d+\.\d+\.\d+):", PAGE.read_text())[1]
SAME = pytest.mark.skipif(transformers.__version__ != VERSION, reason=f"the page is about transformers {VERSION}")

#: One or two of every kind, and each that once was silently wrong.
CASES = """
bert roberta electra gpt2 opt llama mistral gemma3_text stablelm qwen3_next jamba deepseek_v32 gpt_oss t5 bart whisper
granite_swa gemma2 videoprism_text_model
vit yolos swin segformer siglip clip layoutlm phi4_multimodal_vision nemotron_asr_streaming_encoder bridgetower
pix2struct_vision_model maskformer mamba resnet
bloom codegen xglm gpt_neox_japanese trocr rembert megatron-bert roformer
mpnet luke tapas ibert squeezebert nystromformer convbert canine longformer led mvp vilt visual_bert
autoformer bark clvp omdet-turbo oneformer pp_doclayout_v2 superglue tvp vits zoedepth
deberta deberta-v2 xlm swinv2 hiera vitdet cvt mobilevit lxmert blip
gptj falcon gpt_neo sam git data2vec-vision
"""


@SAME
def test_the_page_names_every_architecture():
    assert sorted(SAID) == architectures()
    built = [name for name, verdict in SAID.items() if verdict != "not built"]
    assert len(built) >= 500


def adds_masks(file):
    """Whether the attentions of a file of models add a mask of transformers to scores, and none calls an interface."""
    source = file.read_text()
    added = re.search(r"\+=? *\(?[a-z_]*attention_mask|attention_mask *\+", source)
    return added and "masking_utils" in source and "ALL_ATTENTION_FUNCTIONS" not in source


@SAME
def test_every_model_that_adds_masks_by_code_of_its_own_was_built():
    """There a mask of booleans would be added as ones and zeros: the future and padding would be seen."""
    files = [x for x in Path(transformers.__file__).parent.glob("models/*/modeling_*.py") if adds_masks(x)]
    folders = {file.parent.name for file in files}
    types = [name for name in architectures() if CONFIG_MAPPING[name].__module__.split(".")[2] in folders]
    assert len(files) == 43
    assert [name for name in types if SAID[name] == "not built"] == ["speecht5_hifigan"]  # has no attention


def test_a_filled_place_hides_no_difference():
    x = torch.tensor([0.5, -1e4, torch.finfo(torch.float32).min])
    y = x + torch.tensor([1e-2, 0.0, 0.0])
    assert distance(x, y) == pytest.approx(1e-2)
    assert distance(x, x) == 0.0
    assert distance(100 * x[:1], 100 * y[:1]) == pytest.approx(2e-2)  # in units of what differs


@SAME
@pytest.mark.parametrize("name", CASES.split())
def test_the_page_is_true(name):
    found = try_one(name)
    assert found["wrong"] == []
    assert found["verdict"] == SAID[name]
