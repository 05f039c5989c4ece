//! A mounted directory as backing store.
