"""A bench run as one page that needs nothing beside itself.

`run.py` reads a folder of `outdraft bench`; all figures come from `outdraft.bench.figures`, and
nothing here measures or sums anything. `charts.py` gives them places in pictures, `answers.py`
turns a trace into text with origins, `page.py` puts all of it into `templates/`, and `png.py` draws
the main chart as a bitmap. A section is one function that gives its content, or `None` where the
run has none, and one block in the template: a section without content is not there at all.
"""

from outdraft.report.page import render
from outdraft.report.run import Run, read_run

__all__ = ["Run", "read_run", "render"]
