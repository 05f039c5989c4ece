//! Holds no code. Its `Cargo.toml` asks for the features that the whole workspace needs of the
//! libraries that many crates share. So cargo compiles each of them once, whatever packages are
//! built.
