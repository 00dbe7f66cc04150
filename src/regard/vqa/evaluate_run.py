"""`regard evaluate` for models that answer: accuracy and attention quality on every split but the training one."""

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
from regard.vqa.splits import SPLIT_NAMES
from regard.vqa.store import Run, load_run


def evaluate_run(
    model: Path | str,
    data: Path | str,
    attentions: Sequence[str | Kind] | None = None,
    out: Path | str | None = None,
    pictures: Path | str | None = None,
) -> str:
    """Evaluate a run on every split but the training one, and return the tables as text.

    A file without splits is evaluated as a whole; the text says how many pictures have names that the model was
    trained on. Stored features of the training are used if they have all pictures, else features are made into the
    run's folder.

    `model`: the folder of a run or of a saved model.
    `data`: a folder in the form of VQA-v2, a JSONL or a CSV.
    `attentions`: output attentions to evaluate with beside the model's and "mixture-selected"; default `EVALUATED`.
    `out`: a folder to write `SPLIT.json` (numbers, if the split has answers) and `SPLIT_results.json` (answers, as the
        evaluation server takes them) to; default None, nothing is written.
    `pictures`: the folder of the pictures; default None, beside the questions.
    """
    run = load_run(model)
    trained_with = run.model.attention
    others = EVALUATED if attentions is None else (*map(parse, attentions), MixtureSelected())
    kinds = list(dict.fromkeys(map(str, (trained_with, *others))))
    parts = []
    for records in _splits(Path(data), pictures):
        examples = Examples(records, _store_for(run, records), run.words, run.answers, run.model.settings.tokens)
        labelled = any(record.answers for record in examples.questions)
        evaluations = {
            kind: evaluate_model(run.model, examples, run.answers, kind)
            for kind in (kinds if labelled else [trained_with])
        }
        if labelled:
            title = f"== {records.name}: {len(examples)} questions, trained with {trained_with}"
            parts.append(f"{title}\n\n{_tables(evaluations)}")
        else:
            parts.append(f"== {records.name}: {len(examples)} questions without answers")
        names = {record.picture for record in examples.questions}
        if seen := run.trained_on(names):
            parts.append(f"Not new to it: {seen} of {len(names)} pictures have names that it was trained on.")
        if examples.records.skipped:
            parts.append(str(examples.records.skipped))
        if out is not None:
            if labelled:
                Results.of(records.name, evaluations).write(Path(out))
            write_results(Path(out) / f"{records.name}_results.json", evaluations[trained_with].predictions.items())
    return "\n\n".join(parts)


def _tables(evaluations: dict[str, Evaluation]) -> str:
    result = Comparison()
    for kind, evaluation in evaluations.items():
        result.add(kind, evaluation.summary())
    return result.tables()


def _splits(data: Path, pictures: Path | str | None) -> list[Records]:
    """The records of every split but the training one."""
    if data.is_file():
        splits = [split for split in splits_in(data) if split != TRAIN]
        if not splits and splits_in(data):
            raise NoSplit(f"{data} has only the split {TRAIN}. Evaluate on rows of another split, or on another file.")
        return [read_own(data, split, pictures) for split in splits] or [read_own(data, None, pictures)]
    records = []
    held_out = [split for split in SPLIT_NAMES if split != TRAIN]
    for split in held_out:
        try:
            records.append(read_questions(data, split, pictures))
        except NoSplit:
            continue
    if not records:
        raise Problem(f"{data} has none of the splits {', '.join(held_out)}. Give a folder in the form of VQA-v2.")
    return records


def _store_for(run: Run, records: Records) -> FeatureStore:
    """The features of the training if they have all pictures of the records, else newly made ones."""
    needed = {record.picture for record in records.records}
    folder = run.folder.read_features()
    if folder is not None and (folder / "store.json").is_file():
        store = FeatureStore.open(folder, expected=run.features)
        if needed <= set(store.names):
            return store
    pictures = {name: path for name, path in records.pictures.items() if name in needed}
    place = run.folder.own_features(records.name)
    return make_features(place, pictures, run.load_backbone(), stages=run.features.stages)[0]
