"""The attention report: what was asked, what was answered and where each attention looked, in one file.

    write_report("report.html", [Entry(picture, question, predictions)])     # or .png, or .json
    write_run_report("out/vqa")                                              # of a run, with its accuracy first
    write_drawing("answer.png", Entry(picture, question, predictions))       # one question as a picture

The HTML is self-contained: it loads nothing, and can be sent by mail.
"""

from regard.report._entries import Entry, Predicted
from regard.report._pictures import check_drawing
from regard.report._run import RunReport, write_run_report
from regard.report._write import write_drawing, write_report

__all__ = ["Entry", "Predicted", "RunReport", "check_drawing", "write_drawing", "write_report", "write_run_report"]
