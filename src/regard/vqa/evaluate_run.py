"""`regard evaluate` for models that answer: accuracy and attention quality of every split that is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard._problem import Problem
from regard.vqa.compare import Comparison
from regard.vqa.evaluate import Evaluation, evaluate_model
from regard.vqa.examples import Examples
from regard.vqa.features import FeatureStore, make_features
from regard.vqa.kinds import EVALUATED, Kind, MixtureSelected, parse
from regard.vqa.own import TRAIN, NoSplit, read_own
from regard.vqa.read import read_questions, splits_in, write_results
from regard.vqa.records import Records
from regard.vqa.results import Results
from regard.vqa.store import Run, load_run

_SPLITS = ("val", "test", "pairs", "test-dev")


def evaluate_run(
    model: Path | str, data: Path | str, attentions: Sequence[str | Kind] | None = None, out: Path | str | None = None
) -> str:
    """Evaluate a run on data in the form of VQA-v2, a JSONL or a CSV, and return the tables.

    Every split but the training one is answered with the model's own attention and with `attentions`; a file without
    splits as a whole, and it is said if pictures have the names of those that it was trained on. Features are those
    that the run was trained on if they hold the pictures, else they are made into the run's folder. With `out`, numbers
    (where answers are known) and answers are written: `SPLIT_results.json` is what the evaluation server takes.
    """
    run = load_run(model)
    own = run.model.attention
    others = EVALUATED if attentions is None else (*map(parse, attentions), MixtureSelected())
    kinds = list(dict.fromkeys(map(str, (own, *others))))
    parts = []
    for records in _splits(Path(data)):
        examples = Examples(records, _store_for(run, records), run.words, run.answers, run.model.settings.tokens)
        labelled = any(record.answers for record in examples.kept)
        found = {
            kind: evaluate_model(run.model, examples, run.answers, kind) for kind in (kinds if labelled else [own])
        }
        if labelled:
            parts.append(f"== {records.name}: {len(examples)} questions, trained with {own}\n\n{_tables(found)}")
        else:
            parts.append(f"== {records.name}: {len(examples)} questions without answers")
        pictures = {record.picture for record in examples.kept}
        if seen := run.trained_on(pictures):
            parts.append(f"Not new to it: {seen} of {len(pictures)} pictures have names that it was trained on.")
        if examples.records.skipped:
            parts.append(str(examples.records.skipped))
        if out is not None:
            if labelled:
                Results.of(records.name, found).write(Path(out))
            write_results(Path(out) / f"{records.name}_results.json", found[own].predictions.items())
    return "\n\n".join(parts)


def _tables(found: dict[str, Evaluation]) -> str:
    result = Comparison()
    for kind, evaluation in found.items():
        result.add(kind, evaluation.summary())
    return result.tables()


def _splits(data: Path) -> list[Records]:
    if data.is_file():
        splits = [split for split in splits_in(data) if split != TRAIN]
        if not splits and splits_in(data):
            raise NoSplit(f"{data} has only the split {TRAIN}. Evaluate on rows of another split, or on another file.")
        return [read_own(data, split) for split in splits] or [read_own(data, None)]
    found = []
    for split in _SPLITS:
        try:
            found.append(read_questions(data, split))
        except NoSplit:
            continue
    if not found:
        raise Problem(f"{data} has none of the splits {', '.join(_SPLITS)}. Give a folder in the form of VQA-v2.")
    return found


def _store_for(run: Run, records: Records) -> FeatureStore:
    wanted = {record.picture for record in records.records}
    known = run.folder.read_features()
    if known is not None and (known / "store.json").is_file():
        store = FeatureStore.open(known, expected=run.features)
        if wanted <= set(store.names):
            return store
    pictures = {name: path for name, path in records.pictures.items() if name in wanted}
    place = run.folder.own_features(records.name)
    return make_features(place, pictures, run.load_backbone(), stages=run.features.stages)[0]
