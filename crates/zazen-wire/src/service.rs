//! Service numbers in the call header.

/// Identity, status, state dump: [`crate::control`].
pub const CONTROL: u16 = 1;
/// The frame cache: crate `zazen-frames`.
pub const FRAMES: u16 = 2;
/// Plug-ins: [`crate::plugins`].
pub const PLUGINS: u16 = 3;
/// The namespace: crate `zazen-namespace`.
pub const NAMESPACE: u16 = 4;
