"""Generators of the pages of docs/ that are made from the code, a module each: `render()` is the page's text."""
