"""The CSV log of a resumed run: columns, and rows that are dropped."""

import csv

from regard.training._log import CsvLog


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def log(path, start):
    return CsvLog(path, start, lambda name: path.with_name(f"{name}.csv"))


def test_a_resumed_log_keeps_its_columns_in_their_order(tmp_path):
    path = tmp_path / "log.csv"
    first = log(path, 0)
    first.write(1, {"loss": 0.5, "lr": 0.1})
    first.write(2, {"loss": 0.25, "lr": 0.1})
    again = log(path, 2)
    again.write(3, {"lr": 0.2, "loss": 0.125})  # in another order
    assert path.read_text().splitlines() == ["step,loss,lr", "1,0.5,0.1", "2,0.25,0.1", "3,0.125,0.2"]


def test_a_name_that_comes_later_is_a_column_that_earlier_rows_leave_empty(tmp_path):
    path = tmp_path / "log.csv"
    first = log(path, 0)
    first.write(1, {"loss": 0.5})
    first.write(2, {"loss": 0.25, "accuracy": 3})
    again = log(path, 2)
    again.write(4, {"loss": 0.1, "queue": 7})
    assert path.read_text().splitlines() == ["step,loss,accuracy,queue", "1,0.5,,", "2,0.25,3,", "4,0.1,,7"]


def test_rows_after_the_checkpoint_and_half_rows_are_dropped(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("step,loss\n1,0.5\n2,0.25\n3,0.125\n2")
    log(path, 2).write(3, {"loss": 1})
    assert [(row["step"], row["loss"]) for row in rows(path)] == [("1", "0.5"), ("2", "0.25"), ("3", "1")]
