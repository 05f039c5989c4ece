//! The Python package's native module
