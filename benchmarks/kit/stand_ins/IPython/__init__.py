"""Imported by SGLang for notebooks; a server calls nothing of it."""  # noqa: N999 - the name it stands in for
