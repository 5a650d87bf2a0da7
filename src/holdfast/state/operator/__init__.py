"""Operator state: lists, union lists and broadcast maps, and how they are dealt out again."""
