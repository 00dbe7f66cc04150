"""The attention report: what was asked, what was answered and where each attention looked, in one file.

    write_report("report.html", [Entry(picture, question, predictions)])     # or .png, or .json

The HTML is self-contained: it loads nothing, and can be sent by mail.
"""

from regard.report._entries import Entry, Predicted
from regard.report._write import write_report

__all__ = ["Entry", "Predicted", "write_report"]
