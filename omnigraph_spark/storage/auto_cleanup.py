"""Take Lance's auto-cleanup settings off a dataset.

The engine's datasets carry them, and Lance then deletes old versions during a commit without
knowing which ones `__manifest` still pins (FORMAT, "Tree"). So they go before our first commit to a
dataset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lance import LanceDataset

_PREFIX = "lance.auto_cleanup."


def keys(dataset: LanceDataset) -> list[str]:
    """Return the auto-cleanup keys in the dataset's config, sorted."""
    return sorted(key for key in dataset.config() if key.startswith(_PREFIX))


def strip(dataset: LanceDataset) -> bool:
    """Remove the auto-cleanup keys in one commit; True if there were any.

    Runs on the driver. `dataset` then stands at the version made, which isn't the next one if
    somebody committed in between (PROTOCOL 11): callers that need contiguity compare versions.

    Raises:
        OSError, ValueError: from Lance, untranslated, since callers tell conflicts apart.
    """
    present = keys(dataset)
    if present:
        dataset.delete_config_keys(present)
    return bool(present)
