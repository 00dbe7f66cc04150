"""Try regard's attentions in every architecture of the installed transformers, and write docs/hf-models.md.

python -m tools.hf_models                  # all of them: some minutes
python -m tools.hf_models --check          # the same, but only compare with the page
python -m tools.hf_models bert llama       # these, with details, without writing the page
"""

import argparse
import os
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "hf-models.md"

HEAD = """# Models of Hugging Face

What `attn_implementation="regard_..."` does in every architecture of transformers {version}: {count} types of models,
of which {built} were built as tiny models with random weights. `python -m tools.hf_models` wrote this page;
`make hf-models` repeats the run and compares.

In each of these models

- `regard_softmax` gives the outputs of eager attention to 1e-5, with and without padding, and after a step with a cache
  (to 5e-5 in `grounding-dino` and `mm-grounding-dino`, where eager and sdpa attention differ by 2e-5);
- the last token changes no earlier output, and a padded token no other output, unless it does with eager attention too;
- `output_attentions=True` returns weights wherever eager attention returns them;
- `regard_sparsemax` sets weights to zero that softmax does not; `learn_alpha` finds every attention that calls regard;
- attentions that do not call regard are named by a warning when the model is created.

Eager attention itself misreads a mask in two families: `grounding-dino` adds a boolean one to its scores, and
`nemotron_asr_streaming` takes a float one for a boolean one. There the comparison is with sdpa attention. `bark` has no
forward pass, it only generates: the first of its parts, `BarkSemanticModel`, is tested instead. The weights that eager
attention returns in `granite_swa` and `granitemoe_swa` sum to one, without what sinks take; those of regard do not.

Types are named as in `config.model_type`. Many are parts of others: `clip_vision_model` is the vision part of `clip`.
"""

SECTIONS = {
    "works": ("Works", "All attention of these calls regard."),
    "works in part": (
        "Works in part",
        "Some attention of these calls regard. The classes in the first column have hard-coded attention, which does "
        "not change.",
    ),
    "not reached": (
        "Not reached",
        "These have hard-coded attention and ignore `attn_implementation`: their outputs are those of "
        "eager attention, and they warn.",
    ),
    "refused": ("Refused", "These raise an error that says what to do instead."),
    "no call": ("Without attention", "Nothing to change: they warn after the first forward pass."),
    "not built": (
        "Not tried",
        "No tiny model of these was built: they need packages that were not installed, are not models by themselves, "
        "or need sizes and inputs that are not written yet. `regard.hf.check(model)` says which of their modules call "
        "regard.",
    ),
}


def try_one(model_type: str) -> dict:
    """The verdict on a model; includes a trial as a decoder where the model can be one."""
    import torch
    import transformers

    import regard.hf
    from tools.hf_zoo.compare import Verdict
    from tools.hf_zoo.shrink import tiny
    from tools.hf_zoo.trial import try_model

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    regard.hf.register()
    try:
        trial = try_model(model_type)
        if (
            trial.causal == "seen"
            and re.search("CausalLM|LMHead", trial.model)
            and "is_decoder" in dir(tiny(model_type))
        ):
            decoder = try_model(model_type, is_decoder=True)
            trial.wrong += decoder.wrong
            if decoder.verdict != trial.verdict or decoder.causal != "unseen":
                trial.wrong.append(f"as a decoder: {decoder.verdict}, the last token is {decoder.causal}")
    except Exception as error:
        trial = Verdict(model_type, verdict="crashed", wrong=[f"{type(error).__name__}: {error}"])
    return trial.as_dict()


def line(trial: dict) -> str:
    """The first column of a model's row on the page."""
    if trial["verdict"] == "refused":
        return trial["reason"].split(": got")[0]
    if trial["verdict"] == "not built":
        kind = trial["reason"].split(":")[0]
        return {"ImportError": "needs another package", "LookupError": "part of another model"}.get(kind, "")
    return ", ".join(trial["missed"])


def write(verdicts: list[dict], version: str) -> str:
    """The page."""
    built = sum(trial["verdict"] != "not built" for trial in verdicts)
    parts = [HEAD.format(version=version, count=len(verdicts), built=built)]
    for verdict, (title, words) in SECTIONS.items():
        inside = [trial for trial in verdicts if trial["verdict"] == verdict]
        parts.append(f"\n## {title}: {len(inside)}\n\n{words}\n\n")
        groups: dict[str, list[str]] = {}
        for trial in inside:
            groups.setdefault(line(trial), []).append(f"`{trial['type']}`")
        if set(groups) == {""}:
            parts.append(", ".join(groups[""]) + "\n")
        else:
            first = "reason" if verdict in ("refused", "not built") else "attention of its own"
            parts.append(f"| {first} | models |\n|---|---|\n")
            parts += [f"| {code(verdict, words)} | {', '.join(names)} |\n" for words, names in sorted(groups.items())]
    return "".join(parts)


def code(verdict: str, words: str) -> str:
    """Names of classes and arguments as code."""
    if verdict == "not built":
        return words or "no sizes or inputs yet"
    return ", ".join(f"`{word}`" for word in words.split(", "))


def read(page: str) -> dict[str, str]:
    """The verdict of every type on the page."""
    verdicts = {title: verdict for verdict, (title, _) in SECTIONS.items()}
    verdict_of = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        verdict = verdicts[section.split(":")[0]]
        for row in section.splitlines()[2:]:
            cells = row.split(" | ")
            if row.startswith(("`", "| ")) and "|---" not in row:
                verdict_of.update(dict.fromkeys(re.findall(r"`([^`]+)`", cells[-1]), verdict))
    return verdict_of


def try_all(names: Iterable[str], jobs: int) -> list[dict]:
    """Verdicts in the order of the names."""
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(try_one, names))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="types of models (default all)")
    parser.add_argument("--check", action="store_true", help="compare with the page and write nothing")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes (default 2)")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    from tools.hf_zoo.models import architectures

    verdicts = try_all(options.names or architectures(), options.jobs)
    wrong = [trial for trial in verdicts if trial["wrong"]]
    for trial in verdicts if options.names else wrong:
        print(*(f"{name}={value}" for name, value in trial.items() if value not in ("", [])))
    if not options.names:
        page = write(verdicts, transformers.__version__)
        if not options.check:
            PAGE.write_text(page)
        elif read(page) != read(PAGE.read_text()):
            changed = sorted(set(read(page).items()) ^ set(read(PAGE.read_text()).items()))
            print(f"{PAGE} differs; python -m tools.hf_models writes it again:", *changed[:20])
            return 1
    print(f"{len(verdicts)} types of models, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
