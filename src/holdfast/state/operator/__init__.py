"""Operator state: lists, union lists and broadcast maps, and their redistribution."""
