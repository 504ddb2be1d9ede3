"""Linear forms: rows of coefficients over the value of one node of a graph.

A form holds one linear function of a node's value `[batch, *shape]` for every sample and every row. The classes differ
in how they store the coefficients:

- `Identity`: the rows are all entries of the node;
- `Selected`: the rows are some entries of the node, chosen for each sample;
- `Differences`: each row is one entry minus another (the margin between two classes);
- `Patches` and `SelectedPatches`: the coefficients of a row are in a small window of an image (all units of a
  convolution, or some);
- `Scaled`: rows that all samples share, times factors that they do not;
- `Dense`: all coefficients, written out. Every form can be converted to it.

No code outside of this folder asks which class a form has. Ops call `form.pull(op)`, and an op that can keep a
structure does so in `pull_identity`, `pull_selected`, `pull_windowed` or `pull_differences`.
"""

from polycert.forms.form import Dense, Form, Pullable, Scaled, Shape
from polycert.forms.identity import Differences, Identity, Selected
from polycert.forms.patches import Patches, SelectedPatches, Windowed

__all__ = [
    "Dense",
    "Differences",
    "Form",
    "Identity",
    "Patches",
    "Pullable",
    "Scaled",
    "Selected",
    "SelectedPatches",
    "Shape",
    "Windowed",
]
