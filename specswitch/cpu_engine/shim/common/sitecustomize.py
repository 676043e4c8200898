"""Run by every Python process whose PYTHONPATH holds this shim, spawned scheduler processes included.

Registers the patches; nothing of torch or SGLang is imported before SGLang itself asks for it.
"""

import sgl_on_cpu.patches  # noqa: F401
import sgl_release_patches  # noqa: F401
