"""polycert: certified radii of neural networks in any l_p ball inside a box.

The public names are listed in `__init__.pyi` and imported when they are first used: `polycert --help` need not wait for
torch.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
