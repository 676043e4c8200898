"""What the real SGLang needs on a machine without a GPU, shared by the release lines.

``after_import`` patches a module right after its own code ran; ``kernels`` are the CUDA or AMX
kernels of ``sgl_kernel`` in plain torch; ``patches`` hold for every release.  What holds for one
release line only lives in that line's directory as ``sgl_release_patches``.
"""
