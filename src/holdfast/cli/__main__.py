"""`python -m holdfast.cli`: the same as `holdfast`."""

from holdfast.cli.main import main

main(prog_name="holdfast")
