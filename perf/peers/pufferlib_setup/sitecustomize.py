"""Read by Python while PufferLib is built: its setup.py, told NO_OCEAN=1, uses a name that it never defines."""

import builtins

vars(builtins)["c_extension_paths"] = []
