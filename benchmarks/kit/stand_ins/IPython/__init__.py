"""Imported by SGLang for notebooks; a server calls nothing of it."""
