"""The command sets for a cluster what a session on a cluster is checked for."""

from __future__ import annotations

from holdfast.cli.run import ON_A_CLUSTER
from holdfast.spark.session import CLUSTER_SETTINGS


def test_run_sets_what_pinning_needs() -> None:
    needed = {key: wanted for key, (wanted, _) in CLUSTER_SETTINGS.items()}
    assert needed == ON_A_CLUSTER
