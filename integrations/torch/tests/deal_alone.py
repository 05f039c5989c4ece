"""The dealing of global batches where torch may be absent: `import zazen.torch` would import it."""

import importlib.util
from pathlib import Path

__all__ = ["Homes", "deal"]

_package = importlib.util.find_spec("zazen.torch")
assert _package is not None and _package.submodule_search_locations, "zazen.torch is not installed"
_spec = importlib.util.spec_from_file_location(
    "zazen_deal_alone", Path(_package.submodule_search_locations[0], "deal.py")
)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
Homes, deal = _module.Homes, _module.deal
