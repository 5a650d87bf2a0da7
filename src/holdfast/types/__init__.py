"""What a value is: declarations, Arrow types, stored descriptions, evolution.

Nothing here does I/O or knows of state. Imports only the floor: `errors`, `clock`.
"""
