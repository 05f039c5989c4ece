"""Which formats there are decoders for."""

from __future__ import annotations

from typing import Any

from zazen.decoders.dcd import DcdDecoder
from zazen.decoders.netcdf import NetcdfDecoder
from zazen.decoders.trr import TrrDecoder
from zazen.decoders.xtc import XtcDecoder

#: Format name -> decoder.
FORMATS: dict[str, Any] = {"xtc": XtcDecoder, "trr": TrrDecoder, "dcd": DcdDecoder, "ncdf": NetcdfDecoder}
