"""Linear forms: rows of coefficients over the value of one node of a graph.

A form holds, for every sample of a batch and every row, the coefficients of one linear function of a node's value
`[batch, *shape]`. How the coefficients are stored is the form's own business:

- `Identity`: the rows are the node's own entries;
- `Differences`: a row is one entry minus another (a margin between two classes);
- `Selected`: the rows are some of its entries, others for each sample;
- `Patches` and `SelectedPatches`: a row lives in a small window of an image (all or some neurons of a convolution);
- `Dense`: everything, the fallback that every form can turn into.

Nothing outside this folder asks which form it has: ops call `form.pull(op)`, and an op with a structure of its own
offers it through `pull_identity`, `pull_selected`, `pull_windowed` or `pull_differences`.
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
