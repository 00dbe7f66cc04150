"""A part of what docs/hf-models.md says of transformers' architectures; `make hf-models` repeats it all."""

import re

import pytest

pytest.importorskip("transformers")
import transformers

from tools.hf_models import PAGE, read, try_one
from tools.hf_zoo.models import architectures

SAID = read(PAGE.read_text())
VERSION = re.search(r"transformers (\d+\.\d+\.\d+):", PAGE.read_text())[1]
SAME = pytest.mark.skipif(transformers.__version__ != VERSION, reason=f"the page is about transformers {VERSION}")

#: One or two of every kind, and each that once was silently wrong.
CASES = """
bert roberta electra gpt2 opt llama mistral gemma3_text stablelm qwen3_next jamba deepseek_v32 gpt_oss t5 bart whisper
vit yolos swin segformer siglip clip layoutlm phi4_multimodal_vision nemotron_asr_streaming_encoder bridgetower
pix2struct_vision_model maskformer mamba resnet
bloom codegen xglm gpt_neox_japanese trocr rembert megatron-bert roformer
mpnet luke tapas ibert squeezebert nystromformer convbert canine longformer led mvp vilt visual_bert
deberta deberta-v2 xlm swinv2 hiera vitdet cvt mobilevit lxmert blip
gptj falcon gpt_neo sam git data2vec-vision
"""


@SAME
def test_the_page_names_every_architecture():
    assert sorted(SAID) == architectures()
    built = [name for name, verdict in SAID.items() if verdict != "not built"]
    assert len(built) >= 500


@SAME
@pytest.mark.parametrize("name", CASES.split())
def test_the_page_is_true(name):
    found = try_one(name)
    assert found["wrong"] == []
    assert found["verdict"] == SAID[name]
