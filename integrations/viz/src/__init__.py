"""Visualization where the files lie: which rank reads which file, and readers for VTK and ParaView.

    # a VTK algorithm; needs `pip install 'zazen[viz]'`
    reader = zazen.viz.Reader("/lustre/ocean/ts.vtm.series")
    reader.UpdateTimeStep(0.5)
    blocks = reader.GetOutputDataObject(0)

`match`, `sticky` and `Visualization` need no VTK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zazen.viz.matching import PARTS_PER_STEP, Matched, match, sticky
from zazen.viz.visualization import Visualization

if TYPE_CHECKING:
    from zazen.viz.reader import Reader

__all__ = [
    "PARTS_PER_STEP",
    "Matched",
    "Reader",
    "Visualization",
    "match",
    "plugin_config_path",
    "plugin_path",
    "sticky",
]


def plugin_path() -> str:
    """The file that ParaView loads: ``LoadPlugin(zazen.viz.plugin_path(), remote=True)``."""
    import importlib.util

    spec = importlib.util.find_spec("zazen.viz.paraview_plugin")
    assert spec is not None and spec.origin is not None
    return spec.origin


def plugin_config_path() -> str:
    """The file that makes ParaView load the plug-in by itself, if $PV_PLUGIN_CONFIG_FILE names
    it."""
    import os

    return os.path.join(os.path.dirname(plugin_path()), "paraview_plugins.xml")


def __getattr__(name: str) -> Any:
    if name == "Reader":
        from zazen.viz.reader import Reader

        return Reader
    raise AttributeError(f"module 'zazen.viz' has no attribute {name!r}")
