"""Stands in for IPython.display."""


def HTML(*_args, **_kwargs):  # noqa: N802 - the name it stands in for
    raise RuntimeError("IPython is not in this kit")


display = HTML
