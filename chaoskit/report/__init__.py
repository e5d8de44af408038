"""The report: a pure function of a run's history, its control run's history and the probe results.

`summarise` computes every figure once; `write_reports` lays the summary out as HTML, Markdown, JUnit XML and JSON.
"""

from chaoskit.report.conclusion import conclude, residue_of
from chaoskit.report.model import Conclusion, Summary
from chaoskit.report.summary import summarise
from chaoskit.report.write import write_reports

__all__ = ["Conclusion", "Summary", "conclude", "residue_of", "summarise", "write_reports"]
